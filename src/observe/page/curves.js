// Curves over a common axis.

const CHART = { right: 16, bottom: 40, row: 18 };

// [x, mean, least, most] of every point that has a value.
function valuesOf(curve) {
  return curve.points.filter(point => point[1] !== null)
    .map(([x, mean, least = mean, most = mean]) => [x, mean, least, most]);
}

// The names of curves and levels stand above the chart, one after the other in rows.
function chartKeys(chart, width) {
  let x = 12, row = 0;
  return [...chart.curves.map(curve => ({ name: curve.name,
    style: { stroke: colorOf(curve.name, 50), 'stroke-width': 2.5 } })),
  ...chart.levels.map(level => ({ name: level.name, style: { class: 'roof level' } }))]
    .map(key => {
      const wide = 40 + textWidth(key.name);
      if (x > 12 && x + wide > width) [x, row] = [12, row + 1];
      const placed = { ...key, x, row };
      x += wide;
      return placed;
    });
}

function chartAxes(chart, width) {
  const values = chart.curves.flatMap(valuesOf);
  if (!values.length) return null;
  const least = list => list.reduce((a, b) => Math.min(a, b));
  const most = list => list.reduce((a, b) => Math.max(a, b));
  const levels = chart.levels.map(level => level.y);
  let low = least([...values.map(v => v[2]), ...levels]);
  let high = most([...values.map(v => v[3]), ...levels]);
  const log = chart.may_be_log && low > 0 && high > 4 * low;
  if (log) {
    low *= 0.95;
    high *= 1.05;
  } else {
    if (chart.from_zero) low = Math.min(low, 0);
    const room = 0.04 * (high - low);
    high += room;
    if (!(chart.from_zero && low === 0)) low -= room;
  }
  const rows = Math.max(0, ...chartKeys(chart, width).map(key => key.row));
  const top = 28 + CHART.row * rows;
  const height = Math.round(184 + width / 10) + CHART.row * rows;
  const y = new Axis(low, high, log, height - CHART.bottom, top);
  return { height, y, x: new Axis(least(values.map(v => v[0])), most(values.map(v => v[0])), false,
    roomFor(y), width - CHART.right) };
}

// Each run between gaps is a path of its own.
function curveNodes(curve, x, y) {
  const color = colorOf(curve.name, 50);
  const runs = [[]];
  for (const [at, mean, least = mean, most = mean] of curve.points) {
    if (mean === null) runs.push([]);
    else runs[runs.length - 1].push([at, mean, least, most]);
  }
  const path = points => points.map(([px, py], i) =>
    `${i ? 'L' : 'M'}${px.toFixed(1)} ${py.toFixed(1)}`).join('');
  return runs.filter(run => run.length).flatMap(run => {
    const place = i => run.map(v => [x.at(v[0]), y.at(v[i])]);
    const wide = run.some(v => v[3] > v[2]);
    const dots = curve.dots || run.length === 1;
    return [
      wide ? node('path', { class: 'band', fill: color,
        d: path([...place(3), ...place(2).reverse()]) + 'Z' }) : null,
      node('path', { class: 'curve', stroke: color, d: path(place(1)) }),
      ...(dots ? place(1) : []).map(([cx, cy]) => node('circle', { cx: cx.toFixed(1),
        cy: cy.toFixed(1), r: 2.5, fill: color })),
    ];
  });
}

function chartFigure(chart, width = FILE_WIDTH) {
  const both = chartAxes(chart, width);
  if (!both) return null;
  const { x, y, height } = both;
  return picture(width, height, chart.title, axes(x, y, chart.x, null, height),
    chart.curves.flatMap(curve => curveNodes(curve, x, y)),
    chart.levels.map(level => line('roof level', x.from, y.at(level.y), x.to, y.at(level.y))),
    chartKeys(chart, width).flatMap(key => {
      const at = 14 + CHART.row * key.row;
      return [node('line', { x1: key.x, y1: at, x2: key.x + 18, y2: at, ...key.style }),
        label(key.x + 24, at + 4, 'start', key.name)];
    }));
}

function chartTable(chart) {
  const rows = new Map();
  chart.curves.forEach((curve, i) => curve.points.forEach(point => {
    const cells = rows.get(point[0]) ?? [point[0], ...chart.curves.map(() => null)];
    cells[i + 1] = point[1];
    rows.set(point[0], cells);
  }));
  const names = [chart.x, ...chart.curves.map(curve => curve.name)];
  return { columns: names.map(name => ({ name, unit: 'plain' })), keys: false,
    rows: [...rows.values()].sort((a, b) => a[0] - b[0]).map(cells => ({ cells })) };
}

// The value of every curve at the x that is under the mouse, or that the arrow keys came to.
function follow(chart, width, drawn, tip) {
  const { x, y } = chartAxes(chart, width);
  const places = [...new Set(chart.curves.flatMap(valuesOf).map(v => v[0]))].sort((a, b) => a - b);
  const close = (places[places.length - 1] - places[0]) / 200;  // points of one cursor
  const cursor = toDom(line('cursor', 0, y.from, 0, y.to));
  let index = -1;
  const show = to => {
    index = Math.max(0, Math.min(places.length - 1, to));
    const at = places[index];
    const text = chart.curves.flatMap(curve => {
      const near = valuesOf(curve).reduce((best, v) =>
        Math.abs(v[0] - at) < Math.abs(best[0] - at) ? v : best, [Infinity]);
      return Math.abs(near[0] - at) <= close ? [`${curve.name} ${UNITS.plain(near[1])}`] : [];
    });
    drawn.append(cursor);
    for (const end of ['x1', 'x2']) cursor.setAttribute(end, x.at(at).toFixed(1));
    const frame = drawn.getBoundingClientRect();
    tip.show([`${chart.x} ${UNITS.plain(at)}`, ...text].join('\n'),
      frame.left + x.at(at) / width * frame.width, frame.top + 30);
  };
  const hide = () => {
    cursor.remove();
    tip.hide();
  };
  drawn.setAttribute('tabindex', '0');
  drawn.addEventListener('pointermove', event => {
    const frame = drawn.getBoundingClientRect();
    const at = x.value((event.clientX - frame.left) / frame.width * width);
    show(places.reduce((best, one, i) =>
      Math.abs(one - at) < Math.abs(places[best] - at) ? i : best, 0));
  });
  drawn.addEventListener('pointerleave', hide);
  drawn.addEventListener('blur', hide);
  drawn.addEventListener('keydown', event => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    show(index + by);
    event.preventDefault();
  });
}

function showChart(chart) {
  if (!chartFigure(chart)) return [];
  const frame = framed(chart.title, width => chartFigure(chart, width), () => chartTable(chart),
    (width, drawn, tip) => follow(chart, width, drawn, tip));
  return [frame, ...notesOf(chart.notes)];
}
