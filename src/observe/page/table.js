// Tables, and the frame of a figure: what is under the mouse, its data as a table, its SVG.

// An element of HTML.
function element(name, options = {}, ...children) {
  const { style, ...properties } = options;
  const made = Object.assign(document.createElement(name), properties);
  for (const [key, value] of Object.entries(style ?? {})) made.style.setProperty(key, value);
  made.append(...children.flat().filter(one => one !== null));
  return made;
}

function cellOf(value, unit, first, keys) {
  const text = written(value, unit);
  const cell = element(first ? 'th' : 'td');
  if (first) cell.scope = 'row';
  if (first && keys) {
    cell.append(element('span', { className: 'key', style: { background: colorOf(text) } }));
  }
  cell.append(text);
  if (typeof value === 'string' && !first) cell.className = text.length > 40 ? 'text long' : 'text';
  return cell;
}

function rowOf(row, table) {
  const cells = table.columns.map((column, i) => {
    const keyed = table.keys && !row.sum && !row.rest;
    const cell = cellOf(row.cells[i], column.unit, i === 0, keyed);
    if (column.unit === 'share' && typeof row.cells[i] === 'number' && keyed) {
      const width = (80 * Math.min(row.cells[i], 1)).toFixed(1) + 'px';
      cell.append(element('span', { className: 'bar', style: { width } }));
    }
    return cell;
  });
  return element('tr', { className: row.sum ? 'sum' : row.rest ? 'rest' : '' }, cells);
}

// {columns, rows, keys} as an element that scrolls where it is too wide.
function gridOf(table, name) {
  const head = table.columns.map((column, i) => element('th', { scope: 'col',
    className: typeof table.rows[0]?.cells[i] === 'string' ? 'text' : '' }, column.name));
  const grid = element('table', {}, element('thead', {}, element('tr', {}, head)),
    element('tbody', {}, table.rows.map(row => rowOf(row, table))));
  grid.setAttribute('aria-label', name);
  const box = element('div', { className: 'wide', tabIndex: 0 }, grid);
  box.setAttribute('role', 'region');
  box.setAttribute('aria-label', name);
  return box;
}

function notesOf(notes) {
  return notes.map(text => element('p', { className: 'note' }, text));
}

function showTable(table) {
  return [gridOf(table, table.title), ...notesOf(table.notes)];
}

// A table behind a figure, made when it is opened.
function behind(title, makeTable) {
  const details = element('details', {}, element('summary', {}, 'Data: ' + title));
  details.addEventListener('toggle', () => {
    if (details.open && details.children.length === 1) details.append(gridOf(makeTable(), title));
  });
  return details;
}

function save(name, text) {
  const link = element('a', { download: name.replace(/[^\w.-]+/g, '-') });
  link.href = URL.createObjectURL(new Blob([text], { type: 'image/svg+xml' }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Text beside a point of the window, inside of the figure.
class Tip {
  constructor(figure) {
    this.figure = figure;
    this.box = element('div', { className: 'tip', hidden: true });
    this.box.setAttribute('role', 'status');
    figure.append(this.box);
  }

  show(text, clientX, clientY) {
    const frame = this.figure.getBoundingClientRect();
    this.box.hidden = false;
    this.box.textContent = text;
    const within = (value, most) => Math.max(0, Math.min(value, most)) + 'px';
    this.box.style.left = within(clientX - frame.left + 12, frame.width - this.box.offsetWidth - 4);
    this.box.style.top = within(clientY - frame.top + 12, frame.height - this.box.offsetHeight - 4);
  }

  hide() {
    this.box.hidden = true;
  }
}

// A figure with its tools. `draw`: makes the picture for a width in pixels, that of the frame;
// `listen`: called with that width, the drawn picture and its tip.
function framed(title, draw, makeTable, listen) {
  const box = element('div', { className: 'drawn' });
  const button = element('button', { type: 'button' }, 'Save as SVG');
  button.setAttribute('aria-label', 'Save as SVG: ' + title);
  button.addEventListener('click', () => save(title + '.svg', standalone(draw(FILE_WIDTH))));
  const figure = element('figure', {}, box,
    element('div', { className: 'tools' }, button, behind(title, makeTable)));
  const tip = new Tip(figure);
  let shown = 0;
  const show = width => {
    if (width < 1 || width === shown) return;
    shown = width;
    tip.hide();
    const drawn = toDom(draw(width));
    box.replaceChildren(drawn);
    listen(width, drawn, tip);
  };
  show(FILE_WIDTH);
  new ResizeObserver(() => show(Math.max(260, box.clientWidth))).observe(box);
  return figure;
}
