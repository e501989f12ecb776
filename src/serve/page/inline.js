// The inside of a paragraph: text, or {kind: 'code'|'link'|'break'|'strong'|'em'|'del', ...}.
const kOpenMarks = 32;  // unclosed emphasis marks that are remembered at once

const inlineStart = /[\\`*_~[!<\n]|https?:\/\//gi;
const escaped = /^[!-/:-@[-`{-~]/;
const linkAt = new RegExp(
  /!?\[([^[\]]{0,500})\]/.source +                                // its label
  /\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\)){1,2000})>?/.source +      // the address
  /(?:\s+"[^"]{0,500}")?\s*\)/.source, 'y');                      // a title, which is not shown
const angleAt = /<(https?:\/\/[^\s<>]{1,2000})>/iy;
const bareAt = /https?:\/\/[!#-;=?-_a-~]{1,2000}/iy;  // ASCII without quotes, brackets and blanks
const wordChar = /[\p{L}\p{N}_]/u;

function parseInline(text) {
  return emphasized(inlineTokens(text));
}

// Text, finished nodes, and {kind: 'mark', char, count, opens, closes} for runs of * _ ~.
function inlineTokens(text) {
  const tokens = [];
  const noTick = new Set();  // lengths of backtick runs without a closing run from here on
  let plain = 0;             // start of text that is not a token yet
  const push = (at, token, next) => {
    if (at > plain) tokens.push(text.slice(plain, at));
    if (token !== '') tokens.push(token);
    plain = next;
  };
  for (let i = 0; i < text.length;) {
    inlineStart.lastIndex = i;
    const start = inlineStart.exec(text);
    if (!start) break;
    const at = start.index;
    const [token, next] = inlineToken(text, at, noTick);
    if (token !== null) push(at, token, next);
    i = next;
  }
  push(text.length, '', text.length);
  return tokens;
}

// The token at `at` and the position after it; null if it is plain text.
function inlineToken(text, at, noTick) {
  const char = text[at];
  if (char === '\\') {
    if (text[at + 1] === '\n') return [{ kind: 'break' }, at + 2];
    return escaped.test(text[at + 1] ?? '') ? [text[at + 1], at + 2] : [null, at + 1];
  }
  if (char === '\n') {
    return text.slice(at - 2, at) === '  ' ? [{ kind: 'break' }, at + 1] : [null, at + 1];
  }
  if (char === '`') return codeSpan(text, at, noTick);
  if ('*_~'.includes(char)) return mark(text, at);
  if (char === '[' || (char === '!' && text[at + 1] === '[')) {
    linkAt.lastIndex = at;
    const link = linkAt.exec(text);
    if (!link) return [null, at + 1];
    return [linkNode(link[2], link[1] || link[2], link[0]), linkAt.lastIndex];
  }
  if (char === '<') {
    angleAt.lastIndex = at;
    const link = angleAt.exec(text);
    return link ? [linkNode(link[1], link[1]), angleAt.lastIndex] : [null, at + 1];
  }
  bareAt.lastIndex = at;
  const bare = char === '!' ? null : bareAt.exec(text);
  if (!bare) return [null, at + 1];
  let url = bare[0].replace(/[.,;:!?*_~'\\]{1,8}$/, '');
  if (url.endsWith(')') && !url.includes('(')) url = url.slice(0, -1);
  return [linkNode(url, url), at + url.length];
}

// Only http and https become links; another scheme stays text.
function linkNode(url, label, source = label) {
  return /^https?:\/\/[^\s]/i.test(url) ? { kind: 'link', url, text: label } : source;
}

function codeSpan(text, at, noTick) {
  let end = at;
  while (text[end] === '`') end++;
  const ticks = end - at;
  for (let close = end; !noTick.has(ticks);) {
    close = text.indexOf('`', close);
    if (close < 0) break;
    let behind = close;
    while (text[behind] === '`') behind++;
    if (behind - close === ticks) {
      let code = text.slice(end, close).replace(/\n/g, ' ');
      if (/^ .*\S.* $/.test(code)) code = code.slice(1, -1);
      return [{ kind: 'code', text: code }, behind];
    }
    close = behind;
  }
  noTick.add(ticks);
  return [null, end];
}

function mark(text, at) {
  const char = text[at];
  let end = at;
  while (text[end] === char) end++;
  const before = text[at - 1] ?? ' ';
  const behind = text[end] ?? ' ';
  let opens = /\S/.test(behind);
  let closes = /\S/.test(before);
  if (char === '_') {  // not inside of snake_case
    [opens, closes] = [opens && !wordChar.test(before), closes && !wordChar.test(behind)];
  }
  const count = end - at;
  if ((!opens && !closes) || (char === '~' && count !== 2)) return [null, end];
  return [{ kind: 'mark', char, count, opens, closes }, end];
}

// One star closes one, two close two, three close either or both.
const fits = (open, close) => open === close || open >= 3 || close >= 3;

// Pairs the marks. `stack`: open marks, each with the nodes after it so far.
function emphasized(tokens) {
  const stack = [{ char: '', count: 0, children: [] }];
  const top = () => stack[stack.length - 1];
  const fold = () => {  // the top mark is plain text of the one below
    const { char, count, children } = stack.pop();
    top().children = top().children.concat(char.repeat(count), children);
  };
  for (const token of tokens) {
    if (token.kind !== 'mark') {
      top().children.push(token);
      continue;
    }
    let count = token.count;
    while (count > 0 && token.closes) {
      const opener = stack.findLastIndex(one => one.char === token.char && fits(one.count, count));
      if (opener < 0) break;
      while (stack.length - 1 > opener) fold();
      const open = stack.pop();
      const used = Math.min(open.count, count, 2);
      const kind = token.char === '~' ? 'del' : used === 2 ? 'strong' : 'em';
      const node = { kind, children: open.children };
      if (open.count > used) stack.push({ ...open, count: open.count - used, children: [node] });
      else top().children.push(node);
      count -= used;
    }
    if (count === 0) continue;
    if (token.opens && stack.length <= kOpenMarks) {
      stack.push({ char: token.char, count, children: [] });
    } else {
      top().children.push(token.char.repeat(count));
    }
  }
  while (stack.length > 1) fold();
  return stack[0].children;
}
