// Joins the parts: buttons and keys, the list of conversations, settings.
const app = {
  settings: { ...defaultSettings, ...store.read('millrace.settings', {}) },
  models: [],

  model() {
    const ids = this.models.map(one => one.id);
    return ids.includes(this.settings.model) ? this.settings.model : ids[0] ?? '';
  },

  contextOf(id) {
    return this.models.find(one => one.id === id)?.max_model_len;
  },

  saveSettings() {
    store.write('millrace.settings', this.settings);
  },

  applyTheme() {
    const dark = this.settings.theme === 'dark' || (this.settings.theme !== 'light' &&
      matchMedia('(prefers-color-scheme: dark)').matches);
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  },

  applyLanguage() {
    setLanguage(this.settings.language);
    if (chats.open) chats.show(chats.open);
  },

  // What the open page says depends on what the model does: it answers, or it continues texts.
  applyModel() {
    const continues = continuesTexts();
    byId('app').classList.toggle('continues', continues);
    const input = byId('input');
    input.dataset.placeholder = continues ? 'placeholderText' : 'placeholder';
    input.dataset.label = continues ? 'yourText' : 'yourMessage';
    // A text has no system prompt.
    byId('settings-form').elements.system.closest('label').hidden = continues;
    this.applyLanguage();
  },

  drawComposer() {
    const running = Boolean(chats.running());
    byId('send').hidden = running;
    byId('stop').hidden = !running;
    byId('app').classList.toggle('running', running);
  },

  // Keeps the focus, and does not touch a name that is being edited.
  drawSide() {
    const list = byId('chats');
    if (list.querySelector('.rename')) return;
    const item = document.activeElement?.closest('#chats li');
    const place = item ? [...item.querySelectorAll('button')].indexOf(document.activeElement) : -1;
    list.replaceChildren(...store.chats().map(drawChatItem));
    if (place < 0) return;
    const again = [...list.children].find(one => one.dataset.id === item.dataset.id);
    (again?.querySelectorAll('button')[place] ?? byId('new')).focus();
  },

  gaugesOpen() {
    return this.settings.gauges ?? matchMedia('(min-width: 1200px)').matches;
  },

  drawGauges() {
    const open = this.gaugesOpen();
    byId('gauges').hidden = !open;
    byId('gauges-toggle').setAttribute('aria-expanded', String(open));
    if (open && chats.open) drawGauges(chats.meters.get(chats.open.id));
  },

  toggleGauges(open) {
    this.settings.gauges = open;
    this.saveSettings();
    this.drawGauges();
    if (open) engine.readMetrics().then(() => this.drawGauges());
    byId(open ? 'gauges-close' : 'gauges-toggle').focus();
  },

  toggleSide(open) {
    byId('app').classList.toggle('side-open', open);
    byId('menu').setAttribute('aria-expanded', String(open));
    if (open) byId('side-close').focus();
  },

  async readModels() {
    try {
      const { data } = await (await request('v1/models')).json();
      this.models = Array.isArray(data) ? data.filter(one => typeof one?.id === 'string') : [];
    } catch (error) {  // other errors are shown by the first answer that fails
      if (error.status === 401) notice(error.message, t('settings'), () =>
        byId('open-settings').click());
    }
    const select = byId('model');
    select.replaceChildren(...this.models.map(one =>
      h('option', { value: one.id, selected: one.id === this.model() }, one.id)));
    select.hidden = this.models.length < 2;
    byId('model-name').textContent = this.models.length === 1 ? this.model() : 'Millrace';
    byId('model-name').classList.toggle('unseen', this.models.length > 1);
  },
};

function drawChatItem({ id, title }) {
  const name = title || t('untitled');
  const button = h('button', { type: 'button', class: 'chat', title: name,
    'aria-current': id === chats.open?.id ? 'true' : null, onclick: () => {
      if (id !== chats.open.id) chats.openId(id);
      app.toggleSide(false);
    } }, name);
  const item = h('li', { 'data-id': id }, button, h('span', { class: 'chat-actions' },
    iconButton('edit', `${t('rename')}: ${name}`, () => renameChat(item, id, title)),
    iconButton('export', `${t('exportOne')}: ${name}`, () =>
      download(`millrace-${id}.json`, exported([store.chat(id)]))),
    iconButton('trash', `${t('remove')}: ${name}`, () => deleteChat(id))));
  return item;
}

function renameChat(item, id, title) {
  const input = h('input', { class: 'rename', value: title, maxlength: 200,
                             'aria-label': t('rename') });
  const done = keep => {
    input.onblur = null;
    input.remove();
    const chat = id === chats.open.id ? chats.open : store.chat(id);
    if (keep && chat && input.value.trim()) {
      chat.title = input.value.trim();
      store.saveChat(chat);
      if (chat === chats.open) document.title = chat.title + ' · Millrace';
    }
    app.drawSide();
  };
  input.onblur = () => done(true);
  input.addEventListener('keydown', event => {
    if (event.isComposing || !['Enter', 'Escape'].includes(event.key)) return;
    event.stopPropagation();
    done(event.key === 'Enter');
    byId('chats').querySelector(`[data-id="${id}"] button`)?.focus();
  });
  item.replaceChildren(input);
  input.select();
}

function deleteChat(id) {
  const chat = id === chats.open.id ? chats.open : store.chat(id);
  chats.runs.get(id)?.controller.abort();
  store.removeChat(id);
  if (id === chats.open.id) chats.show(newChat());
  app.drawSide();
  if (!chat) return;
  notice(t('removed'), t('undo'), () => {
    store.saveChat(chat);
    chats.openId(id);
  });
}

function wireSettings() {
  const form = byId('settings-form');
  const dialog = byId('settings');
  const open = () => {
    for (const field of form.elements) {
      if (!field.name) continue;
      if (field.type === 'checkbox') field.checked = Boolean(app.settings[field.name]);
      else field.value = field.name === 'key' ? store.key() : app.settings[field.name];
    }
    app.toggleSide(false);
    dialog.showModal();
    form.elements[continuesTexts() ? 'temperature' : 'system'].focus();
  };
  byId('open-settings').onclick = open;
  byId('settings-close').onclick = () => dialog.close();
  dialog.addEventListener('click', event => {
    if (event.target === dialog) dialog.close();  // beside it
  });
  form.addEventListener('submit', event => {
    event.preventDefault();
    dialog.close();
  });
  form.addEventListener('input', ({ target }) => {
    if (!target.name || !target.validity.valid) return;
    if (target.name !== 'key') {
      app.settings[target.name] = target.type === 'checkbox' ? target.checked : target.value;
      app.saveSettings();
    }
    if (['key', 'remember'].includes(target.name)) {
      store.saveKey(form.elements.key.value.trim(), app.settings.remember);
    }
    if (target.name === 'theme') app.applyTheme();
    if (target.name === 'language') app.applyLanguage();
  });
  dialog.addEventListener('close', () => {
    app.readModels();
    engine.quiet = false;
    engine.readProps().then(() => app.applyModel());
  });
}

// Not with a finger: a phone would bring up its keyboard.
function focusInput() {
  if (!matchMedia('(pointer: coarse)').matches) byId('input').focus();
}

function wireComposer() {
  const input = byId('input');
  const send = () => {
    const text = input.value;
    if (!text.trim() || chats.running()) return;
    input.value = '';
    fitHeight(input, 240);
    chats.send(text);
  };
  byId('composer').addEventListener('submit', event => {
    event.preventDefault();
    send();
  });
  input.addEventListener('input', () => fitHeight(input, 240));
  input.addEventListener('keydown', event => {
    if (event.isComposing) return;  // Enter belongs to the input method
    if (event.key === 'Enter' && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === 'ArrowUp' && !input.value && !chats.running()) {
      const view = chats.views.findLast(one => one.message.role === 'user');
      if (view) {
        event.preventDefault();
        view.edit();
      }
    }
  });
  byId('stop').onclick = () => {
    chats.stop();
    focusInput();
  };
}

function wirePage() {
  byId('new').onclick = () => {
    chats.show(newChat());
    app.toggleSide(false);
    focusInput();
  };
  byId('export').onclick = () => download('millrace-chats.json', exported(
    store.chats().map(one => store.chat(one.id)).filter(Boolean)));
  byId('import').onclick = () => byId('import-file').click();
  byId('import-file').addEventListener('change', async ({ target }) => {
    const count = target.files.length ? importChats(await target.files[0].text()) : 0;
    target.value = '';
    notice(count ? t('imported', { count }) : t('badImport'));
    app.drawSide();
  });
  byId('menu').onclick = () => app.toggleSide(true);
  byId('side-close').onclick = () => {
    app.toggleSide(false);
    byId('menu').focus();
  };
  byId('gauges-toggle').onclick = () => app.toggleGauges(!app.gaugesOpen());
  byId('gauges-close').onclick = () => app.toggleGauges(false);
  byId('model').addEventListener('change', ({ target }) => {
    app.settings.model = target.value;
    app.saveSettings();
  });
  document.addEventListener('keydown', event => {
    if (event.key !== 'Escape' || event.isComposing || byId('settings').open) return;
    if (byId('app').classList.contains('side-open')) byId('side-close').click();
    else if (chats.running()) chats.stop();
    else if (app.gaugesOpen() && getComputedStyle(byId('gauges')).position === 'fixed') {
      app.toggleGauges(false);  // where it lies over the conversation
    }
  });
  byId('app').addEventListener('click', event => {
    if (event.target === byId('app')) app.toggleSide(false);  // beside the open list, on a phone
  });
  wireScroll();
}

function wireScroll() {
  const log = byId('log');
  let top = 0;
  log.addEventListener('scroll', () => {
    const left = log.scrollHeight - log.clientHeight - log.scrollTop;
    if (left < 8) chats.pinned = true;
    else if (log.scrollTop < top - 2) chats.pinned = false;  // only the user goes up
    top = log.scrollTop;
    byId('to-end').hidden = chats.pinned || left < 8;
  }, { passive: true });
  byId('to-end').onclick = () => {
    chats.pinned = true;
    chats.scroll();
  };
  new ResizeObserver(() => chats.scroll()).observe(byId('messages'));
}

// Updates figures of the answer four times per second, of the server once per second while it
// works, and once after it has ended.
function wireClock() {
  let tick = 0;
  let worked = false;
  setInterval(async () => {
    if (document.hidden || !app.gaugesOpen()) return;
    const running = chats.running();
    tick++;
    running?.meter.sample();
    const due = tick % (running ? 4 : 16) === 0 || (worked && !running);
    worked = Boolean(running);
    if (due) await engine.readMetrics();
    else if (!running) return;
    app.drawGauges();
  }, 250);
}

// Other tabs with this page share the browser's storage.
function wireTabs() {
  addEventListener('storage', ({ key }) => {
    if (key === 'millrace.chats') app.drawSide();
    if (key === 'millrace.chat.' + chats.open.id && !chats.running()) chats.openId(chats.open.id);
  });
  addEventListener('pagehide', () => {
    for (const { chat } of chats.runs.values()) store.saveChat(chat);
  });
}

app.applyTheme();
app.applyLanguage();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => app.applyTheme());
wireSettings();
wireComposer();
wirePage();
wireTabs();
wireClock();
chats.openId(store.chats()[0]?.id);
focusInput();
app.readModels();
Promise.all([engine.readProps(), engine.readMetrics()]).then(() => app.applyModel());
