"""A server of `millrace serve` for tests, accessed through http.client and raw sockets."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading

import driver

START = "Once upon a time"
CHAT = [{"role": "user", "content": "Hello"}]


class Server:
    def __init__(self, *arguments, model=(), env=None, program=driver.BIN, key=None,
                 preexec_fn=None):
        self.key = {"Authorization": f"Bearer {key}"} if key else {}
        self.process = subprocess.Popen(
            [program, "serve", *map(str, model), "--port", "0", "--threads", "2",
             *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})},
            preexec_fn=preexec_fn)
        self.err = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        line = self.process.stdout.readline().decode()
        match = re.search(r"http://(\S+?):(\d+)[ \"]", line)
        if not match:
            self.process.wait(driver.HANG)
            self.reader.join(driver.HANG)
            raise AssertionError(f"no server: {line!r} {b''.join(self.err)!r}")
        self.line, self.host, self.port = line, match[1], int(match[2])

    def _read(self):
        for line in self.process.stderr:
            self.err.append(line)

    def connection(self, timeout=driver.HANG):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def ask(self, path, body=None, method=None, headers=None):
        """Status, headers, and the body as JSON if it is JSON."""
        connection = self.connection()
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, data,
                               {**self.key, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
            kind = answer.getheader("Content-Type") or ""
            return answer.status, answer.headers, (json.loads(text) if kind.startswith(
                "application/json") and text else text.decode())
        finally:
            connection.close()

    def ok(self, path, body=None, **kwargs):
        status, _, answer = self.ask(path, body, **kwargs)
        if status != 200:
            raise AssertionError(f"{path}: {status} {answer}")
        return answer

    def events(self, path, body, headers=None):
        """The events of a stream: (name, data), data unparsed."""
        status, head, text = self.ask(path, body, headers=headers)
        if status != 200 or not head["Content-Type"].startswith("text/event-stream"):
            raise AssertionError(f"{path}: {status} {head} {text}")
        events = []
        blocks = text.split("\n\n")
        if blocks.pop() != "":
            raise AssertionError(f"the stream does not end with an empty line: {text[-200:]!r}")
        for block in blocks:
            lines = block.split("\n")
            name = lines.pop(0)[len("event: "):] if lines[0].startswith("event: ") else ""
            if len(lines) != 1 or not lines[0].startswith("data: "):
                raise AssertionError(f"no event: {block!r}")
            events.append((name, lines[0][len("data: "):]))
        return events

    def raw(self, data, timeout=driver.HANG):
        """All bytes received until the server closes."""
        with socket.create_connection((self.host, self.port), timeout) as wire:
            wire.sendall(data)
            out = b""
            while piece := wire.recv(65536):
                out += piece
            return out

    def metric(self, name):
        text = self.ok("/metrics")
        return float(re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.M)[1])

    def texts(self):
        """Texts that were accepted: those that wait, run and have ended."""
        text = self.ok("/metrics")
        return sum(float(n) for n in re.findall(
            r"^vllm:(?:num_requests_(?:running|waiting)|request_success_total)\{.*\} (\S+)$", text, re.M))

    def wait_until(self, true):
        """False after a minute. Texts that a test cuts would take longer."""
        return driver.eventually(true, 60)

    def stop(self, number=signal.SIGTERM, timeout=driver.HANG):
        """Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(driver.HANG)
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.returncode


class Shared(driver.CliTest):
    """Tests that share one server."""
    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"exit code {code}: {b''.join(cls.server.err)!r}")

    def refused(self, status, path, body, param=None, code=None, **kwargs):
        found, headers, answer = self.server.ask(path, body, **kwargs)
        self.assertEqual(found, status, (path, str(body)[:200], answer))
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        if param is not None:
            self.assertEqual(error["param"], param, error)
        if code is not None:
            self.assertEqual(error["code"], code, error)
        return headers
