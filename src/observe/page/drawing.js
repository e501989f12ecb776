// Figures are trees of plain objects: they become elements of this page, or the text of an SVG file
// that stands alone. The latter needs no browser.

const SVG = 'http://www.w3.org/2000/svg';

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

  // Round values inside of the axis: 1, 2 and 5 times a power of ten.
  ticks() {
    const slack = 1e-9 * (this.high - this.low);
    const inside = place => place >= this.low - slack && place <= this.high + slack;
    const all = [];
    if (this.log) {
      const factors = this.high - this.low > 3 ? [1] : [1, 2, 5];
      for (let e = Math.floor(this.low); e <= Math.ceil(this.high); ++e) {
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
    ...x.ticks().flatMap(value => [line('grid', x.at(value), y.from, x.at(value), y.to),
      label(x.at(value), y.from + 16, 'middle', tickText(value))]),
    ...y.ticks().flatMap(value => [line('grid', x.from, y.at(value), x.to, y.at(value)),
      label(x.from - 6, y.at(value) + 4, 'end', tickText(value))]),
    label((x.from + x.to) / 2, height - 8, 'middle', xName),
    yName ? node('text', { transform: `translate(14 ${(y.from + y.to) / 2}) rotate(-90)`,
      'text-anchor': 'middle' }, yName) : null,
  ];
}
