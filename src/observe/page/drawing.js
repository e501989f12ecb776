// Figures are trees of plain objects: they become elements of this page, or the text of an SVG file
// that stands alone. The latter needs no browser.

const SVG = 'http://www.w3.org/2000/svg';

// Pixels of a figure where no frame says it: of a file.
const FILE_WIDTH = 760;
// About the width of a text in a figure, whose letters are of 12 pixels.
const textWidth = text => 6.7 * text.length;

function node(name, attributes = {}, ...children) {
  return { name, attributes, children: children.flat().filter(one => one !== null) };
}

function line(style, x1, y1, x2, y2) {
  const at = { class: style, x1, y1, x2, y2 };
  for (const key of ['x1', 'y1', 'x2', 'y2']) at[key] = at[key].toFixed(1);
  return node('line', at);
}

function label(x, y, anchor, text, attributes = {}) {
  return node('text', { x: x.toFixed(1), y: y.toFixed(1), 'text-anchor': anchor, ...attributes },
    text);
}

function picture(width, height, title, ...children) {
  return node('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title },
    ...children);
}

function toDom(tree) {
  if (typeof tree === 'string') return document.createTextNode(tree);
  const element = document.createElementNS(SVG, tree.name);
  for (const [name, value] of Object.entries(tree.attributes)) element.setAttribute(name, value);
  element.append(...tree.children.map(toDom));
  return element;
}

function toText(tree) {
  const safe = text => text.replace(/[&<>"]/g, one => `&#${one.charCodeAt(0)};`);
  if (typeof tree === 'string') return safe(tree);
  const attributes = Object.entries(tree.attributes)
    .map(([name, value]) => ` ${name}="${safe(String(value))}"`).join('');
  return `<${tree.name}${attributes}>${tree.children.map(toText).join('')}</${tree.name}>`;
}

// The rules of this page that an SVG file needs: its colours, light and dark, and those of figures.
function figureRules() {
  const wanted = rule => rule.selectorText
    ? /^(:root|svg)/.test(rule.selectorText)
    : rule.conditionText?.includes('color-scheme') ?? false;
  return [...document.styleSheets[0].cssRules].filter(wanted).map(rule => rule.cssText).join('\n');
}

// An SVG file of a figure. `rules`: its style; without a browser there is none to ask.
function standalone(tree, rules = figureRules()) {
  const [, , width, height] = tree.attributes.viewBox.split(' ');
  return toText(node('svg', { xmlns: SVG, width, height, ...tree.attributes },
    node('style', {}, rules), ...tree.children)) + '\n';
}

// An axis from pixel `from` to pixel `to`.
class Axis {
  constructor(low, high, log, from, to) {
    Object.assign(this, { log, from, to });
    [this.low, this.high] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    if (!(this.high > this.low)) {  // one value: in the middle
      const room = log || this.low === 0 ? 0.5 : Math.abs(this.low) / 2;
      this.low -= room;
      this.high += room;
    }
  }

  at(value) {
    const place = this.log ? Math.log10(value) : value;
    return this.from + (place - this.low) / (this.high - this.low) * (this.to - this.from);
  }

  value(pixel) {
    const place = this.low + (pixel - this.from) / (this.to - this.from) * (this.high - this.low);
    return this.log ? 10 ** place : place;
  }

  // Round values inside of the axis: 1, 2 and 5 times a power of ten, or fewer so that there are
  // `apart` pixels between two of them.
  ticks(apart = 0) {
    const slack = 1e-9 * (this.high - this.low);
    const inside = place => place >= this.low - slack && place <= this.high + slack;
    const all = [];
    if (this.log) {
      const decade = Math.abs(this.to - this.from) / (this.high - this.low);
      const factors = this.high - this.low > 3 || decade < 3.4 * apart ? [1] : [1, 2, 5];
      const every = Math.max(1, Math.ceil(apart / decade));
      for (let e = Math.floor(this.low / every) * every; e <= Math.ceil(this.high); e += every) {
        all.push(...factors.filter(f => inside(Math.log10(f) + e)).map(f => f * 10 ** e));
      }
      // No two round values inside: its ends.
      return all.length >= 2 ? all : [10 ** this.low, 10 ** this.high];
    }
    const step = roundStep((this.high - this.low) / 5);
    const first = Math.ceil(this.low / step);
    for (let i = 0; i < 20; ++i) {
      if (inside((first + i) * step)) all.push((first + i) * step);
    }
    return all;
  }
}

// The least of 1, 2, 5 and 10 times a power of ten that is not below `rough`.
function roundStep(rough) {
  const ten = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5].map(f => f * ten).find(step => step >= rough) ?? 10 * ten;
}

function tickText(value) {
  const size = Math.abs(value);
  const [by, name] = size >= 1e9 ? [1e9, 'G'] : size >= 1e6 ? [1e6, 'M'] :
    size >= 1e4 ? [1e3, 'k'] : [1, ''];
  return Number((value / by).toPrecision(3)) + name;
}

function axes(x, y, xName, yName, height) {
  return [
    ...x.ticks(40).flatMap(value => [line('grid', x.at(value), y.from, x.at(value), y.to),
      label(x.at(value), y.from + 16, 'middle', tickText(value))]),
    ...y.ticks(16).flatMap(value => [line('grid', x.from, y.at(value), x.to, y.at(value)),
      label(x.from - 6, y.at(value) + 4, 'end', tickText(value))]),
    label((x.from + x.to) / 2, height - 8, 'middle', xName),
    yName ? node('text', { transform: `translate(14 ${(y.from + y.to) / 2}) rotate(-90)`,
      'text-anchor': 'middle' }, yName) : null,
  ];
}

// Room that an axis needs at its left for the numbers beside it.
const roomFor = axis => 12 + Math.max(...axis.ticks(16).map(value => textWidth(tickText(value))));

// Where labels may stand: not on each other, on dots or on lines, and inside of the figure.
class Places {
  // `lines`: [x1, y1, x2, y2]; `boxes`: [left, top, right, bottom]
  constructor(width, height, lines, boxes) {
    Object.assign(this, { width, height, lines, boxes: [...boxes] });
  }

  box(text, [x, y, anchor]) {
    const wide = textWidth(text);
    const left = anchor === 'end' ? x - wide : anchor === 'middle' ? x - wide / 2 : x;
    return [left - 2, y - 11, left + wide + 2, y + 4];
  }

  // What the box would cover.
  cost([left, top, right, bottom]) {
    const outside = left < 0 || top < 0 || right > this.width || bottom > this.height;
    const covered = this.boxes.filter(([l, t, r, b]) =>
      l < right && left < r && t < bottom && top < b).length;
    const crossed = this.lines.filter(([x1, y1, x2, y2]) => {
      let from = 0, to = 1;  // the part of the line inside of the box
      for (const [at, by, low, high] of [[x1, x2 - x1, left, right], [y1, y2 - y1, top, bottom]]) {
        if (by === 0) {
          if (at < low || at > high) return false;
          continue;
        }
        const [a, b] = [(low - at) / by, (high - at) / by];
        from = Math.max(from, Math.min(a, b));
        to = Math.min(to, Math.max(a, b));
      }
      return from <= to;
    }).length;
    return (outside ? 10 : 0) + 2 * covered + crossed;
  }

  // Which of the [x, y, anchor] the text has: the first that covers nothing, else where it covers
  // least.
  take(text, candidates) {
    const costs = candidates.map(one => this.cost(this.box(text, one)));
    const best = candidates[costs.indexOf(Math.min(...costs))];
    this.boxes.push(this.box(text, best));
    return best;
  }
}
