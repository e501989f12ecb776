"""A mixed load for a long time: resident memory stays flat after the first minute, and no
descriptors and threads leak. MILLRACE_SOAK_SECONDS sets the time (600); prints its figures."""
import concurrent.futures
import json
import os
import pathlib
import random
import socket
import statistics
import sys
import time

import driver
from hostile_requests import Hostile
from hostile_test import Attack
from serving import START, Server

SECONDS = float(os.environ.get("MILLRACE_SOAK_SECONDS", 600))
WARM = min(60.0, SECONDS / 4)
CLIENTS = 10
# Growth allowed for a warm heap: its pieces never repeat exactly.
# KiB of hostile requests that are read and refused at the same time: two workers, each with a body of
# 8 MiB at most, whose 2 million values take 125 MiB while it is read.
MOST_AT_ONCE = 256 << 10
MOST_GROWTH = 0.05


class Soak:
    def __init__(self, server):
        self.server, self.end, self.counts = server, time.monotonic() + SECONDS, {}
        self.attack, self.faults = Attack(server), []

    def sample(self):
        """Resident KiB, descriptors, threads."""
        process = pathlib.Path(f"/proc/{self.server.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return (int(status["VmRSS"].split()[0]), len(os.listdir(process / "fd")),
                int(status["Threads"]))

    def client(self, number):
        draw = random.Random(number)
        hostile = Hostile(1000 + number, None)
        kinds = (self.whole, self.stream, self.leave, self.embed, self.text, self.bound,
                 self.hostile)
        index = 0
        while time.monotonic() < self.end and not self.faults:
            kind = draw.choice(kinds)
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
            try:
                kind(draw, hostile, index)
            except (OSError, AssertionError) as problem:
                self.faults.append(f"{kind.__name__}: {problem!r}")
            index += 1

    def body(self, draw):
        return {"prompt": [draw.randrange(5, 500) for _ in range(draw.randint(1, 200))],
                "max_tokens": draw.randint(1, 60), "n": draw.choice([1, 1, 2]),
                "temperature": draw.choice([0, 1])}

    def whole(self, draw, *_):
        body = self.body(draw)
        if draw.random() < 0.3:
            body["logprobs"] = 3
        self.answered(self.server.ask("/v1/completions", body))

    def stream(self, draw, *_):
        body = {"messages": [{"role": "user", "content": START}], "stream": True,
                "max_tokens": draw.randint(1, 60)}
        self.answered(self.server.ask("/v1/chat/completions", body))

    def embed(self, draw, *_):
        self.answered(self.server.ask("/v1/embeddings", {"input": [START] * draw.randint(1, 8)}))

    def text(self, draw, *_):
        body = {"messages": [{"role": "user", "content": "x" * draw.randint(1, 3000)}]}
        self.answered(self.server.ask(draw.choice(["/apply-template", "/v1/messages/count_tokens"]), body))

    def bound(self, draw, *_):
        names = [f"p{i}" for i in range(draw.randint(1, 6))]
        kinds = [{"type": draw.choice(["string", "integer", "boolean"])} for _ in names]
        schema = {"type": "object", "properties": dict(zip(names, kinds)), "required": names}
        body = {"messages": [{"role": "user", "content": START}], "max_tokens": 40,
                "response_format": {"type": "json_schema",
                                    "json_schema": {"name": "a", "schema": schema}}}
        self.answered(self.server.ask("/v1/chat/completions", body))

    def hostile(self, _, hostile, index):
        self.attack.one(hostile, index)

    def leave(self, draw, *_):
        data = json.dumps({**self.body(draw), "max_tokens": 300, "stream": True}).encode()
        with socket.create_connection((self.server.host, self.server.port), 60) as wire:
            wire.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
                         % len(data) + data)
            time.sleep(draw.random() * 0.2)

    def answered(self, answer):
        if answer[0] not in (200, 429):
            raise AssertionError(f"{answer[0]} {str(answer[2])[:300]}")


class SoakTest(driver.CliTest):
    def test_soak(self):
        server = Server("--sequences", 8, "--queue", 64, "--log", "none")
        self.addCleanup(server.stop)
        soak = Soak(server)
        begin, samples = time.monotonic(), []
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(soak.client, i) for i in range(CLIENTS)]
            while time.monotonic() < soak.end and not soak.faults:
                time.sleep(min(5, SECONDS / 20))
                samples.append((time.monotonic() - begin, *soak.sample()))
            for client in running:
                client.result()
        self.assertEqual(soak.faults, [])
        self.assertEqual(soak.attack.faults[:10], [])
        idle = server.wait_until(
            lambda: server.metric("vllm:num_requests_running") == 0
            and server.metric("vllm:kv_cache_usage_perc") == 0
            and server.metric("millrace_connections") == 1)
        made = int(server.metric("vllm:generation_tokens_total"))
        time.sleep(1)
        resident, descriptors, threads = soak.sample()
        warm = [s for s in samples if s[0] >= WARM]
        half = len(warm) // 2
        # Medians: a leak raises them, while a single large hostile request does not. Maxima are
        # printed.
        halves = [[s[1] for s in part] for part in (warm[:half], warm[half:])]
        early, late = (statistics.median(each) for each in halves)
        highest = max(max(each) for each in halves)
        print(f"{time.monotonic() - begin:.0f} s, {sum(soak.counts.values())} requests "
              f"{dict(sorted(soak.counts.items()))}, {made} tokens; resident "
              f"{early / 1024:.1f} MiB (median) from {WARM:.0f} s to the middle, {late / 1024:.1f} "
              f"after it, {highest / 1024:.1f} at most, {resident / 1024:.1f} at the end; "
              f"descriptors {descriptors} (at most "
              f"{max(s[2] for s in samples)}), threads {threads} (first {samples[0][3]})",
              file=sys.stderr)
        self.assertTrue(idle, server.ok("/metrics"))
        self.assertLess(late, early * (1 + MOST_GROWTH))
        self.assertLess(resident, early * (1 + MOST_GROWTH))
        self.assertLess(highest, early + MOST_AT_ONCE)
        self.assertEqual(threads, samples[0][3])
        self.assertEqual(descriptors, self.idle_descriptors())
        self.assertEqual(server.stop(), 0)

    def idle_descriptors(self):
        """Of a server that has answered nothing yet."""
        server = Server("--sequences", 8, "--queue", 64, "--log", "none")
        try:
            return Soak(server).sample()[1]
        finally:
            server.stop()


if __name__ == "__main__":
    driver.main()
