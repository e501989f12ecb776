// Checks of the Markdown parser, for node (`node markdown_test.js FOLDER`, the page's sources) and
// for the page itself (browser_test.py runs the two functions there).

function escapedHtml(text) {
  return text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}

// The tree in a short form of HTML.
function shortHtml(blocks, loose = true) {
  const inline = nodes => nodes.map(node => {
    if (typeof node === 'string') return escapedHtml(node);
    if (node.kind === 'break') return '<br>';
    if (node.kind === 'code') return `<code>${escapedHtml(node.text)}</code>`;
    if (node.kind === 'link') return `<a ${node.url}>${escapedHtml(node.text)}</a>`;
    return `<${node.kind}>${inline(node.children)}</${node.kind}>`;
  }).join('');
  const text = one => inline(parseInline(one));
  return blocks.map(block => {
    if (block.kind === 'heading') {
      const tag = 'h' + Math.min(6, block.level + 2);
      return `<${tag}>${text(block.text)}</${tag}>`;
    }
    if (block.kind === 'rule') return '<hr>';
    if (block.kind === 'code') return `<pre ${block.language}>${escapedHtml(block.text)}</pre>`;
    if (block.kind === 'quote') return `<blockquote>${shortHtml(block.blocks)}</blockquote>`;
    if (block.kind === 'list') {
      const tag = block.ordered ? 'ol' : 'ul';
      const start = block.start === 1 ? '' : ' start=' + block.start;
      const items = block.items.map(item => `<li>${block.loose ? shortHtml(item.blocks) :
        shortHtml(item.blocks.slice(0, 1), false) + shortHtml(item.blocks.slice(1))}</li>`);
      return `<${tag}${start}>${items.join('')}</${tag}>`;
    }
    if (block.kind === 'table') {
      return `<table ${block.columns}>${block.head.map(one => '<th>' + text(one)).join('')}` +
        block.rows.map(row => '<tr>' + row.map(one => '<td>' + text(one)).join('')).join('') +
        '</table>';
    }
    return loose ? `<p>${text(block.text)}</p>` : text(block.text);
  }).join('');
}

// Failures, as lines. Hostile text must take at most linear time.
function markdownFailures(cases) {
  const wrong = [];
  for (const [text, expected] of cases) {
    const got = shortHtml(parseBlocks(text));
    if (got !== expected) {
      wrong.push(`${JSON.stringify(text)}\n  wanted ${expected}\n  got    ${got}`);
    }
  }
  for (const piece of ['**a ', '*a', '[', '[a](', '`a ``b ', '>', '> ', '- ', '1. ', '*_~~', '_a_b',
                       'a|b\n', '|-', 'https://', '<https://', '\\', '# ', '~~~', '- a\n', '  ',
                       '![']) {
    const time = count => {
      const text = piece.repeat(count / piece.length) + 'end';
      const begin = performance.now();
      for (const block of parseBlocks(text)) if (block.text) parseInline(block.text);
      return performance.now() - begin;
    };
    const [short, long] = [Math.max(20, time(20000)), time(200000)];
    if (long > 60 * short) wrong.push(`${JSON.stringify(piece)}: ten times the text takes ` +
      `${(long / short).toFixed(0)} times as long (${long.toFixed(0)} ms)`);
  }
  return wrong;
}

if (typeof require === 'function' && typeof window === 'undefined') {
  const fs = require('fs');
  const vm = require('vm');
  const path = require('path');
  for (const name of ['markdown', 'inline']) {
    const file = path.join(process.argv[2], name + '.js');
    vm.runInThisContext(fs.readFileSync(file, 'utf8'), { filename: file });
  }
  const cases = JSON.parse(fs.readFileSync(path.join(__dirname, 'markdown_cases.json'), 'utf8'));
  const wrong = markdownFailures(cases);
  console.log(wrong.join('\n') || `${cases.length} texts, all as they should be`);
  process.exit(wrong.length ? 1 : 0);
}
