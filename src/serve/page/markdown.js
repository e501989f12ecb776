// Markdown to a tree of plain objects; draw.js makes elements of it. Supports what models write:
// paragraphs, headings, lists, fenced code, quotes, tables, rules; inside of them code, bold,
// italic, struck text and links. HTML is text. Every loop moves forward and every nesting has a
// bound, so that hostile text costs no more than its length.
const kDeepest = 12;  // lists in quotes in lists ...

const fenceLine = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const headingLine = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const ruleLine = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const quoteLine = /^ {0,3}>/;
const itemLine = /^( {0,3})([-*+]|\d{1,9}[.)])(?:[ \t]|$)/;

const indentOf = line => line.length - line.trimStart().length;

// Whether a line ends a paragraph without a blank line before it.
function startsBlock(line) {
  const item = itemLine.exec(line);
  return fenceLine.test(line) || headingLine.test(line) || ruleLine.test(line) ||
    quoteLine.test(line) || (item !== null && !/^(?:[02-9]|1\d)/.test(item[2]));
}

// The blocks of `text`, each with `at`, the offset of its first line.
function parseBlocks(text) {
  const lines = text.replace(/\t/g, '    ').split('\n');
  const blocks = parseLines(lines, 0);
  // Tabs may have moved offsets, so they are counted in the original lines.
  let line = 0;
  let offset = 0;
  for (const block of blocks) {
    for (; line < block.line; line++) offset = text.indexOf('\n', offset) + 1;
    block.at = offset;
  }
  return blocks;
}

function parseLines(lines, depth) {
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    if (lines[i].trim() === '') {
      i++;
      continue;
    }
    const [block, next] = parseBlock(lines, i, depth);
    block.line = i;
    blocks.push(block);
    i = next;
  }
  return blocks;
}

// The block that begins at line i, and the line after it.
function parseBlock(lines, i, depth) {
  const line = lines[i];
  if (fenceLine.test(line)) return parseFence(lines, i);
  const heading = headingLine.exec(line);
  if (heading) {
    let text = line.trim().slice(heading[1].length).trim();
    const bare = text.replace(/#+$/, '');
    if (bare === '' || bare.endsWith(' ')) text = bare.trim();
    return [{ kind: 'heading', level: heading[1].length, text }, i + 1];
  }
  if (ruleLine.test(line)) return [{ kind: 'rule' }, i + 1];
  if (depth < kDeepest && quoteLine.test(line)) return parseQuote(lines, i, depth);
  if (depth < kDeepest && itemLine.test(line)) return parseList(lines, i, depth);
  const columns = tableColumns(lines, i);
  if (columns) return parseTable(lines, i, columns);
  let end = i + 1;
  while (end < lines.length && lines[end].trim() !== '' && !startsBlock(lines[end]) &&
         !tableColumns(lines, end)) end++;
  return [{ kind: 'paragraph', text: lines.slice(i, end).map(one => one.trimStart()).join('\n') },
          end];
}

function parseFence(lines, i) {
  const [, fence, info] = fenceLine.exec(lines[i]);
  const indent = indentOf(lines[i]);
  const body = [];
  let end = i + 1;
  let closed = false;
  for (; end < lines.length && !closed; end++) {
    const close = fenceLine.exec(lines[end]);
    closed = close !== null && close[2] === '' && close[1][0] === fence[0] &&
      close[1].length >= fence.length;
    if (!closed) body.push(lines[end].slice(Math.min(indent, indentOf(lines[end]))));
  }
  return [{ kind: 'code', language: info.trim().split(/\s/)[0], text: body.join('\n'), closed },
          end];
}

function parseQuote(lines, i, depth) {
  const inside = [];
  let end = i;
  for (; end < lines.length && lines[end].trim() !== ''; end++) {
    const quoted = quoteLine.test(lines[end]);
    if (!quoted && startsBlock(lines[end])) break;
    inside.push(quoted ? lines[end].replace(/^ {0,3}> ?/, '') : lines[end]);
  }
  return [{ kind: 'quote', blocks: parseLines(inside, depth + 1) }, end];
}

// An item continues over lines indented by two or more: models indent the continuation of "1. " by
// two, three or four.
function parseList(lines, i, depth) {
  const first = itemLine.exec(lines[i])[2];
  const ordered = /\d/.test(first);
  const sameKind = marker => /\d/.test(marker) === ordered &&
    marker.slice(-1) === first.slice(-1);
  const items = [];
  let inside = null;
  let width = 0;  // width of the marker and the blanks after it
  let blank = false;
  let loose = false;
  let end = i;
  for (let at = i; at < lines.length; at++) {
    const line = lines[at];
    if (line.trim() === '') {
      if (inside) inside.push('');
      blank = true;
      continue;
    }
    const item = itemLine.exec(line);
    const indent = indentOf(line);
    if (inside && indent >= 2) {
      inside.push(line.slice(Math.min(indent, width)));
    } else if (item && sameKind(item[2]) && !ruleLine.test(line)) {
      const rest = line.slice(item[0].length);
      const blanks = Math.min(indentOf(rest), 3);
      width = item[0].length + (rest.trim() === '' ? 0 : blanks);
      inside = [line.slice(width)];
      items.push({ lines: inside });
      loose ||= blank && items.length > 1;
    } else if (!blank && !startsBlock(line)) {
      inside.push(line);
    } else {
      break;
    }
    blank = false;
    end = at + 1;
  }
  for (const item of items) {
    item.raw = item.lines.join('\n').trimEnd();
    item.blocks = parseLines(item.lines, depth + 1);
    delete item.lines;
  }
  return [{ kind: 'list', ordered, start: ordered ? parseInt(first, 10) : 1, loose, items }, end];
}

// The alignments of a table's columns, if line i is its head: the next line has as many cells of
// dashes; otherwise null.
function tableColumns(lines, i) {
  if (i + 1 >= lines.length || !lines[i].includes('|') || !lines[i + 1].includes('-')) return null;
  const cells = splitRow(lines[i + 1]);
  if (!cells.every(cell => /^:?-+:?$/.test(cell))) return null;
  if (cells.length !== splitRow(lines[i]).length) return null;
  return cells.map(cell => {
    const left = cell.startsWith(':');
    if (!cell.endsWith(':')) return left ? 'left' : '';
    return left ? 'center' : 'right';
  });
}

function splitRow(line) {
  const cells = [''];
  const row = line.trim();
  for (let i = row.startsWith('|') ? 1 : 0; i < row.length; i++) {
    if (row[i] === '\\' && row[i + 1] === '|') cells[cells.length - 1] += row[++i];
    else if (row[i] !== '|') cells[cells.length - 1] += row[i];
    else if (i + 1 < row.length) cells.push('');
  }
  return cells.map(cell => cell.trim());
}

function parseTable(lines, i, columns) {
  const fit = row => columns.map((_, column) => row[column] ?? '');
  const rows = [];
  let end = i + 2;
  for (; end < lines.length && lines[end].trim() !== '' && !startsBlock(lines[end]); end++) {
    rows.push(fit(splitRow(lines[end])));
  }
  return [{ kind: 'table', columns, head: fit(splitRow(lines[i])), rows }, end];
}
