// The server's API: JSON by GET, and completions as a stream of events.
class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = store.key();
  return key ? { Authorization: 'Bearer ' + key } : {};
}

// Error answers as the page shows them: the server's own message if it sent one.
async function refusal(response) {
  if (response.status === 401) return new ApiError(t('needsKey'), 401);
  if (response.status === 429) {
    const wait = Number(response.headers.get('retry-after-ms')) / 1000 ||
      Number(response.headers.get('retry-after'));
    if (wait > 0) return new ApiError(t('busy', { seconds: Math.ceil(wait) }), 429);
  }
  let message = '';
  try {
    message = (await response.json()).error.message;
  } catch { /* no JSON, or none of that shape */ }
  return new ApiError(typeof message === 'string' && message ||
    t('failed', { status: response.status }), response.status);
}

// Where the server is: below the page's own address, which a proxy may have put under a prefix.
const base = location.pathname.replace(/\/?$/, '/');

// `path`: of the server's API, without a slash at its beginning.
async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(base + path, { ...options, headers: { ...headers(), ...options.headers },
                                   credentials: 'omit', cache: 'no-store' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(t('unreachable'));
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

// The `data` of each event, as server-sent events define them: lines end with LF, CR or CRLF, a
// blank line ends an event, and a line that begins with a colon is a comment.
async function* serverEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const lines = text.split(/\r\n|\n|\r(?!$)/);  // a CR at the end may be half of a CRLF
      text = lines.pop();
      for (const line of lines) {
        if (line === '' && data.length) {
          yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The chunks of a streamed completion; throws if the server reports an error or ends early.
async function* completion(body, signal) {
  const response = await request('prompt' in body ? 'v1/completions' : 'v1/chat/completions', {
    method: 'POST', signal, headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ ...body, stream: true,
                           stream_options: { include_usage: true, include_blocks: true } }),
  });
  try {
    for await (const data of serverEvents(response.body)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(String(chunk.error.message ?? t('endedEarly')));
      yield chunk;
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiError) throw error;
    throw new ApiError(t('endedEarly'));
  }
  throw new ApiError(t('endedEarly'));
}
