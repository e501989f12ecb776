"""Answers do not depend on load: random requests get the same bytes one by one and all together,
beside others whose clients disconnect. On a GPU with MILLRACE_DEVICE=cuda; another model with
MILLRACE_LOAD_MODEL, more requests with MILLRACE_LOAD_REQUESTS."""
import concurrent.futures
import json
import os
import random
import re
import socket
import time

import driver
from serving import START, Server

COUNT = int(os.environ.get("MILLRACE_LOAD_REQUESTS", 200))
MODEL = tuple(filter(None, [os.environ.get("MILLRACE_LOAD_MODEL")]))
TOGETHER = 48
LEAVING = 40
BEGINNINGS = (START, "The cat sat on", START + ", there was a little girl called",
              "One day a dog found a big red ball in the garden. " * 4,
              "One day a dog found a big red ball in the garden. " * 4 + "Then")


def request(index):
    """(path, body): equal prompts, shared prefixes, all sampling options."""
    draw = random.Random(f"load {index}")
    chat = draw.random() < 0.4
    body = {"max_tokens": draw.randint(1, 16), "seed": draw.randrange(1 << 40),
            "temperature": draw.choice([0, 0.7, 1, 1.7])}
    options = {
        "top_p": lambda: draw.choice([0.3, 0.9, 1]), "top_k": lambda: draw.choice([0, 1, 5, 40]),
        "min_p": lambda: draw.choice([0, 0.05, 0.3]), "stop": lambda: draw.choice(["a", [".", " the"]]),
        "repetition_penalty": lambda: draw.choice([0.8, 1.1, 1.5]), "n": lambda: draw.choice([1, 2, 3]),
        "repeat_window": lambda: draw.choice([0, 3, 64]), "ignore_eos": lambda: draw.random() < 0.5,
    }
    for name in options:
        if draw.random() < 0.3:
            body[name] = options[name]()
    if draw.random() < 0.4:
        body["stream"] = True
        body["stream_options"] = {"include_usage": draw.random() < 0.5}
    logprobs = draw.random() < 0.15
    prompt = draw.choice(BEGINNINGS)
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
        if logprobs:
            body.update(logprobs=True, top_logprobs=draw.choice([0, 3]))
        return "/v1/chat/completions", body
    body["prompt"] = draw.choice([prompt, [prompt, START]])
    if logprobs:
        body["logprobs"] = draw.choice([0, 2])
    if draw.random() < 0.2:
        body["echo"] = True
    return "/v1/completions", body


MORE = {"presence_penalty": 0.8, "frequency_penalty": -0.5, "logit_bias": {"20": 4, "30": -100},
        "response_format": {"type": "json_object"}, "min_tokens": 6, "cache_prompt": False,
        "stop_token_ids": [20, 40]}


def without_names(text):
    return re.sub(r'"id":"[^"]*"|"created":\d+', "", text)


def canonical(text):
    """The answer without its ids. Events of several choices come in any order."""
    text = without_names(text)
    if not text.startswith("data: "):
        return text
    by_choice = {}
    for event in text.split("\n\n"):
        found = re.search(r'"choices":\[\{[^\[\]]*?"index":(\d+)', event)
        by_choice.setdefault(found[1] if found else "", []).append(event)
    return by_choice


class LoadTest(driver.CliTest):
    def setUp(self):
        super().setUp()
        self.server = Server("--sequences", 24, "--queue", 512, "--log", "none", model=MODEL)
        self.addCleanup(self.server.stop)

    def answer(self, index):
        path, body = request(index)
        draw = random.Random(f"more {index}")
        for name, value in MORE.items():
            if draw.random() < 0.2 and (name != "response_format" or "messages" in body):
                body[name] = value
        if "response_format" in body:
            body.pop("ignore_eos", None)  # a constrained text has an end
        connection = self.server.connection(120)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            text = answer.read().decode()
            self.assertEqual(answer.status, 200, (index, body, text))
            return canonical(text)
        finally:
            connection.close()

    def leave(self, index):
        """Asks for a long text like another client's, and disconnects in the middle."""
        draw = random.Random(f"leave {index}")
        path, body = request(draw.randrange(COUNT))
        data = json.dumps({**body, "max_tokens": 300, "ignore_eos": True,
                           "stream": draw.random() < 0.5}).encode()
        with socket.create_connection((self.server.host, self.server.port), 60) as wire:
            wire.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
                         "\r\n".encode() + data)
            time.sleep(draw.random() * 0.3)

    def test_the_same_bytes_alone_and_together(self):
        start = time.monotonic()
        alone = [self.answer(i) for i in range(COUNT)]
        middle = time.monotonic()
        jobs = [(self.answer, i) for i in range(COUNT)] + [(self.leave, i) for i in range(LEAVING)]
        random.Random(1).shuffle(jobs)
        with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
            asked = [(run, i, pool.submit(run, i)) for run, i in jobs]
            for run, i, done in asked:
                found = done.result()
                if run == self.answer:
                    self.assertEqual(found, alone[i], (i, request(i)))
        print(f"{COUNT} requests: {middle - start:.1f} s alone, {time.monotonic() - middle:.1f} s "
              "together")
        server = self.server
        self.assertTrue(server.wait_until(lambda: server.metric("vllm:num_requests_running") == 0
                                          and server.metric("vllm:num_requests_waiting") == 0
                                          and server.metric("vllm:kv_cache_usage_perc") == 0))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    driver.main()
