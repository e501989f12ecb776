// The open conversation, and answers under way. A conversation whose answer streams may be left and
// opened again: the run belongs to it, not to the page.
const kSaveEvery = 2000;  // ms between saves while an answer streams

const chats = {
  open: null,        // the conversation shown
  views: [],         // one MessageView for each of its messages
  runs: new Map(),   // by conversation id: {chat, message, meter, controller, saved}
  meters: new Map(), // meter of the last answer, by conversation id
  pinned: true,      // the end stays in view

  show(chat) {
    this.open = chat;
    this.views = chat.messages.map(message => new MessageView(message, messageActions));
    byId('messages').replaceChildren(...this.views.map(view => view.node));
    this.drawLastFoot();
    const run = this.runs.get(chat.id);
    if (run) this.viewOf(run.message)?.begin();
    if (!chat.messages.length) byId('messages').append(welcome());
    document.title = (chat.title || t('untitled')) + ' · Millrace';
    this.pinned = true;
    this.scroll();
    app.drawSide();
    app.drawComposer();
    app.drawGauges();
  },

  // Loads it from the browser's storage, unless its answer is under way.
  openId(id) {
    this.show(this.runs.get(id)?.chat ?? store.chat(id) ?? newChat());
  },

  viewOf(message) {
    return this.views.find(view => view.message === message);
  },

  add(message) {
    this.open.messages.push(message);
    const view = new MessageView(message, messageActions);
    this.views.push(view);
    byId('messages').querySelector('.welcome')?.remove();
    byId('messages').append(view.node);
    this.views[this.views.length - 2]?.drawFoot();
    return view;
  },

  // Removes message i and all after it.
  cutAt(i) {
    this.open.messages.splice(i);
    for (const view of this.views.splice(i)) view.node.remove();
    this.drawLastFoot();
  },

  drawLastFoot() {
    this.views[this.views.length - 1]?.drawFoot();
  },

  scroll() {
    const log = byId('log');
    if (this.pinned) log.scrollTop = log.scrollHeight;
    byId('to-end').hidden = this.pinned;
  },

  save(chat) {
    chat.updated = Date.now();
    store.saveChat(chat);
    app.drawSide();
  },

  running() {
    return this.runs.get(this.open.id);
  },

  send(text) {
    if (!text.trim() || this.running()) return;
    this.open.title ||= text.trim().split('\n')[0].slice(0, 60);
    document.title = this.open.title + ' · Millrace';
    this.add({ role: 'user', content: text });
    this.answer();
  },

  // Answers the last message of the open conversation. `tries`: answers so far.
  answer(tries = 0) {
    const message = { role: 'assistant', content: '' };
    if (tries) message.tries = tries;
    const { messages } = this.open;
    const body = requestBody(messages, tries);
    this.add(message);
    this.run(message, body);
  },

  // Continues an answer that was cut off.
  proceed(view) {
    if (this.running()) return;
    const { message } = view;
    delete message.error;
    delete message.end;
    const body = requestBody(this.open.messages, message.tries ?? 0);
    if (!continuesTexts()) body.continue_final_message = true;
    this.run(message, body, message.stats?.tokens ?? 0);
  },

  // `earlier`: tokens that the message has already.
  async run(message, body, earlier = 0) {
    const chat = this.open;
    const run = { chat, message, meter: new Meter(), controller: new AbortController(),
                  saved: performance.now() };
    this.runs.set(chat.id, run);
    this.meters.set(chat.id, run.meter);
    this.viewOf(message).begin();
    if (document.activeElement === document.body) focusInput();  // the button used is gone
    this.pinned = true;
    this.scroll();
    this.save(chat);
    app.drawComposer();
    say(t('answering'));
    try {
      for await (const chunk of completion(body, run.controller.signal)) this.take(run, chunk);
    } catch (error) {
      if (run.controller.signal.aborted) message.end = 'stopped';
      else message.error = error.message;
    }
    this.runs.delete(chat.id);
    message.stats = { ...run.meter.finish() };
    message.stats.tokens += earlier;
    if (store.chats().some(one => one.id === chat.id)) this.save(chat);  // it may be deleted by now
    this.viewOf(message)?.finish();
    this.drawLastFoot();
    this.scroll();
    app.drawComposer();
    app.drawGauges();
    // An answer may be over before the clock has looked once.
    if (app.gaugesOpen()) engine.readMetrics().then(() => app.drawGauges());
    if (!message.error) say(t(message.end === 'stopped' ? 'stopped' : 'answered'));
  },

  take(run, chunk) {
    const { message, meter } = run;
    const choice = chunk.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? '';
    const thought = choice?.delta?.reasoning_content ?? '';
    const view = chat => chat === this.open ? this.viewOf(message) : null;
    if (Array.isArray(chunk.millrace?.block)) view(run.chat)?.showBlock(chunk.millrace.block);
    if (text || thought) {
      meter.arrived(chunk.millrace?.tokens ?? 1);
      message.content += text;
      if (thought) message.thinking = (message.thinking ?? '') + thought;
      if (text && !Array.isArray(chunk.millrace?.block)) view(run.chat)?.showBlock(null);
      view(run.chat)?.grown();
    }
    if (choice?.finish_reason) message.end = choice.finish_reason;
    const own = chunk.millrace ?? chunk.usage?.millrace;
    if (chunk.usage || own) meter.told(chunk.usage, own);
    if (performance.now() - run.saved > kSaveEvery) {
      run.saved = performance.now();
      store.saveChat(run.chat);
    }
  },

  stop() {
    this.running()?.controller.abort();
  },
};

const messageActions = {
  isLast: view => view.message === chats.open.messages[chats.open.messages.length - 1],
  drawn: () => chats.scroll(),
  proceed: view => chats.proceed(view),

  regenerate(view) {
    if (chats.running()) return;
    chats.cutAt(chats.views.indexOf(view));
    chats.answer((view.message.tries ?? 0) + 1);
  },

  // A user's message is sent again; an edited answer is kept.
  edited(view, text) {
    if (chats.running()) return;
    if (view.message.role === 'user' && text.trim()) {
      view.message.content = text;
      view.draw();
      chats.cutAt(chats.views.indexOf(view) + 1);
      chats.answer();
    } else if (view.message.role === 'assistant') {
      view.message.content = text;
      delete view.message.end;
      view.draw();
      chats.save(chats.open);
    }
  },
};

const continuesTexts = () => Boolean(engine.props.continues_texts);

// What a model that continues texts goes on with: everything since a text came to its end. A new
// piece is apart from the one before it.
function textSoFar(messages) {
  let text = '';
  let ended = false;
  for (const { role, content, end } of messages) {
    if (role === 'user' && ended) text = '';
    const apart = role === 'user' && text && !/\s$/.test(text) && !/^\s/.test(content);
    text += (apart ? ' ' : '') + content;
    ended = role === 'assistant' && end === 'stop';
  }
  return text;
}

// Only settings of the user are sent: the server has its own defaults. The same seed would give the
// same answer again, so each further try uses the next one.
function requestBody(messages, tries) {
  const { settings } = app;
  const sent = messages.filter(one => one.content).map(({ role, content }) => ({ role, content }));
  if (settings.system.trim()) sent.unshift({ role: 'system', content: settings.system });
  const body = continuesTexts() ? { prompt: textSoFar(messages) } : { messages: sent };
  if (app.model()) body.model = app.model();
  for (const name of ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed']) {
    if (settings[name] !== '') body[name] = Number(settings[name]);
  }
  if (body.seed !== undefined) body.seed += tries;
  return body;
}

function welcome() {
  if (continuesTexts()) return welcomeText();
  return h('div', { class: 'welcome' }, icon('wave'), h('p', {}, t('welcome')),
           h('p', { class: 'dim' }, t('welcomeBelow')));
}

// For a model without a chat format: what it does, and beginnings to try.
function welcomeText() {
  const { beginnings } = engine.props;
  const buttons = (Array.isArray(beginnings) ? beginnings : []).map(beginning =>
    h('button', { type: 'button', class: 'wide-button beginning',
                  onclick: () => chats.send(String(beginning)) }, `${beginning} …`));
  return h('div', { class: 'welcome' }, icon('wave'), h('p', {}, t('welcomeText')),
           h('p', { class: 'dim' }, t('welcomeTextBelow')),
           h('div', { class: 'beginnings', role: 'group', 'aria-label': t('beginnings') }, buttons));
}
