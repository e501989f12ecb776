// Checks of the current page, similar to axe; look_test.py runs them there. Each returns lines that
// say what is wrong.

const shown = node => node.checkVisibility({ visibilityProperty: true, opacityProperty: false });

// Every control has a name, every field a label that is seen or spoken.
function unnamed() {
  return [...document.querySelectorAll('button, a[href], input, select, textarea, summary, ' +
    'dialog, [role=region], [role=log], nav, aside')]
    .filter(node => node.type !== 'file' || shown(node)).filter(node => {
      const byLabel = node.labels?.length ? node.labels[0].textContent : '';
      const byId = document.getElementById(node.getAttribute('aria-labelledby'))?.textContent;
      const own = node.matches('button, a, summary') ? node.textContent : '';
      return ![node.getAttribute('aria-label'), byId, byLabel, own].some(one => one?.trim());
    }).map(node => 'no name: ' + node.outerHTML.slice(0, 120));
}

function structure() {
  const wrong = [];
  const ids = [...document.querySelectorAll('[id]')].map(node => node.id);
  wrong.push(...ids.filter((id, i) => ids.indexOf(id) !== i).map(id => 'twice the id ' + id));
  if (!document.documentElement.lang) wrong.push('no language');
  if (document.querySelectorAll('main').length !== 1) wrong.push('not one main');
  if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
  for (const node of document.querySelectorAll('[tabindex]')) {
    if (node.tabIndex > 0) wrong.push('an order of its own: ' + node.outerHTML.slice(0, 80));
  }
  for (const node of document.querySelectorAll('[aria-controls]')) {
    const controlled = document.getElementById(node.getAttribute('aria-controls'));
    if (!controlled) wrong.push('controls nothing: ' + node.id);
  }
  for (const node of document.querySelectorAll('svg')) {
    if (!node.closest('[aria-hidden=true]')) wrong.push('an icon that is read out');
  }
  return wrong;
}

// Every text has enough contrast with its background: 4.5 to 1, or 3 to 1 if it is large.
function faint() {
  const parts = color => {
    const rgb = color.match(/[\d.]+/g).map(Number);
    const most = color.startsWith('color(srgb') ? 1 : 255;
    return [...rgb.slice(0, 3).map(one => 255 * one / most), rgb[3] ?? 1];
  };
  const over = (top, below) => below.map((one, i) => top[i] * top[3] + one * (1 - top[3]));
  const behind = node => {
    const color = node ? parts(getComputedStyle(node).backgroundColor) : [255, 255, 255, 1];
    return color[3] === 1 ? color.slice(0, 3) : over(color, behind(node.parentElement));
  };
  const light = rgb => {
    const [r, g, b] = rgb.map(one => one / 255).map(one =>
      one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const wrong = [];
  const check = (node, style, text) => {
    const below = behind(node);
    const ratio = contrast(over(parts(style.color), below), below);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) wrong.push(`${ratio.toFixed(2)}: ${text.trim().slice(0, 50)}`);
  };
  for (const node of document.querySelectorAll('body *')) {
    if (!shown(node) || node.closest('.unseen, .skip, svg, option')) continue;
    const text = [...node.childNodes].filter(one => one.nodeType === Node.TEXT_NODE)
      .map(one => one.data).join('');
    if (text.trim()) check(node, getComputedStyle(node), text);
    if (node.placeholder) check(node, getComputedStyle(node, '::placeholder'), node.placeholder);
    if (node.matches('button') && node.querySelector(':scope > svg')) {
      check(node, getComputedStyle(node), node.getAttribute('aria-label') ?? node.textContent);
    }
  }
  return wrong;
}

// Nothing is wider than the window, and on a phone no target is too small for a finger.
function cramped() {
  const wrong = [];
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) wrong.push('the page scrolls sideways');
  for (const node of document.querySelectorAll('button, input, select, textarea')) {
    if (!shown(node) || node.type === 'file') continue;
    const box = node.getBoundingClientRect();
    if (box.width === 0 || box.right < 0) continue;
    const what = node.outerHTML.slice(0, 90);
    if (box.right > wide + 1 || box.left < -1) wrong.push('out of the window: ' + what);
    if (box.height < 24 && node.type !== 'checkbox') wrong.push('too small: ' + what);
  }
  return wrong;
}
