// The roofline of a phase: FLOP/s over FLOPs per byte, both logarithmic, and the table of stages.

const ROOF = { width: 760, height: 400, left: 70, right: 20, top: 20, bottom: 45 };

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

function roofNodes(read, roofs, x, y) {
  if (!(read > 0)) return [];
  const right = 10 ** x.high;
  const top = roofs.length ? Math.max(...roofs.map(roof => roof.rate)) : 10 ** y.high;
  // The memory roof rises from the left edge, or from the lower one, to the highest ridge.
  const x1 = Math.max(10 ** x.low, 10 ** y.low / read);
  const x2 = Math.min(right, top / read);
  const named = x1 ** 0.15 * x2 ** 0.85;  // above the roof lies nothing else
  return [
    ...(x2 > x1 ? [line('roof', x.at(x1), y.at(x1 * read), x.at(x2), y.at(x2 * read)),
      label(x.at(named) - 10, y.at(named * read) - 6, 'end', `memory: ${figure(read)} GB/s`)] : []),
    ...roofs.filter(roof => roof.rate / read < right).flatMap(roof => [
      line('roof', x.at(Math.max(roof.rate / read, x1)), y.at(roof.rate), x.to, y.at(roof.rate)),
      label(x.to - 4, y.at(roof.rate) - 6, 'end', `${roof.name}: ${rateText(roof.rate)}`)]),
  ];
}

function rateText(gflops) {
  return gflops >= 1e3 ? figure(gflops / 1e3) + ' TFLOP/s' : figure(gflops) + ' GFLOP/s';
}

function stageText(stage) {
  return `${stage.stage}: ${figure(stage.gflop_s)} GFLOP/s, ${figure(stage.gb_s)} GB/s, ` +
    `${figure(stage.flops_per_byte)} FLOPs per byte` + (stage.roof
    ? `, ${stage.percent_of_ceiling.toFixed(1)}% of the ${stage.roof} roof` : '');
}

// A dot for each stage, larger with its share of the time. From the top down; a label that would
// lie on another moves below it.
function stageNodes(stages, x, y) {
  const labels = [];
  return [...stages].sort((a, b) => b.gflop_s - a.gflop_s).map(stage => {
    const px = x.at(stage.flops_per_byte), py = y.at(stage.gflop_s);
    let ly = py + 4;
    for (const [ox, oy] of labels) {
      if (Math.abs(ox - px) < 90 && Math.abs(oy - ly) < 13) ly = oy + 13;
    }
    labels.push([px, ly]);
    const left = px > ROOF.width - 110;
    return node('g', { class: 'stage' },
      node('circle', { cx: px.toFixed(1), cy: py.toFixed(1), fill: colorOf(stage.stage),
        r: (4 + 8 * Math.sqrt(Math.max(0, Math.min(1, stage.share)))).toFixed(1) },
      node('title', {}, stageText(stage))),
      label(left ? px - 14 : px + 14, ly, left ? 'end' : 'start', stage.stage));
  });
}

// The picture; null where no stage computes.
function rooflineFigure(roofline) {
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
  const x = decades(Math.min(...xs), Math.max(...xs), ROOF.left, ROOF.width - ROOF.right);
  const y = decades(Math.min(...ys), Math.max(...ys), ROOF.height - ROOF.bottom, ROOF.top);
  return picture(ROOF.width, ROOF.height, `Roofline of ${roofline.phase}`,
    axes(x, y, 'FLOPs per byte', 'GFLOP/s', ROOF.height), roofNodes(read, roofs, x, y),
    stageNodes(stages, x, y));
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

function showRoofline(roofline) {
  const word = roofline.passes === undefined ? 'token' : 'row';
  const tree = rooflineFigure(roofline);
  const copied = `Host to device ${roofline.host_to_device_bytes_per_token.toFixed(0)} bytes per ` +
    `${word}, device to host ${roofline.device_to_host_bytes_per_token.toFixed(0)}. Above 100% ` +
    'of the memory roof: the bytes came out of a cache.';
  const parts = [gridOf(stageTable(roofline), `stages of ${roofline.phase}`), ...notesOf([copied])];
  if (!tree) return parts;
  const { figure: frame, drawn, tip } = framed(`roofline of ${roofline.phase}`, tree,
    () => intensityTable(roofline));
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
  return [...parts, frame];
}
