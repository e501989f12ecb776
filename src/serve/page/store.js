// The browser's storage: settings, a list of conversations, and each conversation separately, so
// that saving one does not write the others.
//   millrace.settings   {system, temperature, ..., theme, language}
//   millrace.chats      [{id, title, updated}], newest first
//   millrace.chat.ID    {id, title, updated, messages: [{role, content, ...}]}
//   millrace.key        the API key; in sessionStorage unless the user wants it kept
const store = {
  memory: new Map(),  // where the browser refuses storage

  read(key, fallback) {
    try {
      const text = this.memory.get(key) ?? localStorage.getItem(key);
      return text ? JSON.parse(text) : fallback;
    } catch {
      return fallback;
    }
  },

  write(key, value) {
    const text = JSON.stringify(value);
    try {
      localStorage.setItem(key, text);
      this.memory.delete(key);
      return true;
    } catch (error) {
      const first = this.memory.size === 0;
      this.memory.set(key, text);
      if (first) notice(t(error.name === 'QuotaExceededError' ? 'full' : 'noStore'));
      return false;
    }
  },

  remove(key) {
    this.memory.delete(key);
    try {
      localStorage.removeItem(key);
    } catch { /* it was in memory alone */ }
  },

  chats() {
    const list = this.read('millrace.chats', []);
    return Array.isArray(list) ? list.filter(one => one && typeof one.id === 'string') : [];
  },

  chat(id) {
    return checkedChat(this.read('millrace.chat.' + id, null));
  },

  saveChat(chat) {
    this.write('millrace.chat.' + chat.id, chat);
    const { id, title, updated } = chat;
    const others = this.chats().filter(one => one.id !== id);
    this.write('millrace.chats', [...others, { id, title, updated }]
      .sort((a, b) => b.updated - a.updated));
  },

  removeChat(id) {
    this.write('millrace.chats', this.chats().filter(one => one.id !== id));
    this.remove('millrace.chat.' + id);
  },

  key() {
    try {
      return sessionStorage.getItem('millrace.key') ?? localStorage.getItem('millrace.key') ?? '';
    } catch {
      return this.memory.get('key') ?? '';
    }
  },

  saveKey(key, remember) {
    try {
      sessionStorage.removeItem('millrace.key');
      localStorage.removeItem('millrace.key');
      if (key) (remember ? localStorage : sessionStorage).setItem('millrace.key', key);
    } catch {
      this.memory.set('key', key);
    }
  },
};

const defaultSettings = {
  system: '', temperature: '', top_p: '', top_k: '', min_p: '', max_tokens: '', seed: '',
  theme: 'system', language: 'system', remember: false, gauges: null, model: '',
};

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('');
}

function newChat() {
  return { id: newId(), title: '', updated: Date.now(), messages: [] };
}

// `value` as a conversation with only known fields, or null: it may come from any file.
function checkedChat(value) {
  if (!value || typeof value !== 'object' || !Array.isArray(value.messages)) return null;
  const messages = value.messages.filter(one => one && typeof one.content === 'string' &&
    ['user', 'assistant', 'system'].includes(one.role)).map(one => {
    const message = { role: one.role, content: one.content };
    for (const name of ['thinking', 'error', 'end']) {
      if (typeof one[name] === 'string') message[name] = one[name];
    }
    if (Number.isInteger(one.tries)) message.tries = one.tries;
    if (one.stats && typeof one.stats === 'object') {
      message.stats = {};
      for (const [name, number] of Object.entries(one.stats)) {
        if (Number.isFinite(number)) message.stats[name] = number;
      }
    }
    return message;
  });
  return {
    id: /^[0-9a-f]{16}$/.test(value.id) ? value.id : newId(),
    title: typeof value.title === 'string' ? value.title.slice(0, 200) : '',
    updated: Number.isFinite(value.updated) ? value.updated : Date.now(),
    messages,
  };
}

function exported(chats) {
  return { format: 'millrace-chats', version: 1, chats };
}

// Returns how many conversations of a file's text were added; each gets a new id, so none is
// overwritten.
function importChats(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return 0;
  }
  const list = value?.format === 'millrace-chats' && Array.isArray(value.chats) ? value.chats : [];
  const chats = list.map(checkedChat).filter(Boolean);
  for (const chat of chats) store.saveChat({ ...chat, id: newId() });
  return chats.length;
}
