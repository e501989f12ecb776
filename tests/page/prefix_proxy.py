"""A proxy that puts a server under a prefix, as nginx's `location /prefix/ { proxy_pass .../; }`: it
strips the prefix, and knows no other path."""
import http.client
import http.server
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def forward(self):
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        # Without its slash the prefix is the same page: not every proxy redirects.
        if self.path != server.prefix and not self.path.startswith(server.prefix + "/"):
            server.strays.append(self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = self.path[len(server.prefix):] or "/"
        headers = {name: value for name, value in self.headers.items()
                   if name.lower() not in ("connection", "host", "x-forwarded-for")}
        headers["Host"] = f"127.0.0.1:{server.port}"
        headers["X-Forwarded-For"] = "192.0.2.7"
        headers["X-Forwarded-Prefix"] = server.prefix
        if "Origin" in headers:
            headers["Origin"] = f"http://127.0.0.1:{server.port}"
        wire = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            wire.request(self.command, path, body or None, headers)
            answer = wire.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "date",
                                        "server"):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            wire.close()
        self.close_connection = True

    do_GET = do_POST = forward


class PrefixProxy(http.server.ThreadingHTTPServer):
    """For the server on `port`; `strays`: paths outside of the prefix that were asked for."""
    daemon_threads = True

    def __init__(self, port, prefix="/a/model"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port, self.prefix, self.strays = port, prefix, []

    def handle_error(self, *_):
        pass

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}{self.prefix}"
