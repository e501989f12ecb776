// The roofline of a phase: FLOP/s over FLOPs per byte, both logarithmic, and the table of stages.

const ROOF = { right: 20, top: 20, bottom: 45, name: 18 };

// The compute roofs that some stage has work under.
function computeRoofs(roofline) {
  const has = flops => roofline.stages.some(flops);
  const roofs = [['matrix', roofline.ceilings.matrix_gflop_s, () => true],
    ['f32', roofline.ceilings.f32_gflop_s, stage => stage.flops > stage.int8_flops],
    ['int8', roofline.ceilings.int8_gflop_s, stage => stage.int8_flops > 0]];
  return roofs.filter(([, rate, flops]) => rate > 0 && has(flops))
    .map(([name, rate]) => ({ name, rate }));
}

function decades(least, most, from, to) {
  const low = Math.floor(Math.log10(least));
  const high = Math.max(Math.ceil(Math.log10(most)), low + 1);
  return new Axis(10 ** low, 10 ** high, true, from, to);
}

// The lines of the roofs, each with its name and places for it: [{x1, y1, x2, y2, name, places}].
function roofLines(read, roofs, x, y) {
  if (!(read > 0)) return [];
  const right = 10 ** x.high;
  const top = roofs.length ? Math.max(...roofs.map(roof => roof.rate)) : 10 ** y.high;
  // The memory roof rises from the left edge, or from the lower one, to the highest ridge.
  const x1 = Math.max(10 ** x.low, 10 ** y.low / read);
  const x2 = Math.min(right, top / read);
  const made = [];
  if (x2 > x1) {
    const places = [0.85, 0.7, 0.55, 0.4, 0.25, 0.95].flatMap(share => {
      const at = x1 ** (1 - share) * x2 ** share;
      const [px, py] = [x.at(at), y.at(at * read)];
      return [[px - 10, py - 6, 'end'], [px + 10, py + 16, 'start']];
    });
    made.push({ x1: x.at(x1), y1: y.at(x1 * read), x2: x.at(x2), y2: y.at(x2 * read), places,
      name: `memory: ${figure(read)} GB/s` });
  }
  for (const roof of roofs.filter(one => one.rate / read < right)) {
    const begin = x.at(Math.max(roof.rate / read, x1)), at = y.at(roof.rate);
    const name = `${roof.name}: ${rateText(roof.rate)}`;
    const ends = [x.to - 4, (begin + x.to + textWidth(name)) / 2, begin + 12 + textWidth(name)];
    made.push({ x1: begin, y1: at, x2: x.to, y2: at, name,
      // Where the line is shorter than the name, other roofs may cross both rows beside it.
      places: Array.from({ length: 12 }, (_, i) => [-7 - 14 * i, 16 + 14 * i]).flat()
        .flatMap(far => ends.map(end => [end, at + far, 'end'])) });
  }
  return made;
}

function rateText(gflops) {
  return gflops >= 1e3 ? figure(gflops / 1e3) + ' TFLOP/s' : figure(gflops) + ' GFLOP/s';
}

function stageText(stage) {
  return `${stage.stage}: ${figure(stage.gflop_s)} GFLOP/s, ${figure(stage.gb_s)} GB/s, ` +
    `${figure(stage.flops_per_byte)} FLOPs per byte` + (stage.roof
    ? `, ${stage.percent_of_ceiling.toFixed(1)}% of the ${stage.roof} roof` : '');
}

// A dot for each stage, larger with its share of the time, and its name beside it. From the top down.
function stageDots(stages, x, y) {
  return [...stages].sort((a, b) => b.gflop_s - a.gflop_s).map(stage => ({ stage,
    cx: x.at(stage.flops_per_byte), cy: y.at(stage.gflop_s),
    r: 4 + 8 * Math.sqrt(Math.max(0, Math.min(1, stage.share))) }));
}

// A name that found no room beside its dot is further off, at the end of a thin line.
function dotNode({ stage, cx, cy, r }, places) {
  const beside = [[cx + r + 4, cy + 4, 'start'], [cx - r - 4, cy + 4, 'end'],
    [cx, cy - r - 5, 'middle'], [cx, cy + r + 13, 'middle']];
  const further = [];
  for (let far = 22; far < 200; far += 12) {
    for (let turn = 0; turn < 16; ++turn) {
      const by = far * Math.cos(turn * Math.PI / 8);
      further.push([cx + by, cy + 4 + far * Math.sin(turn * Math.PI / 8), by < 0 ? 'end' : 'start']);
    }
  }
  const [x, y, anchor] = places.take(stage.stage, [...beside, ...further]);
  const away = further.some(one => one[0] === x && one[1] === y);
  return node('g', { class: 'stage' },
    away ? line('lead', cx, cy, x + (anchor === 'end' ? 2 : -2), y - 4) : null,
    node('circle', { cx: cx.toFixed(1), cy: cy.toFixed(1), fill: colorOf(stage.stage),
      r: r.toFixed(1) }, node('title', {}, stageText(stage))),
    label(x, y, anchor, stage.stage));
}

// The picture; null where no stage computes.
function rooflineFigure(roofline, width = FILE_WIDTH) {
  const stages = roofline.stages.filter(stage =>
    stage.flops > 0 && stage.bytes > 0 && stage.seconds > 0);
  if (!stages.length) return null;
  const read = roofline.ceilings.read_gb_s ?? 0;
  const roofs = computeRoofs(roofline);
  const xs = stages.map(stage => stage.flops_per_byte), ys = stages.map(stage => stage.gflop_s);
  if (read > 0) {
    for (const roof of roofs) {  // ridges are in the picture
      xs.push(0.5 * roof.rate / read, 2 * roof.rate / read);
      ys.push(1.5 * roof.rate);
    }
    ys.push(Math.min(Math.max(...xs), 1) * read);  // and so is the roof above the dots
  }
  const height = Math.round(Math.min(480, Math.max(300, 210 + width / 4)));
  const y = decades(Math.min(...ys), Math.max(...ys), height - ROOF.bottom, ROOF.top);
  const x = decades(Math.min(...xs), Math.max(...xs), ROOF.name + roomFor(y), width - ROOF.right);
  const lines = roofLines(read, roofs, x, y), dots = stageDots(stages, x, y);
  const places = new Places(width, height - ROOF.bottom,
    lines.map(({ x1, y1, x2, y2 }) => [x1, y1, x2, y2]),
    dots.map(({ cx, cy, r }) => [cx - r, cy - r, cx + r, cy + r]));
  return picture(width, height, `Roofline of ${roofline.phase}`,
    axes(x, y, 'FLOPs per byte', 'GFLOP/s', height),
    lines.map(({ x1, y1, x2, y2 }) => line('roof', x1, y1, x2, y2)),
    lines.map(one => label(...places.take(one.name, one.places), one.name)), dots.map(dot => dotNode(dot, places)));
}

function stageTable(roofline) {
  const step = roofline.passes === undefined ? 'step' : 'pass';
  const steps = Math.max(roofline.steps, 1);
  const row = stage => ({ cells: [stage.stage, stage.calls, stage.seconds / steps, stage.share,
    stage.bytes / steps, stage.gb_s, stage.gflop_s,
    stage.roof ? stage.percent_of_ceiling / 100 : null, stage.roof] });
  const rest = (name, seconds) => ({ rest: true, cells: [name, null, seconds / steps,
    roofline.seconds > 0 ? seconds / roofline.seconds : null] });
  return {
    columns: [['stage', 'plain'], ['calls', 'plain'], [`time a ${step}`, 'seconds'],
      ['share', 'share'], [`bytes a ${step}`, 'bytes'], ['GB/s', 'figure'], ['GFLOP/s', 'figure'],
      ['of the ceiling', 'percent'], ['roof', 'plain']].map(([name, unit]) => ({ name, unit })),
    rows: [...roofline.stages.map(row), { ...row(roofline.all), sum: true },
      rest('between stages', roofline.gap_seconds),
      rest(step === 'pass' ? 'between passes' : 'between steps', roofline.outside_seconds)],
    keys: true,
  };
}

function intensityTable(roofline) {
  return { keys: true, columns: [['stage', 'plain'], ['FLOPs per byte', 'figure'],
    ['GFLOP/s', 'figure'], ['of the ceiling', 'percent'], ['roof', 'plain']]
    .map(([name, unit]) => ({ name, unit })),
  rows: roofline.stages.map(stage => ({ cells: [stage.stage, stage.flops_per_byte, stage.gflop_s,
    stage.roof ? stage.percent_of_ceiling / 100 : null, stage.roof] })) };
}

function copiedText(bytes) {
  return bytes < 1000 ? `${bytes.toFixed(0)} bytes` : UNITS.bytes(bytes);
}

function showRoofline(roofline) {
  const word = roofline.passes === undefined ? 'token' : 'row';
  const copied = `Host to device ${copiedText(roofline.host_to_device_bytes_per_token)} per ` +
    `${word}, device to host ${copiedText(roofline.device_to_host_bytes_per_token)}. Above 100% ` +
    'of the memory roof: the bytes came out of a cache.';
  const parts = [gridOf(stageTable(roofline), `stages of ${roofline.phase}`), ...notesOf([copied])];
  if (!rooflineFigure(roofline)) return parts;
  return [...parts, framed(`roofline of ${roofline.phase}`,
    width => rooflineFigure(roofline, width), () => intensityTable(roofline), listenToDots)];
}

function listenToDots(width, drawn, tip) {
  for (const dot of drawn.querySelectorAll('.stage')) {
    const text = dot.querySelector('title').textContent;
    dot.setAttribute('tabindex', '0');
    dot.setAttribute('role', 'img');
    dot.setAttribute('aria-label', text);
    dot.querySelector('title').remove();  // the tip says it
    const show = () => {
      const box = dot.querySelector('circle').getBoundingClientRect();
      tip.show(text.replace(/(: |, )/g, '\n'), box.right, box.bottom);
    };
    for (const event of ['pointerenter', 'focus']) dot.addEventListener(event, show);
    for (const event of ['pointerleave', 'blur']) dot.addEventListener(event, () => tip.hide());
  }
}
