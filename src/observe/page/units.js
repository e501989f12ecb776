// Numbers as people read them, in the manner of src/observe/units.h; and the colours of names.

function figure(value) {
  if (value > 0 && value < 0.005) return String(Number(value.toPrecision(2)));  // not "0.00"
  return value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

// [[least, divisor, name], ...], the largest first.
function scaled(value, steps) {
  const [, by, name, digits] = steps.find(one => value >= one[0]) ?? steps[steps.length - 1];
  return (digits === undefined ? figure(value / by) : (value / by).toFixed(digits)) + name;
}

const UNITS = {
  plain: value => Number.isInteger(value) ? String(value) :
    String(Math.abs(value) >= 1e4 ? Math.round(value) : Number(value.toPrecision(4))),
  seconds: value => scaled(value, [[1, 1, ' s'], [1e-3, 1e-3, ' ms'], [0, 1e-6, ' us']]),
  bytes: value => scaled(value, [[1e9, 1e9, ' GB', 2], [1e6, 1e6, ' MB', 1], [0, 1e3, ' kB', 1]]),
  memory: value => scaled(value, [[2 ** 40, 2 ** 40, ' TiB', 2], [2 ** 30, 2 ** 30, ' GiB', 2],
    [2 ** 20, 2 ** 20, ' MiB', 2], [2 ** 10, 2 ** 10, ' KiB', 2], [0, 1, ' B', 0]]),
  figure,
  count: value => scaled(value, [[1e9, 1e9, 'G', 2], [1e6, 1e6, 'M', 1], [1e4, 1e3, 'k', 1],
    [0, 1, '', 0]]),
  fixed4: value => value.toFixed(4),
  factor: value => value.toFixed(2) + 'x',
  percent: value => (100 * value).toFixed(1) + '%',
  share: value => (100 * value).toFixed(1) + '%',
};

// A cell: nothing, a text, or a number of that unit.
function written(value, unit) {
  if (value === null || value === undefined) return '';
  return typeof value === 'number' ? UNITS[unit](value) : value;
}

// The hue of a name, 0 to 359, the same wherever it is drawn. Names that are seen together lie
// apart; others are spread by a hash (FNV-1a).
const HUES = {
  qkv: 210, attention: 30, out: 150, up: 275, down: 335, head: 5, sample: 55, norm: 185,
  prefill: 35, decode: 205, print: 120, load: 260,
  loss: 210, validation: 30, 'learning rate': 150, 'gradient norm': 275, 'tokens per second': 185,
  'data wait': 5,
  full: 275, window: 5, streaming: 210, recompute: 150,
  'copy in': 210, compute: 35, 'copy out': 140, 'long job': 35, 'short job': 210,
};

function hueOf(name) {
  if (Object.hasOwn(HUES, name)) return HUES[name];
  let hash = 2166136261;
  for (const byte of new TextEncoder().encode(name)) {
    hash = Math.imul(hash ^ byte, 16777619) >>> 0;
  }
  return hash % 360;
}

function colorOf(name, light = 55) {
  return `hsl(${hueOf(name)} 60% ${light}%)`;
}
