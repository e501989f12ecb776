"""Thousands of hostile requests to one server under AddressSanitizer: none may end it, delay
another client, or leak a slot or a page. MILLRACE_HOSTILE sets how many; MILLRACE_HOSTILE_ONLY=i
repeats request i of the seed."""
import concurrent.futures
import http.client
import json
import os
import socket
import struct
import sys
import threading
import time
import unittest

import driver
from hostile_requests import STORY, Hostile, http as request_bytes
from serving import Server

SEED = 22
# Seconds for a whole answer, which may have all tokens of the context, on a busy machine.
PATIENCE = 120
COUNT = int(os.environ.get("MILLRACE_HOSTILE", 3000))
ONLY = os.environ.get("MILLRACE_HOSTILE_ONLY")
PROGRAM = os.environ.get("MILLRACE_ASAN", str(driver.BUILD / "millrace_asan"))
THREADS = 6
SLOW = 40  # clients that send a byte from time to time
# Seconds for an answer to another client: two cores, instrumented code, other tests running.
BOUND = float(os.environ.get("MILLRACE_HOSTILE_BOUND", 10))
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0:max_allocation_size_mb=2048:abort_on_error=0",
               "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
KEYS = ("hostile-client", "another-client")


def parse_answers(data, headless):
    """[(status, body)] of the complete answers at the beginning of `data`, without those of 1xx."""
    out = []
    while (end := data.find(b"\r\n\r\n")) >= 0:
        lines = data[:end].split(b"\r\n")
        status = int(lines[0].split()[1])
        headers = {k.strip().lower(): v.strip() for k, _, v in (h.partition(b":") for h in lines[1:])}
        rest, body = data[end + 4:], b""
        if status < 200 or status == 204 or headless:
            pass
        elif b"content-length" in headers:
            size = int(headers[b"content-length"])
            if len(rest) < size:
                break
            body, rest = rest[:size], rest[size:]
        else:
            while True:
                line, found, more = rest.partition(b"\r\n")
                if not found or len(more) < int(line, 16) + 2:
                    return out
                size = int(line, 16)
                body, rest = body + more[:size], more[size + 2:]
                if size == 0:
                    break
        data = rest
        if status >= 200:
            out.append((status, body))
    return out


class Attack:
    def __init__(self, server):
        self.server, self.faults, self.sent, self.statuses = server, [], 0, {}
        self.mutex = threading.Lock()

    def fault(self, index, request, what):
        with self.mutex:
            self.faults.append(f"{index}: {request.name}: {what}")

    def connect(self):
        return socket.create_connection((self.server.host, self.server.port), PATIENCE)

    def one(self, hostile, index):
        request = hostile.request(index)
        try:
            with self.connect() as wire:
                answers, closed = self.play(wire, request)
        except TimeoutError:
            if request.name.startswith("large /v1/embeddings"):
                return  # thousands of texts are minutes of work: this client disconnects
            return self.fault(index, request, f"no answer in {PATIENCE} s")
        except (ConnectionError, BrokenPipeError):
            answers, closed = None, True
        with self.mutex:
            self.sent += 1
            for status, _ in answers or ():
                self.statuses[status] = self.statuses.get(status, 0) + 1
        if request.how in ("read", "half"):
            self.judge(index, request, answers, closed)

    def play(self, wire, request):
        """Returns [(status, body)], and whether the server closed."""
        data = request.data
        if request.how == "slow":
            for at in range(0, len(data), 40):
                wire.sendall(data[at:at + 40])
                time.sleep(0.02)
            return [], False
        try:
            wire.sendall(data)
        except (ConnectionError, BrokenPipeError):
            pass  # it may be refused before it is read
        if request.how == "reset":
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if request.how in ("drop", "reset"):
            return [], False
        if request.how == "leave":
            wire.recv(len(data) % 700 + 1)
            return [], False
        if request.how == "half":
            wire.shutdown(socket.SHUT_WR)
        headless = data.startswith(b"HEAD")
        came, closed = b"", False
        while not closed:
            try:
                piece = wire.recv(1 << 16)
            except ConnectionError:
                piece = b""
            came, closed = came + piece, not piece
            if request.how == "read" and b"\r\n\r\n" in came and (
                    len(parse_answers(came, headless)) >= request.answers):
                break
        return parse_answers(came, headless), closed

    def judge(self, index, request, answers, closed):
        if request.statuses is None:  # anything but a server error
            answers = answers or []
        elif answers is None or len(answers) != request.answers:
            return self.fault(index, request, f"answers {answers}, closed {closed}")
        for status, body in answers:
            if status in (500, 502, 504) or (request.statuses and status not in request.statuses):
                return self.fault(index, request, f"{status} {body[:300]}")
            if status < 400 or not body:
                continue
            try:
                error = json.loads(body)["error"]
            except (ValueError, KeyError):
                return self.fault(index, request, f"{status} {body[:300]}")
            if set(error) != {"message", "type", "param", "code"}:
                return self.fault(index, request, str(error))
            if request.param and not (error["param"] or "").startswith(request.param):
                return self.fault(index, request, f"names {error}")


class Probe(threading.Thread):
    """Another client, which always expects answers."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.over, self.worst, self.asked, self.faults = server, False, {}, 0, []
        self.start()

    def run(self):
        key = {"Authorization": f"Bearer {KEYS[1]}"}
        asks = (("GET", "/health", None, {}), ("GET", "/metrics", None, key),
                ("POST", "/tokenize", json.dumps({"content": STORY}), key),
                ("POST", "/v1/completions", json.dumps({"prompt": STORY, "max_tokens": 1}), key),
                ("POST", "/v1/embeddings", json.dumps({"input": STORY}), key))
        connection = self.server.connection(60)
        while not self.over:
            for method, path, body, headers in asks:
                start = time.monotonic()
                try:
                    connection.request(method, path, body, headers)
                    answer = connection.getresponse()
                    answer.read()
                except (OSError, http.client.HTTPException) as problem:
                    self.faults.append(f"{path}: {problem!r} after {time.monotonic() - start:.1f} s")
                    return
                if answer.status != 200:
                    self.faults.append(f"{path}: {answer.status}")
                took = time.monotonic() - start
                self.worst[path] = max(self.worst.get(path, 0), took)
                self.asked += 1
            time.sleep(0.02)
        connection.close()

    def stop(self):
        self.over = True
        self.join(90)


class Slowloris(threading.Thread):
    def __init__(self, attack):
        super().__init__(daemon=True)
        self.attack, self.over = attack, False
        self.start()

    def run(self):
        data = request_bytes("/v1/completions", b"x" * 999, key=KEYS[0])
        wires = [self.attack.connect() for _ in range(SLOW)]
        at = 0
        while not self.over:
            for wire in wires:
                try:
                    wire.sendall(data[at:at + 1])
                except OSError:
                    pass  # answered 408, and closed
            at += 1
            time.sleep(0.1)
        for wire in wires:
            wire.close()

    def stop(self):
        self.over = True
        self.join(30)


class HostileTest(driver.CliTest):
    def idle(self, server, pages):
        return (server.metric("vllm:num_requests_running") == 0
                and server.metric("vllm:num_requests_waiting") == 0
                and server.metric("millrace_cache_free_tokens") == pages
                and server.metric("millrace_connections") == 1)

    def test_hostile_requests(self):
        if not os.path.exists(PROGRAM):
            self.skipTest(f"no {PROGRAM}")
        keys = self.folder / "keys"
        keys.write_text("\n".join(KEYS) + "\n")
        server = Server("--api-key-file", keys, "--sequences", 4, "--queue", 64, "--log", "none",
                        program=PROGRAM, env=ENVIRONMENT, key=KEYS[1])
        self.addCleanup(server.stop)
        ask = {"prompt": STORY, "max_tokens": 20, "seed": 5, "n": 2}
        before = server.ok("/v1/completions", ask)["choices"]
        pages = server.metric("millrace_cache_tokens")
        attack, start = Attack(server), time.monotonic()
        probe, slow = Probe(server), Slowloris(attack)
        indices = range(COUNT) if ONLY is None else [int(ONLY)]

        def some(first):
            hostile = Hostile(SEED, KEYS[0])
            for index in indices[first::THREADS]:
                if server.process.poll() is not None or len(attack.faults) > 20:
                    break
                attack.one(hostile, index)

        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(some, first) for first in range(THREADS)]:
                done.result()
        slow.stop()
        probe.stop()
        worst = ", ".join(f"{path} {1000 * s:.0f} ms" for path, s in sorted(probe.worst.items()))
        print(f"{attack.sent} requests in {time.monotonic() - start:.1f} s; answers "
              f"{dict(sorted(attack.statuses.items()))}; {probe.asked} of another client, at worst "
              f"{worst}", file=sys.stderr)
        died = server.process.poll()
        self.assertIsNone(died, b"".join(server.err[-60:]).decode("utf-8", "replace"))
        self.assertEqual(attack.faults[:20], [])
        self.assertEqual(probe.faults, [])
        self.assertTrue(server.wait_until(lambda: self.idle(server, pages)),
                        server.ok("/metrics"))
        self.assertEqual(server.ok("/v1/completions", ask)["choices"], before)
        self.assertLess(max(probe.worst.values()), BOUND)
        self.assertEqual(server.stop(), 0, b"".join(server.err[-60:]).decode("utf-8", "replace"))
        self.assertNotRegex(b"".join(server.err).decode("utf-8", "replace"),
                            "Sanitizer|runtime error")


if __name__ == "__main__":
    unittest.main(verbosity=2)
