// The fixed parts of the HTML page: how it looks, and the timeline that a reader moves about in.
#pragma once

namespace mr::observe {

inline constexpr char kPageStyle[] = R"css(
:root { color-scheme: light dark; --ink: #1d2329; --dim: #66707a; --line: #d5dade; --page: #fbfbfa;
        --panel: #ffffff; --roof: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --dim: #98a2ab; --line: #363d44; --page: #14171a; --panel: #1c2024;
          --roof: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, pre { margin: .4rem 0; }
.dim { color: var(--dim); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--panel); padding: .7rem;
      border: 1px solid var(--line); border-radius: 6px; font-size: 13px; max-height: 14rem;
      overflow: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; background: var(--panel);
        border: 1px solid var(--line); }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr.sum td { font-weight: 600; }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .4em; }
.bar { display: inline-block; height: .6em; background: var(--dim); border-radius: 2px;
       margin-left: .5em; vertical-align: baseline; }
#timeline { position: relative; border: 1px solid var(--line); border-radius: 6px; height: 190px;
            background: var(--panel); touch-action: none; cursor: grab; outline-offset: 2px; }
#timeline canvas { display: block; width: 100%; height: 100%; }
#tip { position: absolute; pointer-events: none; display: none; background: var(--ink);
       color: var(--page); padding: .3rem .5rem; border-radius: 4px; font-size: 12px;
       white-space: pre; z-index: 1; }
svg { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; max-width: 100%;
      height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .roof { stroke: var(--roof); stroke-width: 2; fill: none; }
svg .dimtext { fill: var(--dim); }
)css";

// Reads #data: {"names": [[name, hue], ...], "tracks": [{"name", "events": [[name index, begin us,
// us, layer or -1, bytes, FLOPs], ...]}, ...]}; text only ever goes to a canvas or to textContent.
inline constexpr char kPageScript[] = R"js(
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const box = document.getElementById('timeline'), tip = document.getElementById('tip');
  const canvas = box.querySelector('canvas'), pen = canvas.getContext('2d');
  const left = 4, top = 26, rowHeight = 56, barTop = 18, barHeight = 30;
  let end = 1;
  for (const t of data.tracks) for (const e of t.events) end = Math.max(end, e[1] + e[2]);
  let from = 0, to = end;  // microseconds in view
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const time = us => us >= 1e6 ? (us / 1e6).toFixed(3) + ' s' : us >= 1e3 ?
    (us / 1e3).toFixed(3) + ' ms' : us.toFixed(2) + ' us';
  const size = b => b >= 1e9 ? (b / 1e9).toFixed(2) + ' GB' : b >= 1e6 ? (b / 1e6).toFixed(2) +
    ' MB' : (b / 1e3).toFixed(2) + ' kB';

  function draw() {
    const ratio = window.devicePixelRatio || 1, width = box.clientWidth, height = box.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const scale = (width - 2 * left) / (to - from), ink = css('--ink'), dim = css('--dim');
    pen.font = '12px system-ui, sans-serif';
    // A tick every 1, 2 or 5 times a power of ten, some 100 pixels apart.
    const rough = 100 / scale, ten = Math.pow(10, Math.floor(Math.log10(rough)));
    const tick = [1, 2, 5, 10].map(f => f * ten).find(s => s >= rough);
    pen.fillStyle = dim; pen.strokeStyle = css('--line');
    for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
      const x = left + (at - from) * scale;
      pen.beginPath(); pen.moveTo(x, 16); pen.lineTo(x, height); pen.stroke();
      pen.fillText(time(at), x + 3, 12);
    }
    data.tracks.forEach((track, row) => {
      const y = top + row * rowHeight;
      pen.fillStyle = dim; pen.fillText(track.name, left + 2, y + 12);
      let drawn = -1;
      for (const e of track.events) {
        if (e[1] + e[2] < from || e[1] > to) continue;
        const x = left + (e[1] - from) * scale, w = e[2] * scale;
        if (x + w < drawn) continue;  // nothing of it would be seen
        const begin = Math.max(x, 0), wide = Math.max(0.7, Math.min(x + w, width) - begin);
        drawn = begin + wide;
        pen.fillStyle = 'hsl(' + data.names[e[0]][1] + ' 60% 55%)';
        pen.fillRect(begin, y + barTop, wide - (wide > 3 ? 1 : 0), barHeight);
        const name = data.names[e[0]][0];
        if (wide > 14 + 6 * name.length) {
          pen.fillStyle = '#000'; pen.fillText(name, begin + 5, y + barTop + 19);
        }
      }
    });
    pen.fillStyle = ink;
  }
  function zoom(factor, x) {
    const width = box.clientWidth - 2 * left, at = from + (x - left) / width * (to - from);
    let span = Math.min(end, Math.max(0.05, (to - from) * factor));
    from = at - (at - from) / (to - from) * span;
    move(from, span);
  }
  function move(begin, span) {
    from = Math.min(Math.max(0, begin), end - span); to = from + span; draw();
  }
  function hit(x, y) {
    const row = Math.floor((y - top) / rowHeight), track = data.tracks[row];
    if (!track || y < top + row * rowHeight + barTop) return null;
    const scale = (to - from) / (box.clientWidth - 2 * left), at = from + (x - left) * scale;
    let best = null;
    for (const e of track.events) {  // half a pixel to either side
      if (at >= e[1] - scale / 2 && at <= e[1] + e[2] + scale / 2) best = e;
    }
    return best;
  }
  function place(event) {
    const r = box.getBoundingClientRect();
    return [event.clientX - r.left, event.clientY - r.top];
  }
  let grabbed = null;
  box.addEventListener('wheel', event => {
    event.preventDefault();
    zoom(Math.exp(Math.sign(event.deltaY) * 0.25), place(event)[0]);
  }, { passive: false });
  box.addEventListener('pointerdown', event => {
    box.setPointerCapture(event.pointerId);
    grabbed = { x: place(event)[0], from };
    box.style.cursor = 'grabbing';
  });
  box.addEventListener('pointerup', () => { grabbed = null; box.style.cursor = 'grab'; });
  box.addEventListener('pointermove', event => {
    const [x, y] = place(event);
    if (grabbed) {
      const scale = (to - from) / (box.clientWidth - 2 * left);
      move(grabbed.from - (x - grabbed.x) * scale, to - from);
      return;
    }
    const e = hit(x, y);
    tip.style.display = e ? 'block' : 'none';
    if (!e) return;
    let text = data.names[e[0]][0] + (e[3] >= 0 ? ', layer ' + e[3] : '') + '\n' + time(e[2]) +
      ' at ' + time(e[1]);
    if (e[4] > 0) text += '\n' + size(e[4]) + (e[2] > 0 ? ', ' + (e[4] / e[2] / 1e3).toFixed(2) +
      ' GB/s' : '');
    tip.textContent = text;
    tip.style.left = Math.min(x + 12, box.clientWidth - tip.offsetWidth - 4) + 'px';
    tip.style.top = Math.min(y + 12, box.clientHeight - tip.offsetHeight - 4) + 'px';
  });
  box.addEventListener('pointerleave', () => { tip.style.display = 'none'; });
  box.addEventListener('dblclick', () => move(0, end));
  box.addEventListener('keydown', event => {
    const span = to - from, middle = box.clientWidth / 2;
    if (event.key === '+') zoom(0.5, middle);
    else if (event.key === '-') zoom(2, middle);
    else if (event.key === 'ArrowLeft') move(from - span / 5, span);
    else if (event.key === 'ArrowRight') move(from + span / 5, span);
    else if (event.key === '0') move(0, end);
    else return;
    event.preventDefault();
  });
  window.addEventListener('resize', draw);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  draw();
})();
)js";

}  // namespace mr::observe
