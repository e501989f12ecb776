// The engine panel: this answer's figures, measured here or sent by the server, and the server's
// own from /props and /metrics. Any figure may be missing; those that are there are shown.

// Figures of one answer. Times are performance.now() in milliseconds.
class Meter {
  constructor() {
    this.begin = performance.now();
    this.first = 0;
    this.tokens = 0;
    this.arrivals = [];  // [time, tokens so far] of the last two seconds
    this.curve = [];     // tok/s, one value each quarter of a second
    this.stats = {};
    this.work = engine.work;  // of the server as it began, and at the first look after its end
    this.lastWork = null;
    this.over = Infinity;
  }

  // Bytes per second that passes read which make tokens, from the beginning of this answer to its
  // end; null: not known yet. Neither prompts nor idle time are in it, so that the figure of one
  // steady answer is steady.
  traffic() {
    if (engine.looked > this.over) this.lastWork ??= engine.work;
    const now = this.lastWork ?? engine.work;
    const seconds = now && this.work ? now[1] - this.work[1] : 0;
    return seconds > 0 ? (now[0] - this.work[0]) / seconds : null;
  }

  // A chunk with text. A server that sends several tokens at once says so in millrace.tokens.
  arrived(tokens) {
    const now = performance.now();
    this.first ||= now;
    this.tokens += tokens;
    this.arrivals.push([now, this.tokens]);
    while (this.arrivals[0][0] < now - 2000) this.arrivals.shift();
  }

  // Over the last two seconds; without the first token, which is the prompt's work.
  rate() {
    if (this.stats.rate) return this.stats.rate;
    if (this.arrivals.length < 2) return 0;
    const [time, tokens] = this.arrivals[0];
    const latest = this.arrivals[this.arrivals.length - 1][0];
    const span = Math.max(latest, performance.now() - 250) - time;
    return span > 0 ? (this.tokens - tokens) * 1000 / span : 0;
  }

  sample() {
    if (this.first) this.curve = [...this.curve.slice(-239), this.rate()];
  }

  // The last chunk: usage in OpenAI's format, and the server's own figures.
  told(usage, own) {
    const put = (name, value) => {
      if (Number.isFinite(value) && value >= 0) this.stats[name] = value;
    };
    put('prompt', usage?.prompt_tokens);
    put('tokens', usage?.completion_tokens);
    put('cached', usage?.prompt_tokens_details?.cached_tokens);
    put('ttft', own?.ttft_ms ?? 1000 * own?.first_token_s);
    put('rate', own?.tokens_per_s ?? (usage?.completion_tokens - 1) / own?.decode_s);
    put('bytes', own?.bytes_per_token);
    put('batch', own?.batch);
    put('steps', own?.steps);
  }

  finish() {
    this.over = performance.now();
    const stats = this.stats;
    const last = this.arrivals[this.arrivals.length - 1];
    stats.tokens ??= this.tokens;
    if (this.first) stats.ttft ??= this.first - this.begin;
    if (last && last[0] > this.first && stats.tokens > 1) {
      stats.rate ??= (stats.tokens - 1) * 1000 / (last[0] - this.first);
    }
    return stats;
  }
}

const grouped = (value, digits = 0) => value.toLocaleString(language === 'zh' ? 'zh-CN' : 'en-US',
  { minimumFractionDigits: digits, maximumFractionDigits: digits });
const short = value => grouped(value, value >= 100 ? 0 : value >= 10 ? 1 : 2);
const percent = share => grouped(100 * share, share > 0 && share < 0.1 ? 1 : 0) + '%';
const duration = ms => ms >= 1000 ? short(ms / 1000) + ' s' : short(ms) + ' ms';

function bytes(value, binary = false) {
  const step = binary ? 1024 : 1000;
  const units = binary ? ['B', 'KiB', 'MiB', 'GiB', 'TiB'] : ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  for (; value >= step && unit < units.length - 1; unit++) value /= step;
  return (unit ? short(value) : grouped(value)) + ' ' + units[unit];
}

// Prometheus text: the sum over labels of each name, without the prefix before the colon.
function parseMetrics(text) {
  const sums = new Map();
  for (const line of text.split('\n')) {
    const match = /^(?:[a-z]+:|millrace_)?([A-Za-z_]\w*)(?:\{[^}]*\})?\s+(\S+)/.exec(line);
    if (match && Number.isFinite(Number(match[2]))) {
      sums.set(match[1], (sums.get(match[1]) ?? 0) + Number(match[2]));
    }
  }
  return sums;
}

const engine = {
  props: {},
  metrics: new Map(),
  rate: null,      // tok/s of all requests, between the last two looks
  work: null,      // [bytes read, seconds] of all passes that made tokens; null: unknown
  looked: 0,       // when the last look began
  seen: null,      // [time, tokens] of the last look
  quiet: false,    // the server has no /metrics
  curve: [],

  metric(...names) {
    for (const name of names) if (this.metrics.has(name)) return this.metrics.get(name);
    return null;
  },

  async readProps() {
    try {
      const props = await (await request('props')).json();
      if (props && typeof props === 'object') this.props = props;
    } catch { /* shown by the first answer that fails */ }
  },

  async readMetrics() {
    if (this.quiet) return;
    const looked = performance.now();
    try {
      this.metrics = parseMetrics(await (await request('metrics')).text());
    } catch (error) {
      this.quiet = error.status === 404;
      return;
    }
    const tokens = this.metric('generation_tokens_total');
    const read = this.metric('decode_bytes_read_total');
    const spent = this.metric('decode_seconds_total');
    this.work = read !== null && spent !== null ? [read, spent] : null;
    this.looked = looked;
    const now = performance.now();
    if (tokens !== null) {
      if (this.seen && tokens >= this.seen[1] && now > this.seen[0]) {
        this.rate = (tokens - this.seen[1]) * 1000 / (now - this.seen[0]);
        this.curve = [...this.curve.slice(-119), this.rate];
      }
      this.seen = [now, tokens];
    }
  },
};

// One line of the panel: a name, a value, and where there is one a bar from 0 to 1 or a curve.
function gaugeRow(name, value, { share = null, curve = null, note = '' } = {}) {
  const row = h('div', { class: 'gauge' },
    h('dt', {}, name), h('dd', {}, value, note ? h('small', {}, note) : null));
  if (share !== null && Number.isFinite(share)) {
    const fill = h('i');
    fill.style.width = 100 * Math.min(1, Math.max(0, share)) + '%';
    row.append(h('dd', { class: 'meter', 'aria-hidden': 'true' }, fill));
  }
  if (curve && curve.length > 1) row.append(h('dd', { class: 'curve', 'aria-hidden': 'true' },
                                              drawCurve(curve)));
  return row;
}

function drawCurve(values) {
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  svg.setAttribute('viewBox', '0 0 100 28');
  svg.setAttribute('preserveAspectRatio', 'none');
  const line = document.createElementNS(space, 'polyline');
  const most = Math.max(...values, 1e-9);
  const step = 100 / Math.max(values.length - 1, 40);
  line.setAttribute('points', values.map((value, i) =>
    `${(i * step).toFixed(1)},${(27 - 25 * value / most).toFixed(1)}`).join(' '));
  svg.append(line);
  return svg;
}

function answerGauges(meter) {
  const { stats } = meter;
  const rows = [];
  const rate = meter.rate();
  if (rate) rows.push(gaugeRow(t('speed'), `${short(rate)} ${t('tokensPerSecond')}`,
                               { curve: meter.curve }));
  const first = stats.ttft ?? (meter.first ? meter.first - meter.begin : 0);
  if (first) rows.push(gaugeRow(t('firstToken'), duration(first)));
  rows.push(...roofGauge(meter));
  if (stats.prompt !== undefined) {
    rows.push(gaugeRow(t('tokensIn'), `${grouped(stats.prompt)} ${t('tokens')}`,
      { note: stats.cached ? t('cachedTokens', { count: grouped(stats.cached) }) : '' }));
  }
  const made = stats.tokens ?? meter.tokens;
  if (made) rows.push(gaugeRow(t('tokensOut'), `${grouped(made)} ${t('tokens')}`));
  if (stats.steps) rows.push(gaugeRow(t('steps'), grouped(stats.steps)));
  const most = contextLength();
  if (most && stats.prompt !== undefined) {
    const used = stats.prompt + made;
    rows.push(gaugeRow(t('context'), `${grouped(used)} / ${grouped(most)}`,
                       { share: used / most }));
  }
  return rows;
}

function contextLength() {
  return engine.props.context ?? engine.props.n_ctx ?? app.contextOf(app.model()) ?? 0;
}

// Memory bandwidth limits a token: the bytes that passes read each second / what the machine can read.
// What fits into the cache is not read from memory.
function roofGauge(meter) {
  const size = meter.stats.bytes ?? engine.props.bytes_per_token ?? 0;
  const roof = engine.props.roof?.bytes_per_s;
  const traffic = meter.traffic();
  const each = size ? [t('perToken', { size: bytes(size) })] : [];
  if (engine.props.in_cache) {
    return each.map(text => gaugeRow(t('roof'), text, { note: t('inCache') }));
  }
  if (!roof || !traffic) return each.map(text => gaugeRow(t('roof'), text));
  if (traffic > roof) {
    return [gaugeRow(t('roof'), bytes(traffic) + '/s',
      { note: [...each, t('disturbed', { roof: bytes(roof) + '/s' })].join('\n') })];
  }
  const now = t('ofRoof', { now: bytes(traffic) + '/s', roof: bytes(roof) + '/s' });
  return [gaugeRow(t('roof'), percent(traffic / roof),
                   { share: traffic / roof, note: [...each, now].join('\n') })];
}

function serverGauges() {
  const rows = [];
  const { device, format } = engine.props;
  if (device) rows.push(gaugeRow(t('device'), [device, format].filter(Boolean).join(' · ')));
  if (engine.rate !== null) {
    rows.push(gaugeRow(t('allSpeed'), `${short(engine.rate)} ${t('tokensPerSecond')}`,
                       { curve: engine.curve }));
  }
  const running = engine.metric('num_requests_running');
  const waiting = engine.metric('num_requests_waiting');
  const most = engine.props.sequences ?? engine.metric('sequences');
  if (running !== null) {
    rows.push(gaugeRow(t('batch'), most ?
      t('sequences', { count: grouped(running), most: grouped(most) }) :
      t('running', { count: grouped(running) }),
      { share: most ? running / most : null,
        note: waiting ? t('waiting', { count: grouped(waiting) }) : '' }));
  }
  const cache = engine.metric('kv_cache_usage_perc', 'gpu_cache_usage_perc');
  if (cache !== null) rows.push(gaugeRow(t('cache'), percent(cache), { share: cache }));
  const asked = engine.metric('prefix_cache_queries_total');
  const found = engine.metric('prefix_cache_hits_total');
  if (asked && found !== null) {
    rows.push(gaugeRow(t('prefixHits'), percent(found / asked), { share: found / asked }));
  }
  return rows;
}

// props.memory: {items: [{name, bytes}], total, capacity}
function memoryGauges() {
  const plan = engine.props.memory;
  const items = Array.isArray(plan?.items) ? plan.items.filter(one => one?.bytes > 0) : [];
  if (!items.length) return [];
  const total = plan.total ?? items.reduce((sum, one) => sum + one.bytes, 0);
  const all = Math.max(plan.capacity ?? 0, total);
  const bar = h('div', { class: 'stack', 'aria-hidden': 'true' }, items.map((one, i) => {
    const part = h('i', { class: 'part-' + i % 6 });
    part.style.width = 100 * one.bytes / all + '%';
    return part;
  }));
  const list = h('dl', {}, items.map((one, i) => h('div', { class: 'gauge' },
    h('dt', {}, h('b', { class: 'key part-' + i % 6, 'aria-hidden': 'true' }), String(one.name)),
    h('dd', {}, bytes(one.bytes, true)))));
  list.append(gaugeRow(t('inAll'), plan.capacity ?
    t('ofRoof', { now: bytes(total, true), roof: bytes(plan.capacity, true) }) :
    bytes(total, true)));
  return [h('section', {}, h('h3', {}, t('memory')), bar, list)];
}

function drawGauges(meter) {
  const section = (title, rows) => rows.length ?
    [h('section', {}, h('h3', {}, title), h('dl', {}, rows))] : [];
  const parts = [...section(t('lastAnswer'), meter ? answerGauges(meter) : []),
                 ...section(t('server'), serverGauges()), ...memoryGauges()];
  if (!parts.length) parts.push(h('p', { class: 'dim' }, t('noGauges')));
  morph(byId('gauge-list'), h('div', { id: 'gauge-list' }, parts));
}
