"""A server that streams like `millrace serve`, for tests of the page; its answers are scripted.

The first word of the last user message selects the script: see SCRIPTS. `server.seen` holds the
bodies of completion requests, `server.left` counts clients that disconnected before the end.
"""
import http.server
import json
import pathlib
import re
import sys
import threading
import time

SAMPLE = """# Rivers

A river **carries** water *downhill*; `flow = area * speed`.

1. Springs
   - cold
   - clear
2. Streams

| river | km |
|:------|---:|
| Rhine | 1233 |
| Elbe | 1094 |

> Water takes the way of least resistance.

```python
def flow(area, speed):
    return area * speed
```

See https://example.org/rivers for more.
"""
HOSTILE = """<script>window.broken = 1</script>
<img src=x onerror="window.broken = 2">

[one](javascript:window.broken=3) [two](JaVaScRiPt:window.broken=3) [three](data:text/html,<script>)
[four](vbscript:x) ![five](http://example.org/pixel.png) [six](https://example.org/"onmouseover="x)
<a href="javascript:window.broken=4">seven</a> <https://example.org/<b>>

```html"><script>window.broken=5</script>
</code></pre><script>window.broken = 6</script>
```

| <script>window.broken=7</script> | b |
|---|---|
| <img src=x onerror=window.broken=8> | `<svg onload=window.broken=9>` |

# <svg/onload=window.broken=10>
"""
SCRIPTS = {
    "sample": SAMPLE,
    "hostile": HOSTILE,
    "think": "<think>Let me see.\nYes.</think>\n\nForty-two.",
    "code": "```c\n" + "int x = 1;\n" * 200 + "```\n\nThat was code.",
    "length": "This answer is cut",
}
PROPS = {
    "model": "storyteller", "device": "H200 (mock)", "context": 8192, "sequences": 64,
    "bytes_per_token": 16.1e9, "roof": {"bytes_per_s": 4.3e12},
    "memory": {"capacity": 150e9, "items": [
        {"name": "weights", "bytes": 16.1e9}, {"name": "KV cache", "bytes": 96e9},
        {"name": "activations", "bytes": 2.4e9}, {"name": "sampler", "bytes": 0.4e9}]},
}
METRICS = """# HELP vllm:num_requests_running Number of requests in the batch.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="storyteller"}} {running}
vllm:num_requests_waiting{{model_name="storyteller"}} 3
vllm:kv_cache_usage_perc{{model_name="storyteller"}} 0.42
vllm:generation_tokens_total{{model_name="storyteller"}} {tokens}
millrace_bytes_read_total{{model_name="storyteller"}} {other_bytes}
millrace_decode_bytes_read_total{{model_name="storyteller"}} {bytes}
millrace_decode_seconds_total{{model_name="storyteller"}} {seconds}
vllm:prefix_cache_queries_total{{model_name="storyteller"}} 1000
vllm:prefix_cache_hits_total{{model_name="storyteller"}} 730
"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/json", status=200, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def parse_request(self):
        if self.server.gone:  # as if the program had ended
            self.close_connection = True
            return False
        return super().parse_request()

    def allowed(self):
        if not self.server.key or self.headers["Authorization"] == "Bearer " + self.server.key:
            return True
        self.answer({"error": {"message": "no key", "type": "authentication_error", "param": None,
                               "code": "invalid_api_key"}}, status=401)
        return False

    def do_GET(self):
        server = self.server
        if self.path == "/":
            self.answer((server.folder / "index.html").read_bytes(), "text/html; charset=utf-8",
                        Content_Security_Policy=(server.folder / "policy.txt").read_text().strip(),
                        X_Content_Type_Options="nosniff")
        elif not self.allowed():
            return
        elif self.path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": one, "object": "model"}
                                                    for one in server.models]})
        elif self.path == "/props":
            self.answer(server.props)
        elif self.path == "/metrics":
            # A token takes 1/188 s. Prompts and other work read as they like.
            server.looks += 1
            self.answer(METRICS.format(running=server.running, tokens=server.tokens,
                                       bytes=server.tokens * 16.2e9, seconds=server.tokens / 188,
                                       other_bytes=server.looks ** 2 * 1e12).encode(),
                        "text/plain; version=0.0.4")
        else:
            server.missed.append(self.path)
            self.answer({"error": {"message": "not found"}}, status=404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        self.server.seen.append(body)
        said = body.get("prompt") or [one["content"] for one in body["messages"]
                                      if one["role"] == "user"][-1]
        word = re.split(r"\W", said)[0]
        if word == "error":
            self.answer({"error": {"message": "The prompt is too long: 9000 tokens of 8192.",
                                   "type": "invalid_request_error", "param": "messages",
                                   "code": None}}, status=400)
        elif word == "busy":
            self.answer({"error": {"message": "queue is full"}}, status=429, retry_after_ms="2500")
        else:
            self.stream(body, word)

    def stream(self, body, word):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.server.running += 1
        try:
            self.chunks(body, word)
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.left += 1
        finally:
            self.server.running -= 1
            if word == "broken":
                self.close_connection = True

    def event(self, delta=None, finish=None, **more):
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        self.raw("data: " + json.dumps({"id": "c", "object": "chat.completion.chunk",
                                        **{"choices": choices, "usage": None, **more}}) + "\n\n")

    def raw(self, text, halves=True):
        data = text.encode()
        parts = [data[:len(data) // 2], data[len(data) // 2:]] if halves else [data]
        for part in filter(None, parts):  # an event may arrive in pieces
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()

    def chunks(self, body, word):
        self.raw(": hello\n\n")
        if "prompt" not in body:
            self.event({"role": "assistant", "content": ""})
        plain = "prompt" in body
        text = SCRIPTS.get(word, " and so on" if plain else
                           "You said: " + body["messages"][-1]["content"])
        if body.get("continue_final_message"):
            text = " and this is the rest."
        if word == "slow":
            text = "drop " * 100000
        if word == "diffuse":
            self.blocks()
            text = ""
        tokens = re.findall(r"\s*\S+\s*?|\s+", text)
        for count, token in enumerate(tokens):
            self.event(*([None] if plain else [{"content": token}]), **({"choices": [
                {"index": 0, "text": token, "finish_reason": None}]} if plain else {}))
            self.server.tokens += 1
            time.sleep(self.server.pause)
            if word == "broken" and count == 2:
                self.connection.close()
                raise BrokenPipeError
            if word == "midway" and count == 1:
                self.raw('data: {"error": {"message": "The engine stopped.", "code": 500}}\n\n')
                return
        cut = word == "length" and not body.get("continue_final_message")
        if plain:
            self.event(choices=[{"index": 0, "text": "", "finish_reason": "stop"}])
        else:
            self.event({}, "length" if cut else "stop")
        self.event(usage={"prompt_tokens": 120, "completion_tokens": max(1, len(tokens)),
                          "total_tokens": 120 + len(tokens),
                          "prompt_tokens_details": {"cached_tokens": 64}},
                   millrace={"ttft_ms": 8.4, "tokens_per_s": 188.0, "bytes_per_token": 16.2e9,
                             "batch": 1})
        self.raw("data: [DONE]\n\n")

    def blocks(self):
        for words in (["Once ", "upon ", "a ", "time "], ["there ", "was ", "a ", "mill."]):
            for known in range(5):
                order = [2, 0, 3, 1][:known]
                self.event({}, millrace={"block": [one if i in order else None
                                                   for i, one in enumerate(words)]})
                time.sleep(self.server.block_pause)
            self.event({"content": "".join(words)}, millrace={"tokens": 4})


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.folder = pathlib.Path(folder)
        self.seen, self.missed, self.left = [], [], 0
        self.running, self.tokens, self.looks, self.gone = 0, 0, 0, False
        self.key, self.models, self.props = "", ["storyteller"], PROPS
        self.pause, self.block_pause = 0.004, 0.15

    def handle_error(self, *_):  # a browser may close any connection
        pass

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"


if __name__ == "__main__":  # mock_server.py FOLDER PORT, to look at the page by hand
    Server(sys.argv[1], int(sys.argv[2])).serve_forever()
