// What ran when: a row of bars for each track, on a canvas that a reader moves about in.

// A bar is [index of its name, begin, seconds, layer or -1, bytes, FLOPs].
class TimelineView {
  constructor(timeline) {
    this.timeline = timeline;
    const ends = timeline.tracks.flatMap(track => track.bars.map(bar => bar[1] + bar[2]));
    this.end = ends.reduce((a, b) => Math.max(a, b), timeline.seconds) || 1;
    [this.from, this.to] = [0, this.end];  // seconds in view
    this.canvas = element('canvas');
    this.box = element('div', { className: 'timeline', tabIndex: 0 }, this.canvas);
    this.box.setAttribute('role', 'img');
    this.box.setAttribute('aria-label', 'Timeline: ' + timeline.title);
    this.height = 22 + 42 * timeline.tracks.length;
    this.canvas.style.height = this.height + 'px';
    const tools = [['Zoom in', () => this.zoom(0.5)], ['Zoom out', () => this.zoom(2)],
      ['All', () => this.move(0, this.end)]].map(([name, act]) => {
      const button = element('button', { type: 'button', onclick: act }, name);
      button.setAttribute('aria-label', `${name}: ${timeline.title}`);
      return button;
    });
    this.figure = element('figure', {}, this.box, element('div', { className: 'tools' }, tools,
      behind(timeline.title, () => timelineTable(timeline))));
    this.tip = new Tip(this.figure);
    this.listen();
  }

  rowTop(row) {
    return 22 + 42 * row;
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, width = this.box.clientWidth;
    if (!width) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const pen = this.canvas.getContext('2d');
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = '12px system-ui, sans-serif';
    const css = name => getComputedStyle(this.box).getPropertyValue(name).trim();
    const scale = width / (this.to - this.from);
    const tick = roundStep(100 / scale);
    pen.strokeStyle = css('--line');
    pen.fillStyle = css('--dim');
    for (let at = Math.ceil(this.from / tick) * tick; at <= this.to; at += tick) {
      const x = (at - this.from) * scale;
      pen.beginPath();
      pen.moveTo(x, 16);
      pen.lineTo(x, this.height);
      pen.stroke();
      pen.fillText(at === 0 ? '0' : UNITS.seconds(at), x + 3, 12);
    }
    this.timeline.tracks.forEach((track, row) => {
      pen.fillStyle = css('--dim');
      pen.fillText(track.name, 4, this.rowTop(row) + 12);
      this.drawBars(pen, track, this.rowTop(row) + 16, scale, width);
    });
  }

  drawBars(pen, track, y, scale, width) {
    let drawn = -1;
    track.bars.forEach((bar, i) => {
      const x = (bar[1] - this.from) * scale, end = x + bar[2] * scale;
      if (end < 0 || x > width || end < drawn) return;  // nothing of it would be seen
      const begin = Math.max(x, 0), wide = Math.max(0.7, Math.min(end, width) - begin);
      const name = this.timeline.names[bar[0]];
      // Neighbours of one name differ in lightness.
      const same = track.bars[i - 1]?.[0] === bar[0] && i % 2 === 1;
      drawn = begin + wide;
      pen.fillStyle = colorOf(name, same ? 65 : 55);
      pen.fillRect(begin, y, wide - (wide > 3 ? 1 : 0), 22);
      if (wide > 14 + 6.5 * name.length) {
        pen.fillStyle = '#000';
        pen.fillText(name, begin + 5, y + 15);
      }
    });
  }

  zoom(factor, x = this.box.clientWidth / 2) {
    const share = x / this.box.clientWidth, at = this.from + share * (this.to - this.from);
    const span = Math.min(this.end, Math.max(5e-8, (this.to - this.from) * factor));
    this.move(at - share * span, span);
  }

  move(begin, span) {
    this.from = Math.min(Math.max(0, begin), this.end - span);
    this.to = this.from + span;
    this.draw();
  }

  hit(x, y) {
    const track = this.timeline.tracks[Math.floor((y - 22) / 42)];
    if (!track || (y - 22) % 42 < 16) return null;
    const scale = (this.to - this.from) / this.box.clientWidth, at = this.from + x * scale;
    // Half a pixel to either side.
    return track.bars.findLast(bar =>
      at >= bar[1] - scale / 2 && at <= bar[1] + bar[2] + scale / 2) ?? null;
  }

  barText([name, begin, seconds, layer, bytes]) {
    const title = this.timeline.names[name] + (layer >= 0 ? `, layer ${layer}` : '');
    const rate = seconds > 0 ? `, ${figure(bytes / seconds / 1e9)} GB/s` : '';
    return `${title}\n${UNITS.seconds(seconds)} at ${UNITS.seconds(begin)}` +
      (bytes > 0 ? `\n${UNITS.bytes(bytes)}${rate}` : '');
  }

  listen() {
    const place = event => {
      const frame = this.box.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    let grabbed = null;
    this.box.addEventListener('wheel', event => {
      if (!event.ctrlKey && document.activeElement !== this.box) return;  // the page scrolls
      event.preventDefault();
      this.zoom(Math.exp(Math.sign(event.deltaY) * 0.25), place(event)[0]);
    }, { passive: false });
    this.box.addEventListener('pointerdown', event => {
      this.box.setPointerCapture(event.pointerId);
      grabbed = { x: place(event)[0], from: this.from };
    });
    for (const end of ['pointerup', 'pointercancel']) {
      this.box.addEventListener(end, () => { grabbed = null; });
    }
    this.box.addEventListener('pointermove', event => {
      const [x, y] = place(event), span = this.to - this.from;
      if (grabbed) {
        this.move(grabbed.from - (x - grabbed.x) * span / this.box.clientWidth, span);
        return;
      }
      const bar = this.hit(x, y);
      if (bar) this.tip.show(this.barText(bar), event.clientX, event.clientY);
      else this.tip.hide();
    });
    this.box.addEventListener('pointerleave', () => this.tip.hide());
    this.box.addEventListener('dblclick', () => this.move(0, this.end));
    this.box.addEventListener('keydown', event => {
      const span = this.to - this.from;
      const act = { '+': () => this.zoom(0.5), '-': () => this.zoom(2),
        0: () => this.move(0, this.end), ArrowLeft: () => this.move(this.from - span / 5, span),
        ArrowRight: () => this.move(this.from + span / 5, span) }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
    new ResizeObserver(() => this.draw()).observe(this.box);
    for (const query of ['(prefers-color-scheme: dark)', 'print']) {
      window.matchMedia(query).addEventListener('change', () => this.draw());
    }
  }
}

// What the bars add up to, by track and name.
function timelineTable(timeline) {
  const rows = new Map();
  for (const track of timeline.tracks) {
    for (const [name, begin, seconds, , bytes] of track.bars) {
      const key = `${track.name}\n${name}`;
      const cells = rows.get(key) ?? [timeline.names[name], track.name, 0, 0, begin, 0, 0];
      cells[2] += 1;
      cells[3] += seconds;
      cells[5] = Math.max(cells[5], begin + seconds);
      cells[6] += bytes;
      rows.set(key, cells);
    }
  }
  return { keys: true, columns: [['what', 'plain'], ['track', 'plain'], ['bars', 'plain'],
    ['time', 'seconds'], ['first begin', 'seconds'], ['last end', 'seconds'], ['bytes', 'bytes']]
    .map(([name, unit]) => ({ name, unit })), rows: [...rows.values()].map(cells => ({ cells })) };
}

function showTimeline(timeline) {
  return [new TimelineView(timeline).figure, ...notesOf(timeline.notes)];
}
