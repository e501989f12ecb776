// One message on the page. `actions`: callbacks of its buttons, by name.
class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.body = h('div', { class: 'body' });
    this.foot = h('div', { class: 'actions', role: 'group' });
    this.node = h('article', { class: 'message ' + message.role },
      h('h2', { class: 'unseen' }, roleName(message)),
      this.body, this.foot);
    this.draw();
  }

  // Redraws everything: when it appears, and after an edit.
  draw() {
    this.body.replaceChildren();
    this.thought = null;
    this.block = null;
    this.markdown = null;
    if (this.message.role === 'user') this.body.append(h('div', { class: 'said' },
                                                         this.message.content));
    else this.drawAnswer(!this.live);
    this.drawFoot();
  }

  // More text will come. Existing text is not read out.
  begin() {
    this.live = true;
    this.node.setAttribute('aria-busy', 'true');
    this.spoken = false;
    this.draw();
    this.spoken = true;
  }

  finish() {
    this.showBlock(null);
    this.drawAnswer(true);
    this.live = this.spoken = false;
    this.node.removeAttribute('aria-busy');
    this.node.classList.remove('waiting');
    this.drawFoot();
  }

  // New text is drawn once per frame, however many chunks brought it.
  grown() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.live) this.drawAnswer(false);
      this.actions.drawn();
    });
  }

  drawAnswer(finished) {
    const { thinking, answer } = splitThinking(this.message);
    if (thinking) this.drawThinking(thinking, answer === '' && this.live);
    if (!this.markdown) {
      const root = h('div', { class: 'markdown' });
      this.body.append(root);
      // While it streams a screen reader hears whole blocks, not tokens.
      this.markdown = new MarkdownView(root, node => {
        if (this.spoken) say(node.textContent);
      });
    }
    this.markdown.update(answer, finished);
    this.node.classList.toggle('waiting', Boolean(this.live) && !answer && !this.block);
  }

  drawThinking(text, open) {
    if (!this.thought) {
      this.thought = h('pre');
      this.details = h('details', { class: 'thinking', open }, h('summary', {}, t('thinking')),
                       this.thought);
      this.body.prepend(this.details);
      this.wasOpen = open;
    }
    if (this.thought.textContent !== text) this.thought.textContent = text;
    if (this.wasOpen && !open) this.details.open = false;
    this.wasOpen = open;
  }

  // A diffusion model's open block: text where a token is settled, null elsewhere.
  showBlock(tokens) {
    if (!tokens) {
      this.block?.remove();
      this.block = null;
      return;
    }
    if (!this.block) {
      this.block = h('div', { class: 'block', role: 'img' });
      this.body.append(this.block);
    }
    while (this.block.children.length > tokens.length) this.block.lastElementChild.remove();
    tokens.forEach((token, i) => {
      const cell = this.block.children[i] ?? this.block.appendChild(h('span'));
      const known = typeof token === 'string';
      const text = known ? token : '\u2007\u2007\u2007';
      if (cell.textContent !== text) cell.textContent = text;
      cell.className = known ? 'known' : 'masked';
    });
    const known = tokens.filter(one => typeof one === 'string').length;
    this.block.setAttribute('aria-label', `${t('block')} ${known} / ${tokens.length}`);
    this.node.classList.remove('waiting');
  }

  drawFoot() {
    const { message, actions } = this;
    this.foot.replaceChildren();
    this.foot.setAttribute('aria-label', roleName(message));
    this.node.querySelector('.trouble')?.remove();
    if (this.live) return;
    const last = actions.isLast(this);
    if (message.error) this.foot.before(this.trouble(message.error, 'retry', actions.regenerate));
    else if (message.end === 'length' && last) {
      this.foot.before(this.trouble(t('cutByLength'), 'continueAnswer', actions.proceed, 'soft'));
    } else if (message.end === 'tool_calls') {
      this.foot.before(h('p', { class: 'trouble soft' }, t('toolCall')));
    }
    const add = (name, key, action) =>
      this.foot.append(iconButton(name, t(key), () => action(this)));
    if (message.content) this.foot.append(copyButton(t('copy'), () => message.content));
    if (message.content) add('edit', 'edit', () => this.edit());
    if (message.role === 'assistant' && (message.content || !message.error)) {
      add('again', 'regenerate', actions.regenerate);
      if (last && message.content) add('continue', 'continueAnswer', actions.proceed);
      this.foot.append(h('span', { class: 'figures' }, figures(message.stats)));
    }
  }

  trouble(text, label, action, kind = '') {
    return h('p', { class: 'trouble ' + kind, role: kind ? null : 'alert' }, h('span', {}, text),
      h('button', { type: 'button', class: 'text-button', onclick: () => action(this) }, t(label)));
  }

  edit() {
    if (this.node.querySelector('form')) return;
    const { message, actions } = this;
    const user = message.role === 'user';
    const area = h('textarea', { 'aria-label': t('edit'), rows: 3 });
    area.value = message.content;
    const close = () => {
      form.remove();
      this.body.hidden = this.foot.hidden = false;
      this.foot.querySelector('button')?.focus();
    };
    const done = () => {
      close();
      actions.edited(this, area.value);
    };
    const form = h('form', { class: 'edit', onsubmit: event => { event.preventDefault(); done(); },
                             onkeydown: event => {
      if (event.isComposing) return;
      if (event.key === 'Escape') {
        event.stopPropagation();
        close();
      } else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) done();
    } }, area,
      h('div', { class: 'edit-bar' },
        h('span', { class: 'dim' }, user && !actions.isLast(this) ? t('editNote') : ''),
        h('button', { type: 'button', class: 'text-button', onclick: close }, t('cancel')),
        h('button', { type: 'submit', class: 'text-button strong' },
          t(user ? 'editSend' : 'save'))));
    this.body.hidden = this.foot.hidden = true;
    this.body.after(form);
    fitHeight(area, 400);
    area.addEventListener('input', () => fitHeight(area, 400));
    area.focus();
  }
}

function roleName({ role }) {
  if (continuesTexts()) return t(role === 'user' ? 'beginning' : 'continuation');
  return t(role === 'user' ? 'you' : 'assistant');
}

// Separates a reasoning model's thoughts from its answer: a field of its own, or <think>.
function splitThinking({ content, thinking = '' }) {
  const begin = /^\s*<think>/.exec(content);
  if (!begin) return { thinking, answer: content };
  const end = content.indexOf('</think>');
  const inside = content.slice(begin[0].length, end < 0 ? undefined : end);
  return { thinking: inside.trim(), answer: end < 0 ? '' : content.slice(end + 8).trimStart() };
}

function figures(stats) {
  if (!stats?.tokens) return '';
  const parts = [`${grouped(stats.tokens)} ${t('tokens')}`];
  if (stats.rate) parts.push(`${short(stats.rate)} ${t('tokensPerSecond')}`);
  if (stats.ttft) parts.push(duration(stats.ttft));
  return parts.join(' · ');
}

function fitHeight(area, most) {
  area.style.height = 'auto';
  area.style.height = Math.min(area.scrollHeight + 2, most) + 'px';
}
