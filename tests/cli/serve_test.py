"""millrace serve: every route, streams, and independence of requests."""
import base64
import concurrent.futures
import json
import os
import socket
import struct

import driver
from serving import CHAT, START, Shared


class Routes(Shared):
    arguments = ("--sequences", 8, "--alias", "gpt-x", "--verbose-usage")

    def test_what_the_server_says_of_itself(self):
        server = self.server
        props = server.ok("/props")
        device = props["device"]
        asked = os.environ.get("MILLRACE_DEVICE", "auto")
        self.assertIn(device, ("cpu", "cuda") if asked == "auto" else (asked,))
        name = {"cpu": "CPU", "cuda": "GPU"}[device]
        self.assertRegex(server.line, r"^millrace: storyteller at http://127\.0\.0\.1:\d+ "
                                      rf"\(8 sequences, context 512, cache of \d+ tokens in [\d.]+ MiB, {name}\)\n$")
        self.assertEqual(server.ok("/health"), {"status": "ok"})
        model = server.ok("/v1/models")["data"][0]
        self.assertEqual(server.ok(f"/v1/models/{model['id']}"), model)
        self.assertEqual((model["id"], model["object"], model["max_model_len"]),
                         ("storyteller", "model", 512))
        self.assertEqual((props["sequences"], props["context"]), (8, 512))
        self.assertRegex(props["system_fingerprint"], rf"^mr_[0-9a-f]{{8}}_[0-9a-f]{{8}}_{device}$")
        server.ok("/v1/completions", {"prompt": START, "max_tokens": 3})
        self.assertGreaterEqual(server.metric("vllm:generation_tokens_total"), 3)
        self.assertGreaterEqual(server.metric("vllm:time_to_first_token_seconds_count"), 1)
        self.assertGreaterEqual(server.metric("vllm:request_decode_time_seconds_count"), 1)
        self.assertGreaterEqual(server.metric("vllm:request_generation_tokens_sum"), 3)
        self.assertGreater(server.metric("millrace_bytes_read_total"), 3 * props["bytes_per_token"])
        # Two of the three tokens came from passes after the prompt's.
        self.assertGreaterEqual(server.metric("millrace_decode_bytes_read_total"),
                                2 * props["bytes_per_token"])
        self.assertLess(server.metric("millrace_decode_bytes_read_total"),
                        server.metric("millrace_bytes_read_total"))
        self.assertGreater(server.metric("millrace_decode_seconds_total"), 0)
        self.assertIs(props["continues_texts"], True)
        self.assertRegex(server.ok("/version")["version"], r"^millrace \d+\.\d+")
        self.assertIn("\nprocess_open_fds ", server.ok("/metrics"))

    def test_memory_and_its_roof(self):
        props = self.server.ok("/props")
        memory = props["memory"]
        self.assertEqual(sum(one["bytes"] for one in memory["items"]), memory["total"])
        self.assertLess(memory["total"], memory["capacity"])
        self.assertIn("KV cache", [one["name"] for one in memory["items"]])
        if props["in_cache"]:  # memory is no limit: nothing was measured
            self.assertNotIn("roof", props)
        else:
            self.assertTrue(1e8 < props["roof"]["bytes_per_s"] < 1e13, props["roof"])

    def test_the_ledger_of_a_request(self):
        ask = {"prompt": [5] * 50, "max_tokens": 8, "ignore_eos": True, "seed": 1}
        weights = self.server.ok("/props")["bytes_per_token"]
        usage = self.server.ok("/v1/completions", ask)["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        own = usage["millrace"]
        only = own["choices"][0]
        self.assertEqual(len(own["choices"]), 1)
        self.assertEqual((only["prefill"]["tokens"], only["decode"]["tokens"]), (50 - found, 7))
        # Seven tokens alone read the weights seven times, and little else.
        self.assertGreaterEqual(only["decode"]["bytes_read"], 7 * weights)
        self.assertLess(only["decode"]["bytes_read"], 14 * weights)
        self.assertEqual(own["bytes_per_token"], only["decode"]["bytes_read"] / 7)
        self.assertAlmostEqual(own["bytes_per_s"] * only["decode"]["seconds"],
                               only["decode"]["bytes_read"], delta=1)
        self.assertGreater(only["prefill"]["flops"], 0)
        self.assertGreater(own["first_token_s"], 0)
        self.assertGreaterEqual(own["first_token_s"], only["prefill"]["seconds"])
        events = self.server.events("/v1/completions", {
            **ask, "n": 3, "stream": True, "stream_options": {"include_usage": True}})
        streamed = json.loads(events[-2][1])["usage"]["millrace"]
        self.assertEqual([one["decode"]["tokens"] for one in streamed["choices"]], [7, 7, 7])
        self.assertNotIn("bytes_per_token", streamed)  # the choices share their passes

    def test_the_page(self):
        status, headers, page = self.server.ask("/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertTrue(page.startswith("<!doctype html>"), page[:40])
        self.assertEqual(int(headers["Content-Length"]), len(page.encode()))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertIn("script-src 'sha256-", headers["Content-Security-Policy"])
        self.assertRegex(headers["ETag"], r'^"[0-9a-f]+"$')
        for known in (headers["ETag"], f'"x", W/{headers["ETag"]}'):
            status, again, body = self.server.ask("/", headers={"If-None-Match": known})
            self.assertEqual((status, body, again["ETag"]), (304, "", headers["ETag"]))
            self.assertIsNone(again["Content-Length"])
            self.assertEqual(again["Content-Security-Policy"], headers["Content-Security-Policy"])
        self.assertEqual(self.server.ask("/", headers={"If-None-Match": '"0"'})[0], 200)
        self.refused(405, "/", {})

    def test_methods(self):
        status, headers, body = self.server.ask("/v1/models", method="HEAD")
        self.assertEqual((status, body), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 50)
        status, headers, _ = self.server.ask("/v1/completions", method="OPTIONS")
        self.assertEqual((status, headers["Allow"]), (204, "POST, OPTIONS"))
        headers = self.refused(405, "/v1/completions", None)
        self.assertEqual(headers["Allow"], "POST, OPTIONS")
        self.refused(405, "/health", "", method="DELETE")
        for path in ("/v1", "/v1/models/", "/v1%2Fmodels", "/../v1/models", "/v1/models%00"):
            self.refused(404, path, None)

    def test_completions(self):
        ask = {"prompt": START, "max_tokens": 8, "seed": 7, "model": "storyteller"}
        whole = self.server.ok("/v1/completions", ask)
        self.assertEqual(whole["object"], "text_completion")
        self.assertEqual(whole["usage"]["completion_tokens"], 8)
        self.assertIn("cached_tokens", whole["usage"]["prompt_tokens_details"])
        choice = whole["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["logprobs"]), ("length", None))
        # As on the command line, and as a list of ids.
        run = self.ok_json("run", "-p", START, "-n", 8, "--seed", 7, "--temp", 1, "--top-p", 1,
                           "--top-k", 0, "--min-p", 0)
        self.assertEqual(choice["text"], run["text"])
        ids = self.server.ok("/tokenize", {"content": START, "add_special": True})["tokens"]
        self.assertEqual(ids, run["prompt_ids"])
        for prompt in (ids, [ids], [START]):
            again = self.server.ok("/v1/completions", {**ask, "prompt": prompt})
            self.assertEqual(again["choices"][0]["text"], choice["text"])
        # Several prompts, several choices, echo.
        many = self.server.ok("/v1/completions", {**ask, "prompt": ["The cat", START], "n": 2,
                                                  "echo": True})["choices"]
        self.assertEqual([c["index"] for c in many], [0, 1, 2, 3])
        self.assertEqual(many[2]["text"], START + choice["text"])
        second = self.server.ok("/v1/completions", {**ask, "seed": 8})["choices"][0]["text"]
        self.assertEqual(many[3]["text"], START + second)
        # With and without stop strings.
        word = choice["text"].split()[2]
        cut = self.server.ok("/v1/completions", {**ask, "stop": [word, "never"]})["choices"][0]
        self.assertEqual((cut["text"], cut["finish_reason"]),
                         (choice["text"][:choice["text"].index(word)], "stop"))
        none = self.server.ok("/v1/completions", {**ask, "max_tokens": 0, "echo": True})
        self.assertEqual(none["choices"][0]["text"], START)

    def test_streams(self):
        ask = {"prompt": START, "max_tokens": 8, "seed": 7, "n": 2}
        whole = self.server.ok("/v1/completions", ask)
        events = self.server.events("/v1/completions", {
            **ask, "stream": True, "stream_options": {"include_usage": True}})
        self.assertEqual(events.pop(), ("", "[DONE]"))
        chunks = [json.loads(data) for _, data in events]
        last = chunks.pop()
        self.assertEqual((last["choices"], last["usage"]["completion_tokens"]), ([], 16))
        texts, reasons = ["", ""], [[], []]
        for chunk in chunks:
            self.assertIsNone(chunk["usage"])
            self.assertEqual(chunk["id"], chunks[0]["id"])
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
                reasons[choice["index"]].append(choice["finish_reason"])
        self.assertEqual(texts, [c["text"] for c in whole["choices"]])
        for found in reasons:
            self.assertEqual(found.pop(), "length")
            self.assertEqual(set(found), {None})

    def test_chat(self):
        ask = {"messages": [{"role": "system", "content": "Be kind."}, *CHAT], "seed": 3,
               "max_completion_tokens": 6, "model": "gpt-x"}
        whole = self.server.ok("/v1/chat/completions", ask)
        self.assertEqual((whole["object"], whole["model"]), ("chat.completion", "storyteller"))
        message = whole["choices"][0]["message"]
        self.assertEqual((message["role"], message["refusal"]), ("assistant", None))
        parts = [{"role": "developer", "content": [{"type": "text", "text": "Be "},
                                                   {"type": "text", "text": "kind."}]}, *CHAT]
        again = self.server.ok("/v1/chat/completions", {**ask, "messages": parts})
        self.assertEqual(again["choices"][0]["message"], message)
        events = self.server.events("/v1/chat/completions", {**ask, "stream": True})
        self.assertEqual(events.pop()[1], "[DONE]")
        deltas = [json.loads(data)["choices"][0] for _, data in events]
        self.assertEqual(deltas[0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(d["delta"].get("content", "") for d in deltas), message["content"])
        self.assertEqual((deltas[-1]["delta"], deltas[-1]["finish_reason"]), ({}, "length"))
        self.assertNotIn("usage", json.loads(events[0][1]))
        # Continues an answer.
        begun = self.server.ok("/v1/chat/completions", {
            **ask, "messages": [*ask["messages"], {"role": "assistant", "content": " The old"}],
            "continue_final_message": True})
        self.assertGreater(begun["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"])
        written = self.server.ok("/apply-template", {"messages": ask["messages"]})
        self.assertIn("Be kind.", written["prompt"])
        self.assertEqual(len(written["tokens"]), whole["usage"]["prompt_tokens"])

    def test_logprobs(self):
        ask = {"messages": CHAT, "max_tokens": 4, "seed": 3}
        plain = self.server.ok("/v1/chat/completions", ask)["choices"][0]
        asked = {**ask, "logprobs": True, "top_logprobs": 2}
        found = self.server.ok("/v1/chat/completions", asked)["choices"][0]
        self.assertEqual(found["message"], plain["message"])
        content = found["logprobs"]["content"]
        self.assertEqual("".join(t["token"] for t in content), plain["message"]["content"])
        for token in content:
            self.assertLessEqual(token["logprob"], 0)
            self.assertEqual(bytes(token["bytes"]).decode(), token["token"])
            self.assertEqual(len(token["top_logprobs"]), 2)
            self.assertGreaterEqual(token["top_logprobs"][0]["logprob"], token["logprob"])
        events = self.server.events("/v1/chat/completions", {**asked, "stream": True})[:-1]
        streamed = [t for _, data in events
                    for t in (json.loads(data)["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.assertEqual(streamed, content)
        old = self.server.ok("/v1/completions", {"prompt": START, "max_tokens": 3, "logprobs": 1})
        logprobs = old["choices"][0]["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), old["choices"][0]["text"])
        self.assertEqual(len(logprobs["top_logprobs"]), len(logprobs["text_offset"]))

    def test_messages(self):
        ask = {"messages": CHAT, "system": [{"type": "text", "text": "Be kind."}], "max_tokens": 6,
               "seed": 3, "model": "storyteller"}
        whole = self.server.ok("/v1/messages", ask)
        self.assertEqual((whole["type"], whole["role"], whole["stop_reason"]),
                         ("message", "assistant", "max_tokens"))
        text = whole["content"][0]["text"]
        same = self.server.ok("/v1/chat/completions", {
            "messages": [{"role": "system", "content": "Be kind."}, *CHAT], "max_tokens": 6,
            "seed": 3})
        self.assertEqual(text, same["choices"][0]["message"]["content"])
        count = self.server.ok("/v1/messages/count_tokens",
                               {k: ask[k] for k in ("messages", "system", "model")})
        self.assertEqual(count["input_tokens"], whole["usage"]["input_tokens"])
        events = self.server.events("/v1/messages", {**ask, "stream": True})
        names = [name for name, _ in events]
        self.assertEqual(names[:2] + names[-3:], ["message_start", "content_block_start",
                                                  "content_block_stop", "message_delta",
                                                  "message_stop"])
        self.assertTrue(all(json.loads(data)["type"] == name for name, data in events))
        self.assertEqual("".join(json.loads(data)["delta"]["text"] for name, data in events
                                 if name == "content_block_delta"), text)
        word = text.split()[1]
        cut = self.server.ok("/v1/messages", {**ask, "stop_sequences": ["never", word]})
        self.assertEqual((cut["stop_reason"], cut["stop_sequence"]), ("stop_sequence", word))
        status, _, answer = self.server.ask("/v1/messages", {"messages": CHAT})
        self.assertEqual((status, answer["type"], answer["error"]["param"]),
                         (400, "error", "max_tokens"))

    def test_embeddings(self):
        floats = self.server.ok("/v1/embeddings", {"input": ["The cat", START]})
        self.assertEqual([d["index"] for d in floats["data"]], [0, 1])
        vector = floats["data"][1]["embedding"]
        self.assertAlmostEqual(sum(x * x for x in vector), 1, places=4)
        packed = self.server.ok("/v1/embeddings", {"input": START, "encoding_format": "base64"})
        raw = base64.b64decode(packed["data"][0]["embedding"])
        self.assertEqual(list(struct.unpack(f"<{len(raw) // 4}f", raw)),
                         [struct.unpack("<f", struct.pack("<f", x))[0] for x in vector])
        ids = self.server.ok("/tokenize", {"content": START, "add_special": True})["tokens"]
        same = self.server.ok("/v1/embeddings", {"input": [ids]})
        self.assertEqual(same["data"][0]["embedding"], vector)
        self.assertEqual(same["usage"]["prompt_tokens"], len(ids))
        last = self.server.ok("/v1/embeddings", {"input": START, "pooling": "last"})
        self.assertNotEqual(last["data"][0]["embedding"], vector)
        for body, param in (({"input": []}, "input"), ({"input": [[]]}, "input"),
                            ({"input": [[4096]]}, "input"), ({"input": [["a"]]}, "input"),
                            ({"input": 3}, "input"), ({"input": "a", "dimensions": 3}, "dimensions"),
                            ({"input": "a", "encoding_format": "x"}, "encoding_format")):
            self.refused(400, "/v1/embeddings", body, param)

    def test_tokens_there_and_back(self):
        text = "The cat \U0001F408 sat"
        answer = self.server.ok("/tokenize", {"content": text, "with_pieces": True})
        ids = [t["id"] for t in answer["tokens"]]
        self.assertEqual(answer["count"], len(ids))
        self.assertEqual(self.server.ok("/detokenize", {"tokens": ids})["content"], text)
        self.refused(400, "/detokenize", {"tokens": [1 << 40]}, "tokens")
        self.refused(400, "/detokenize", {"tokens": [-1]}, "tokens")
        self.refused(400, "/detokenize", {"tokens": ["a"]}, "tokens")

    def test_what_is_wrong_is_named(self):
        chat, text = "/v1/chat/completions", "/v1/completions"
        for body in (b"", b"{", b"[]", b"{\"prompt\": NaN}", b"\xff", b"[" * 100000,
                     b"{\"a\":" * 3000, b"{\"prompt\":\"a\",\"prompt\":\"b\"}", b"nul"):
            self.refused(400, text, body)
        for body, param in (
                ({"prompt": START, "temperature": -1}, "temperature"),
                ({"prompt": START, "top_p": 2}, "top_p"),
                ({"prompt": START, "n": 1000000}, "n"),
                ({"prompt": START, "max_tokens": -5}, "max_tokens"),
                ({"prompt": START, "suffix": "x"}, "suffix"),
                ({"prompt": START, "best_of": 2}, "best_of"),
                ({"prompt": START, "logprobs": 21}, "logprobs"),
                ({"prompt": START, "stop": ["a" * 2000]}, "stop"),
                ({"prompt": START, "logit_bias": {"99999999": 5}}, "logit_bias"),
                ({"prompt": START, "stream_options": {"include_usage": 1}},
                 "stream_options.include_usage"),
                ({"prompt": START, "stream_options": {"include_blocks": "a"}},
                 "stream_options.include_blocks"),
                ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": [5000]}, "prompt"),
                ({"prompt": [-1]}, "prompt"), ({"prompt": {}}, "prompt"), ({}, "prompt"),
                ({"prompt": ["a"] * 129}, "prompt")):
            self.refused(400, text, body, param)
        for body, param in (
                ({"messages": [{"role": "cat", "content": "a"}]}, "messages[0].role"),
                ({"messages": [{"role": "user"}]}, "messages[0].content"),
                ({"messages": [{"content": "a"}]}, "messages[0].role"),
                ({"messages": ["a"]}, "messages[0]"),
                ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                 "messages[0].content"),
                ({"messages": CHAT, "top_logprobs": 1}, "top_logprobs"),
                ({"messages": CHAT, "response_format": {"type": "x"}}, "response_format.type"),
                ({"messages": CHAT, "continue_final_message": True}, "continue_final_message"),
                ({"messages": CHAT, "chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs")):
            self.refused(400, chat, body, param)
        for name in ("a b", "a=b", "1a", ""):
            _, _, answer = self.server.ask(chat, {"messages": CHAT, "chat_template_kwargs": {name: 1}})
            self.assertIn(f"'chat_template_kwargs' has '{name}'", answer["error"]["message"])
        self.refused(404, chat, {"messages": CHAT, "model": "gpt-4"}, "model", "model_not_found")
        self.refused(404, "/v1/models/gpt-4", None, "model", "model_not_found")
        _, _, answer = self.server.ask("/v1/messages", {"messages": CHAT, "model": "gpt-4", "max_tokens": 1})
        self.assertEqual((answer["type"], answer["error"]["type"]), ("error", "not_found_error"))
        for body in ({"prompt": "word " * 3000}, {"prompt": [5] * 512}, {"prompt": "a" * (7 << 20)}):
            self.refused(400, text, body, "prompt", "context_length_exceeded")
        # An embedded text may fill the context: nothing follows it.
        self.server.ok("/v1/embeddings", {"input": [[5] * 512]})
        self.refused(400, "/v1/embeddings", {"input": [[5] * 513]}, "input", "context_length_exceeded")
        # The longest prompt that fits has room for one token.
        full = self.server.ok(text, {"prompt": [5] * 511, "max_tokens": 50, "ignore_eos": True})
        self.assertEqual((full["usage"]["completion_tokens"], full["choices"][0]["finish_reason"]),
                         (1, "length"))

    def test_pipelined_requests_are_answered_in_order(self):
        bodies = [json.dumps({"prompt": START, "max_tokens": tokens, "seed": 1})
                  for tokens in (30, 1, 10)]
        requests = "".join(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                           f"{len(b)}\r\n\r\n{b}" for b in bodies)
        requests += "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = self.server.raw(requests.encode())
        tokens = [json.loads(part)["usage"]["completion_tokens"] for part in answer.decode().split(
            "\r\n") if part.startswith("{") and "usage" in part for part in [part.split("HTTP/1.1")[0]]]
        self.assertEqual(tokens, [30, 1, 10])
        self.assertTrue(answer.endswith(b'{"status":"ok"}'))

    def test_hosts_and_origins(self):
        self.refused(421, "/v1/models", None, headers={"Host": "evil.example"})
        self.assertTrue(self.server.raw(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "))
        self.refused(403, "/v1/models", None, headers={"Origin": "https://evil.example"})
        own = f"http://127.0.0.1:{self.server.port}"
        status, headers, _ = self.server.ask("/v1/models", headers={"Origin": own})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, None))


class Load(Shared):
    arguments = ("--sequences", 4, "--queue", 40)

    def test_the_same_bytes_alone_and_together(self):
        def body(i):
            return {"prompt": ["The cat", START, "A dog"][i % 3], "max_tokens": 4 + i % 13, "seed": i,
                    "temperature": [0, 1, 1.5][i % 3]}

        def text(i):
            if i % 2:
                return self.server.ok("/v1/completions", body(i))["choices"][0]["text"]
            events = self.server.events("/v1/completions", {**body(i), "stream": True})[:-1]
            return "".join(json.loads(data)["choices"][0]["text"] for _, data in events)

        def leave(i):
            wire = socket.create_connection((self.server.host, self.server.port), 10)
            data = json.dumps({"prompt": START, "max_tokens": 400, "ignore_eos": True,
                               "stream": True}).encode()
            wire.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                         + str(len(data)).encode() + b"\r\n\r\n" + data)
            wire.recv(100)
            wire.close()

        alone = [text(i) for i in range(30)]
        with concurrent.futures.ThreadPoolExecutor(34) as pool:
            together = [pool.submit(text, i) for i in range(30)]
            leaving = [pool.submit(leave, i) for i in range(4)]
            self.assertEqual([t.result() for t in together], alone)
            for future in leaving:
                future.result()
        self.idle()

    def idle(self):
        """Every slot, page and connection is free again, except the connection that asks."""
        self.assertTrue(self.server.wait_until(
            lambda: self.server.metric("vllm:num_requests_running") == 0
            and self.server.metric("vllm:num_requests_waiting") == 0
            and self.server.metric("vllm:kv_cache_usage_perc") == 0
            and self.server.metric("millrace_connections") == 1))

    def test_requests_that_are_no_requests(self):
        for data in (b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
                     b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20000 + b"\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     b"Content-Length: 9000000\r\n\r\n"):
            answer = self.server.raw(data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            self.assertRegex(answer, rb"^HTTP/1\.1 4\d\d ", data[:80])
        self.assertEqual(self.server.ok("/health"), {"status": "ok"})


class Endless(Shared):
    """Texts do not end by themselves, however fast the machine is or how slow this test."""
    arguments = ("--sequences", 4, "--queue", 40, "--context", "streaming")
    idle = Load.idle

    def long(self, stream, n=1):
        connection = self.server.connection()
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": START, "max_tokens": 1000000, "ignore_eos": True, "stream": stream, "n": n}))
        return connection

    def test_a_client_that_leaves_frees_its_slot(self):
        for stream in (False, True):
            connections = [self.long(stream, 4) for _ in range(3)]
            self.assertTrue(self.server.wait_until(
                lambda: self.server.metric("vllm:num_requests_running") == 4))
            for connection in connections:
                connection.close()
            self.idle()  # in seconds; the texts would take minutes

    def test_a_full_queue(self):
        connections = [self.long(True, 20), self.long(True, 20)]
        self.assertTrue(self.server.wait_until(
            lambda: self.server.metric("vllm:num_requests_waiting") >= 34))
        status, headers, answer = self.server.ask("/v1/completions", {"prompt": "a", "n": 30})
        self.assertEqual((status, answer["error"]["code"]), (429, "queue_full"))
        self.assertTrue(100 <= int(headers["Retry-After-Ms"]) <= 60000)
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        self.assertEqual(self.server.ok("/health"), {"status": "ok"})
        for connection in connections:
            connection.close()
        self.idle()
        self.server.ok("/v1/completions", {"prompt": "a", "max_tokens": 1})


if __name__ == "__main__":
    driver.main()
