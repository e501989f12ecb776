"""A hub for tests: HTTPS with a certificate of an authority made here, an API and files as on
huggingface.co, a second host that has the large files, and a proxy. It can cut, damage and refuse."""
import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import select
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse


def make_authority(folder):
    """The authority's certificate, and a function that makes one for a server, with its key."""
    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
            "-subj", "/CN=Tests of Millrace")

    def certificate(name, hosts):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "hosts").write_text(f"subjectAltName={hosts}\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", "2", "-extfile", "hosts", "-out", f"{name}.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        return context

    return folder / "ca.pem", certificate


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repository:
    def __init__(self, files, large=(".gguf", ".safetensors"), commit="a" * 40):
        self.files, self.commit = dict(files), commit
        self.large = {path for path in self.files if path.endswith(tuple(large))}
        self.gated = self.private = False
        self.silent = False  # the list has neither sizes nor hashes
        self.etag = git_hash  # of small files

    def entry(self, path):
        if self.silent:
            return {"rfilename": path}
        data = self.files[path]
        entry = {"rfilename": path, "size": len(data), "blobId": git_hash(data)}
        if path in self.large:
            entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data),
                            "pointerSize": 134}
        return entry


class Request:
    def __init__(self, where, path, headers):
        self.where, self.path, self.headers = where, path, headers


class Hub:
    """hub.url is the hub, on localhost; large files come from 127.0.0.1, another origin."""

    def __init__(self, folder):
        self.repositories, self.requests, self.connects = {}, [], []
        self.cut = []        # bytes after which the next answers of the large files' host end
        self.damage = 0      # so many answers have one byte changed
        self.busy = 0        # so many answers are busy_status, to requests with busy_part in their path
        self.busy_part, self.busy_status, self.retry_after = "", 503, None
        self.slow = 0.0      # seconds before each answer of the hub
        self.pause = 0.0     # seconds after each 64 KB
        self.sent = 0        # bytes of large files
        self.ca, certificate = make_authority(folder)
        context = certificate("here", "DNS:localhost,IP:127.0.0.1")
        self.servers = [self.listen(self.answer_hub, "hub", context),
                        self.listen(self.answer_large, "large", context),
                        self.listen(self.answer_hub, "plain", None),
                        self.listen(self.answer_hub, "misnamed", certificate("other", "DNS:example.org"))]
        ports = [server.server_address[1] for server in self.servers]
        self.url = f"https://localhost:{ports[0]}"
        self.large_url = f"https://127.0.0.1:{ports[1]}"
        self.plain_url = f"http://localhost:{ports[2]}"
        self.misnamed_url = f"https://localhost:{ports[3]}"

    def listen(self, answer, where, context):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.requests.append(Request(where, self.path, dict(self.headers.items())))
                with contextlib.suppress(OSError):
                    answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self):
                connection, address = super().get_request()
                if context:
                    connection = context.wrap_socket(connection, server_side=True,
                                                     do_handshake_on_connect=False)
                return connection, address

            def handle_error(self, *_):  # a client that went, or trusts us not
                pass

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def asked(self, where, part=""):
        return [one for one in self.requests if one.where == where and part in one.path]

    @staticmethod
    def reply(request, status, body=b"", **headers):
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def answer_hub(self, request):
        time.sleep(self.slow)
        if self.busy > 0 and self.busy_part in request.path:
            self.busy -= 1
            wish = {} if self.retry_after is None else {"Retry_After": str(self.retry_after)}
            return self.reply(request, self.busy_status, **wish)
        path = urllib.parse.unquote(request.path.split("?")[0])
        found = re.fullmatch(r"(?:/api/models)?/([^/]+/[^/]+)/(revision|resolve)/([^/]+)/?(.*)", path)
        repository = self.repositories.get(found[1]) if found else None
        if isinstance(repository, str):  # has another name now
            return self.reply(request, 307, Location=request.path.replace(found[1], repository, 1))
        token = request.headers.get("Authorization")
        if repository is None or (repository.private and token != "Bearer right"):
            if token:
                return self.reply(request, 404, X_Error_Code="RepoNotFound")
            return self.reply(request, 401, X_Error_Code="RepoNotFound")
        if found[3] not in ("main", repository.commit):
            return self.reply(request, 404, X_Error_Code="RevisionNotFound")
        if found[2] == "revision":
            files = [repository.entry(path) for path in repository.files]
            return self.reply(request, 200, json.dumps({
                "id": found[1], "sha": repository.commit, "siblings": files}).encode())
        if repository.gated and token != "Bearer right":
            return self.reply(request, 403 if token else 401, X_Error_Code="GatedRepo")
        data = repository.files.get(found[4])
        if data is None:
            return self.reply(request, 404, X_Error_Code="EntryNotFound")
        if found[4] not in repository.large:
            return self.reply(request, 200, data, ETag=f'"{repository.etag(data)}"')
        name = hashlib.sha256(data).hexdigest()
        return self.reply(request, 302, Location=f"{self.large_url}/{name}?signature=1",
                          X_Linked_Etag=f'"{name}"', X_Linked_Size=str(len(data)),
                          X_Repo_Commit=repository.commit)

    def answer_large(self, request):
        name = request.path[1:].split("?")[0]
        [data] = {data for one in self.repositories.values() if isinstance(one, Repository)
                  for data in one.files.values() if hashlib.sha256(data).hexdigest() == name}
        etag = f'"storage-{name[:8]}"'
        first, status, more = 0, 200, {}
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        if wanted and request.headers.get("If-Range", etag) == etag:
            first, status = int(wanted[1]), 206
            if first >= len(data):
                return self.reply(request, 416)
            more["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        body = bytearray(data[first:])
        if self.damage > 0:
            self.damage -= 1
            body[len(body) // 2] ^= 1
        request.send_response(status)
        for key, value in {"ETag": etag, "Content-Length": len(body), **more}.items():
            request.send_header(key, str(value))
        request.end_headers()
        end = self.cut.pop(0) if self.cut else len(body)
        for at in range(0, min(end, len(body)), 1 << 16):
            piece = body[at:min(at + (1 << 16), end)]
            request.wfile.write(piece)
            self.sent += len(piece)
            time.sleep(self.pause)
        if end < len(body):
            request.close_connection = True
            request.wfile.flush()

    def proxy(self):
        """The address of a proxy; self.connects has what it was asked for."""
        listener = socket.create_server(("127.0.0.1", 0))

        def pass_on(client):
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            self.connects.append(head.decode())
            host, port = head.split()[1].decode().rsplit(":", 1)
            with client, socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                while True:
                    for one in select.select([client, server], [], [])[0]:
                        data = one.recv(1 << 16)
                        if not data:
                            return
                        (server if one is client else client).sendall(data)

        def accept():
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=pass_on, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        self.servers.append(_Closing(listener))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


class _Closing:
    def __init__(self, listener):
        self.listener = listener

    def shutdown(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)

    def server_close(self):
        self.listener.close()


def split_safetensors(data):
    """The two shards of a safetensors file, and their index."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    names, index, out = sorted(header), {}, {}
    for part, chosen in enumerate((names[:len(names) // 2], names[len(names) // 2:]), 1):
        file, body, own = f"model-0000{part}-of-00002.safetensors", b"", {}
        for name in chosen:
            begin, end = header[name]["data_offsets"]
            own[name] = {**header[name], "data_offsets": [len(body), len(body) + end - begin]}
            body += data[8 + length + begin:8 + length + end]
            index[name] = file
        text = json.dumps(own).encode()
        text += b" " * (-len(text) % 8)
        out[file] = len(text).to_bytes(8, "little") + text + body
    out["model.safetensors.index.json"] = json.dumps({"weight_map": index}).encode()
    return out


def folder_files(folder, names):
    return {name: (pathlib.Path(folder) / name).read_bytes() for name in names}
