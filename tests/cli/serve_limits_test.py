"""millrace serve at its limits: a cache too small for all, a full queue, a shutdown during work,
clients that disconnect or only close their side."""
import concurrent.futures
import http.client
import json
import signal
import socket
import struct
import time

import driver
from serving import CHAT, START, Server

ENDLESS = 1000000  # tokens: minutes, more than any of these tests waits for


def wire_of(server, body, path="/v1/completions"):
    wire = socket.create_connection((server.host, server.port), 60)
    data = json.dumps(body).encode()
    wire.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
                 .encode() + data)
    return wire


def text_of(events):
    return "".join(json.loads(data)["choices"][0]["text"] for _, data in events if data != "[DONE]")


class Limits(driver.CliTest):
    def serve(self, *arguments):
        server = Server("--log", "none", *arguments)
        self.addCleanup(server.stop)
        return server

    def idle(self, server):
        self.assertTrue(server.wait_until(
            lambda: server.metric("vllm:num_requests_running") == 0
            and server.metric("vllm:num_requests_waiting") == 0
            and server.metric("vllm:kv_cache_usage_perc") == 0), server.ok("/metrics"))

    def test_all_are_answered_by_a_cache_that_is_too_small(self):
        # Room for about two texts of the longest kind; all of them at once would need 40 times
        # that.
        server = self.serve("--sequences", 8, "--pool", 640, "--queue", 12)
        cache = server.metric("millrace_cache_tokens")

        def body(i):
            return {"prompt": [1 + (7 * i + j) % 300 for j in range(1 + 61 * i % 400)], "seed": i,
                    "max_tokens": 2 + 37 * i % 100, "ignore_eos": True, "n": 1 + i % 3}

        wanted = sum(b["n"] * (len(b["prompt"]) + b["max_tokens"]) for b in map(body, range(48)))
        self.assertGreater(wanted, 20 * cache)
        refused, worst = [], 0.0

        def answer(i):
            while True:
                status, headers, found = server.ask("/v1/completions", body(i))
                if status == 200:
                    return [c["text"] for c in found["choices"]], found["usage"]["completion_tokens"]
                self.assertEqual((status, found["error"]["code"]), (429, "queue_full"), found)
                wait = int(headers["Retry-After-Ms"])
                self.assertTrue(100 <= wait <= 60000)
                refused.append(i)
                time.sleep(min(wait, 500) / 1000)

        with concurrent.futures.ThreadPoolExecutor(48) as pool:
            asked = [pool.submit(answer, i) for i in range(48)]
            while not all(a.done() for a in asked):
                worst = max(worst, server.metric("vllm:kv_cache_usage_perc"))
                time.sleep(0.05)
            texts = [a.result() for a in asked]
        for i, (found, tokens) in enumerate(texts):
            self.assertEqual((len(found), tokens), (body(i)["n"], body(i)["n"] * body(i)["max_tokens"]))
        self.assertGreater(len(refused), 0)
        self.assertLessEqual(worst, 1)
        self.assertGreater(worst, 0.5)
        self.idle(server)
        for i in range(0, 48, 12):
            self.assertEqual(answer(i), texts[i])
        # Embeddings need pages as well, and wait for them.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            made = [pool.submit(server.ok, "/v1/embeddings", {"input": [[5] * 500]}) for _ in range(4)]
            made += [pool.submit(server.ok, "/v1/completions", body(i)) for i in (1, 2)]
            for done in made:
                done.result()
        self.idle(server)
        self.assertEqual(server.stop(), 0)

    def test_an_end_under_load_loses_nothing(self):
        # Six rounds of two texts: the signal comes in the first one, and texts still wait if this
        # machine delays it by four.
        server = self.serve("--sequences", 2, "--grace", 200)
        ask = {"prompt": START, "max_tokens": 480, "ignore_eos": True}
        alone = [server.ok("/v1/completions", {**ask, "seed": i})["choices"][0]["text"] for i in range(3)]
        before = server.texts()

        def slow(i):
            """Reads slowly, later than the text is made."""
            with wire_of(server, {**ask, "seed": i, "stream": True}) as wire:
                came = wire.recv(64)
                time.sleep(3)
                while piece := wire.recv(4096):
                    came += piece
                    time.sleep(0.01)
            head, _, rest = came.partition(b"\r\n\r\n")
            self.assertTrue(rest.endswith(b"\r\n0\r\n\r\n"), rest[-200:])
            lines = [line for line in rest.decode().split("\n") if line.startswith("data: {")]
            return "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)

        def whole(i):
            return server.ok("/v1/completions", {**ask, "seed": i})["choices"][0]["text"]

        def stream(i):
            return text_of(server.events("/v1/completions", {**ask, "seed": i, "stream": True}))

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            asked = [(i % 3, pool.submit(run, i % 3)) for i in range(4) for run in (slow, whole, stream)]
            self.assertTrue(server.wait_until(lambda: server.texts() == before + 12))
            self.assertGreater(server.metric("vllm:num_requests_waiting"), 0)
            server.process.send_signal(signal.SIGTERM)
            for i, done in asked:
                self.assertEqual(done.result(), alone[i])
        self.assertEqual(server.process.wait(driver.HANG), 0)

    def test_what_was_made_is_sent_before_a_cut(self):
        # Texts without an end: none is done when the server is, however fast the machine.
        server = self.serve("--sequences", 2, "--grace", 0.5, "--context", "streaming")
        ask = {"prompt": START, "ignore_eos": True, "seed": 1, "stream": True}
        alone = text_of(server.events("/v1/completions", {**ask, "max_tokens": 500}))
        before, made = server.texts(), server.metric("vllm:generation_tokens_total")

        def end(_):
            connection = server.connection()
            connection.request("POST", "/v1/completions",
                               json.dumps({**ask, "max_tokens": ENDLESS, "n": 2}))
            answer = connection.getresponse()
            try:
                return answer.status, answer.read()
            except http.client.IncompleteRead as cut:
                return answer.status, cut.partial
            finally:
                connection.close()

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(end, i) for i in range(6)]
            self.assertTrue(server.wait_until(
                lambda: server.metric("vllm:generation_tokens_total") > made + 20
                and server.texts() == before + 12))
            server.process.send_signal(signal.SIGTERM)
            start = time.monotonic()
            ends = [done.result() for done in asked]
        self.assertEqual(server.process.wait(driver.HANG), 0)
        self.assertLess(time.monotonic() - start, 25)  # --grace is 30 s unless given
        # One has both places; five wait, and are refused.
        self.assertEqual(sorted(status for status, _ in ends), [200] + 5 * [503])
        for status, body in ends:
            if status == 200:  # the beginning of the text was sent, then the reason
                events = [json.loads(e[6:]) for e in body.decode().split("\n\n")
                          if e.startswith("data: {")]
                self.assertEqual(events.pop()["error"]["code"], "shutting_down")
                text = "".join(c["text"] for e in events for c in e["choices"] if c["index"] == 0)
                self.assertTrue(text and alone[:len(text)] == text[:len(alone)], text)
            else:
                self.assertEqual(json.loads(body)["error"]["code"], "shutting_down")

    def test_a_client_that_ends_its_side_is_answered(self):
        server = self.serve("--sequences", 2)
        ask = {"prompt": START, "max_tokens": 60, "ignore_eos": True, "seed": 3}
        alone = server.ok("/v1/completions", ask)["choices"][0]["text"]
        for stream in (False, True):
            with wire_of(server, {**ask, "stream": stream}) as wire:
                wire.shutdown(socket.SHUT_WR)
                came = b""
                while piece := wire.recv(65536):
                    came += piece
            came = came.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.assertTrue(came.startswith(b"HTTP/1.1 200 OK\r\n"), came[:200])
            body = came.partition(b"\r\n\r\n")[2].decode()
            if stream:
                self.assertTrue(body.endswith("\r\n0\r\n\r\n"))
                found = "".join(json.loads(line[6:])["choices"][0]["text"] for line in body.split("\n")
                                if line.startswith("data: {"))
            else:
                found = json.loads(body)["choices"][0]["text"]
            self.assertEqual(found, alone)
        self.idle(server)

    def test_grammars_have_a_bound(self):
        # 1 MiB, and 10 for the text that runs: two of these schemas do not fit.
        server = self.serve("--sequences", 1, "--grammar-memory", 1, "--context", "streaming")

        def body(i, words=5000, items=50, **more):
            words = [f"{i} {j} " + "ab" * 20 for j in range(words)]
            schema = {"type": "array", "minItems": items, "items": {"enum": words}}
            return {"messages": CHAT, "max_tokens": 100, **more, "response_format": {
                "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}

        def status(*arguments):
            return server.ask("/v1/chat/completions", body(*arguments))[0]

        def refused(found):
            status, headers, answer = found
            self.assertEqual((status, answer["error"]["code"], headers["Retry-After"]),
                             (503, "grammars_full", "1"))

        with wire_of(server, body(0, items=ENDLESS, stream=True, max_tokens=ENDLESS),
                     "/v1/chat/completions") as wire:
            wire.recv(64)  # it runs
            for i in (1, 2):
                refused(server.ask("/v1/chat/completions", body(i)))
        # A grammar that no request holds is dropped.
        self.assertTrue(server.wait_until(lambda: status(3) == 200))
        self.assertTrue(server.wait_until(lambda: status(4) == 200))
        code, _, answer = server.ask("/v1/chat/completions", body(5, words=9000))
        self.assertEqual((code, answer["error"]["code"]), (400, "grammar_too_large"), answer)

    def test_connections_of_one_client(self):
        def status(server, source="127.0.0.1"):
            with socket.create_connection((server.host, server.port), driver.HANG, (source, 0)) as wire:
                wire.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return int(wire.recv(4096).split()[1])

        def held(server, count):
            wires = [socket.create_connection((server.host, server.port), driver.HANG) for _ in range(count)]
            for wire in wires:  # each has been accepted
                wire.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertIn(b" 200 OK", wire.recv(4096))
            return wires

        server = self.serve("--connections", 8, "--connections-per-client", 3)
        wires = held(server, 3)
        self.assertEqual(status(server), 503)
        self.assertEqual(status(server, "127.0.0.2"), 200)  # another client
        for wire in wires:
            wire.close()
        self.assertTrue(server.wait_until(lambda: status(server) == 200))
        # Without the option a proxy on this machine may have all of them.
        server = self.serve("--connections", 8)
        wires = held(server, 8)
        self.assertEqual(status(server), 503)
        wires.pop().close()
        self.assertTrue(server.wait_until(lambda: status(server) == 200))
        for wire in wires:
            wire.close()

    def test_a_client_that_goes_ends_its_work(self):
        server = self.serve("--sequences", 2, "--context", "streaming")
        for stream in (False, True):
            for reset in (False, True):
                made = server.metric("vllm:generation_tokens_total")
                wire = wire_of(server, {"prompt": START, "max_tokens": ENDLESS, "ignore_eos": True,
                                        "stream": stream})
                self.assertTrue(server.wait_until(
                    lambda: server.metric("vllm:generation_tokens_total") > made))
                if reset:
                    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                wire.close()
                self.idle(server)  # in seconds; the whole text would take minutes


if __name__ == "__main__":
    driver.main()
