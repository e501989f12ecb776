// Small helpers to make elements. Text only ever becomes a text node: the page never hands a
// string to an HTML parser, and its policy (require-trusted-types-for) makes the browser refuse it.
const byId = id => document.getElementById(id);

// An element: attributes by name, `on...` as listeners, children as nodes, text or arrays of them.
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

function icon(name) {
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS(space, 'use');
  use.setAttribute('href', '#i-' + name);
  svg.append(use);
  return svg;
}

function iconButton(name, label, action) {
  return h('button', { type: 'button', class: 'icon-button small', 'aria-label': label,
                       title: label, onclick: action }, icon(name));
}

// Makes `node` equal to `wanted` and touches only what differs: a reader's place, a selection and a
// bar's movement stay.
function morph(node, wanted) {
  if (node.isEqualNode(wanted)) return;
  if (node.nodeName !== wanted.nodeName) {
    node.replaceWith(wanted);
  } else if (node.nodeType === Node.TEXT_NODE) {
    node.data = wanted.data;
  } else {
    for (const { name } of [...node.attributes]) {
      if (!wanted.hasAttribute(name) && name !== 'style') node.removeAttribute(name);
    }
    for (const { name, value } of wanted.attributes) {
      if (name !== 'style') node.setAttribute(name, value);  // which the page's policy forbids
    }
    if (node.style.width !== wanted.style.width) node.style.width = wanted.style.width;
    const children = [...wanted.childNodes];
    while (node.childNodes.length > children.length) node.lastChild.remove();
    children.forEach((child, i) => {
      if (node.childNodes[i]) morph(node.childNodes[i], child);
      else node.append(child);
    });
  }
}

// Copies text, and shows a tick on `button` for a moment. `text`: a function, called at the click.
function copyButton(label, text) {
  const button = iconButton('copy', label, async () => {
    if (!await copyText(text())) return;
    button.replaceChildren(icon('check'));
    say(t('copied'));
    setTimeout(() => button.replaceChildren(icon('copy')), 1500);
  });
  return button;
}

// navigator.clipboard exists only on https and loopback; the old command works elsewhere.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h('textarea', { class: 'unseen' });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

// For screen readers only.
function say(text) {
  const line = h('p', {}, text);
  byId('say').append(line);
  setTimeout(() => line.remove(), 10000);
}

let noticeTimer = 0;

// One line at the bottom of the page, with an optional button.
function notice(text, label, action) {
  const box = byId('notice');
  clearTimeout(noticeTimer);
  const hide = () => box.replaceChildren();
  box.replaceChildren(h('div', { class: 'notice' }, h('span', {}, text), label ?
    h('button', { type: 'button', onclick: () => { hide(); action(); } }, label) : null));
  noticeTimer = setTimeout(hide, 8000);
}

function download(name, value) {
  const url = URL.createObjectURL(
    new Blob([JSON.stringify(value, null, 1)], { type: 'application/json' }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
