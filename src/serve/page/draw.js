// Makes elements from the output of markdown.js.

function drawInline(text) {
  return inlineElements(parseInline(text));
}

function inlineElements(nodes) {
  return nodes.map(node => {
    if (typeof node === 'string') return document.createTextNode(node);
    if (node.kind === 'break') return h('br');
    if (node.kind === 'code') return h('code', {}, node.text);
    if (node.kind === 'link') {
      return h('a', { href: node.url, target: '_blank', rel: 'noopener noreferrer nofollow' },
               node.text);
    }
    return h(node.kind, {}, inlineElements(node.children));
  });
}

function drawBlock(block) {
  switch (block.kind) {
    case 'heading':  // h1 is the page's, h2 the panel's
      return h('h' + Math.min(6, block.level + 2), {}, drawInline(block.text));
    case 'rule':
      return h('hr');
    case 'code':
      return drawCode(block);
    case 'quote':
      return h('blockquote', {}, block.blocks.map(drawBlock));
    case 'list':
      return h(block.ordered ? 'ol' : 'ul', { start: block.start === 1 ? null : block.start },
               block.items.map(item => drawItem(item, block.loose)));
    case 'table':
      return drawTable(block);
    default:
      return h('p', {}, drawInline(block.text));
  }
}

function drawItem(item, loose) {
  return h('li', {}, item.blocks.flatMap(block =>
    !loose && block.kind === 'paragraph' ? drawInline(block.text) : [drawBlock(block)]));
}

function drawCode(block) {
  const code = h('code', {}, block.text);
  const label = block.language || t('code');
  return h('div', { class: 'code' },
    h('div', { class: 'code-bar' }, h('span', {}, label),
      copyButton(t('copyCode'), () => code.textContent)),
    h('pre', { tabindex: 0, role: 'region', 'aria-label': label }, code));
}

function drawTable(block) {
  const cell = tag => (text, column) => h(tag,
    { class: block.columns[column] ? 'to-' + block.columns[column] : null,
      scope: tag === 'th' ? 'col' : null }, drawInline(text));
  return h('div', { class: 'table', tabindex: 0, role: 'region', 'aria-label': t('table') },
    h('table', {},
      h('thead', {}, h('tr', {}, block.head.map(cell('th')))),
      h('tbody', {}, block.rows.map(row => h('tr', {}, row.map(cell('td')))))));
}

// Updates `node`, drawn from `old`, for `block`: parts that have only grown are not redrawn.
function redrawn(node, old, block) {
  if (old.kind === 'code' && block.kind === 'code' && old.language === block.language &&
      block.text.startsWith(old.text)) {
    const code = node.querySelector('code');
    if (!code.firstChild) code.append('');
    code.append(block.text.slice(old.text.length));
    code.normalize();
    return node;
  }
  if (old.kind === 'list' && block.kind === 'list' && old.ordered === block.ordered &&
      old.loose === block.loose && block.items.length >= old.items.length) {
    const same = old.items.findIndex((item, i) => item.raw !== block.items[i].raw);
    const kept = same < 0 ? old.items.length : same;
    while (node.children.length > kept) node.lastElementChild.remove();
    for (const item of block.items.slice(kept)) node.append(drawItem(item, block.loose));
    return node;
  }
  return drawBlock(block);
}

// Markdown that grows. `done` is the offset of the first block that may still change; elements
// before it are never touched again, so a token of a long answer costs no more than one of a short
// answer.
class MarkdownView {
  constructor(root, settled = () => {}) {
    this.root = root;
    this.settled = settled;  // called with each element that is finished
    this.done = 0;
    this.tail = [];          // [{block, node}] from `done` on
  }

  // `text`: everything so far; it begins with the text of the last call.
  update(text, finished = false) {
    const rest = text.slice(this.done);
    const blocks = parseBlocks(rest);
    const old = this.tail;
    this.tail = blocks.map((block, i) => {
      if (i > 0 || !old.length) return { block, node: drawBlock(block) };
      return { block, node: redrawn(old[0].node, old[0].block, block) };
    });
    for (const { node } of old) {
      if (node !== this.tail[0]?.node) node.remove();
    }
    for (const { node } of this.tail) this.root.append(node);
    // A block is finished when the line after it is complete: "-" may become an item.
    let open = 0;
    while (open + 1 < blocks.length && rest.includes('\n', blocks[open + 1].at)) open++;
    if (finished) open = blocks.length;
    for (const { node } of this.tail.slice(0, open)) this.settled(node);
    this.tail = this.tail.slice(open);
    this.done += finished ? rest.length : blocks[open]?.at ?? 0;
  }
}
