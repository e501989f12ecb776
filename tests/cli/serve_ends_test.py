"""millrace serve from start to end: keys, signals, timeouts of the transport, errors at the start,
and other kinds of models."""
import concurrent.futures
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import driver
from serving import CHAT, START, Server

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "page"))
from prefix_proxy import PrefixProxy  # noqa: E402


class Ends(driver.CliTest):
    def test_prompts_are_shared_by_one_key_alone(self):
        keys = self.folder / "keys"
        keys.write_text("first-secret\nother-secret\n")
        ask = {"prompt": [5] * 200, "max_tokens": 6, "seed": 1}
        for more in ((), ("--share-prefixes",)):
            server = Server("--api-key-file", keys, "--verbose-usage", *more)
            self.addCleanup(server.stop)
            # All but the last token, whose logits are needed; a GPU cuts prompts at multiples of
            # 64.
            device = server.ok("/props", headers={"x-api-key": "first-secret"})["device"]
            known = 199 if device == "cpu" else 192
            shared = known if more else 0
            texts, found = set(), []
            for key in ("first-secret", "other-secret", "first-secret", "other-secret"):
                answer = server.ok("/v1/completions", ask, headers={"x-api-key": key})
                texts.add(answer["choices"][0]["text"])
                found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            self.assertEqual(found, [0, shared, known, known])
            self.assertEqual(len(texts), 1)
            self.assertEqual(server.stop(), 0)

    def test_keys(self):
        keys = self.folder / "keys"
        keys.write_text("# two\nfirst-secret\nother-secret\n")
        server = Server("--api-key-file", keys, "--allow-origin", "https://page.example",
                        "--log", "json")
        self.addCleanup(server.stop)
        page = {"Origin": "https://page.example"}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "first-secre"}):
            for path, body in (("/v1/models", None), ("/metrics", None), ("/nothing", None),
                               ("/v1/completions", {"prompt": START})):
                status, found, answer = server.ask(path, body, headers=headers)
                self.assertEqual((status, answer["error"]["code"]), (401, "invalid_api_key"))
                self.assertEqual(found["WWW-Authenticate"], "Bearer")
        for headers in ({"Authorization": "Bearer first-secret"}, {"x-api-key": "other-secret"}):
            self.assertEqual(server.ask("/v1/models", headers=headers)[0], 200)
        self.assertEqual(server.ask("/health")[0], 200)
        self.assertEqual(server.ask("/")[0], 200)
        status, headers, _ = server.ask("/v1/completions", method="OPTIONS", headers={
            **page, "Access-Control-Request-Method": "POST"})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, page["Origin"]))
        self.assertIn("authorization", headers["Access-Control-Allow-Headers"])
        self.assertEqual(server.ask("/v1/models", headers=page)[0], 401)
        self.assertEqual(server.stop(signal.SIGINT), 0)
        ready = json.loads(server.line)
        self.assertEqual((ready["ready"], ready["url"]),
                         ("storyteller", f"http://{server.host}:{server.port}"))
        lines = [json.loads(line) for line in server.err]  # every line, notes too
        self.assertIn("continues texts", lines[0]["note"])
        logged = [line for line in lines if "status" in line]
        self.assertEqual(logged[0]["status"], 401)
        self.assertEqual(set(logged[0]), {"time", "peer", "method", "path", "status", "bytes",
                                          "seconds", "whole", "request_id"})
        self.assertNotIn("secret", str(server.err))

    def test_it_answers_while_it_loads(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen([driver.BIN, "serve", "--port", str(port), "--threads", "2"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        seen = []

        def healthy():
            try:
                wire = http.client.HTTPConnection("127.0.0.1", port, timeout=driver.HANG)
                wire.request("GET", "/health")
                answer = wire.getresponse()
                seen.append((answer.status, answer.read()))
            except ConnectionRefusedError:
                return False
            finally:
                wire.close()
            return answer.status == 200
        self.assertTrue(driver.eventually(healthy, driver.HANG))
        self.assertEqual(seen[-1], (200, b'{"status":"ok"}'))
        self.assertLessEqual(set(seen[:-1]), {(503, b'{"status":"loading"}')})

    def test_a_trusted_proxy(self):
        server = Server("--trusted-proxy", "127.0.0.1", "--strict", "--log", "json")
        self.addCleanup(server.stop)
        with PrefixProxy(server.port) as proxy:
            with urllib.request.urlopen(proxy.url + "/", timeout=driver.HANG) as page:
                self.assertIn(b"<title>Millrace</title>", page.read())
            with self.assertRaises(urllib.error.HTTPError) as wrong:
                urllib.request.urlopen(proxy.url + "/v1/completions", timeout=driver.HANG,
                                       data=b'{"prompt": "a", "temprature": 1}')
            error = json.loads(wrong.exception.read())["error"]
            wrong.exception.close()
            self.assertEqual((error["param"], error["code"]), ("temprature", "unknown_field"))
            self.assertEqual(proxy.strays, [])
        status, headers, _ = server.ask("/health", headers={"x-request-id": "my-own"})
        self.assertEqual((status, headers["X-Request-Id"]), (200, "my-own"))
        self.assertEqual(server.stop(), 0)
        logged = {line["path"]: line for line in map(json.loads, server.err) if "path" in line}
        self.assertEqual(logged["/v1/completions"]["peer"], "192.0.2.7")
        self.assertEqual(logged["/health"]["peer"], "127.0.0.1")
        self.assertEqual(logged["/health"]["request_id"], "my-own")
        for name in ("proxy.example", "10.0.0.0/8"):
            self.fails(2, "serve", "--trusted-proxy", name, says=["--trusted-proxy", name])
        result = driver.millrace("serve", "--trusted-proxy", "x", "--log", "json")
        self.assertEqual(result.code, 2)
        self.assertIn("--trusted-proxy", json.loads(result.err)["error"])
        # Options that cannot be read: the format is not known yet.
        for wrong in (("--no-such-option",), ("--port", "high"), ("--sequences", 0)):
            self.fails(2, "serve", "--log", "json", *wrong, says=wrong[0])

    def test_unknown_fields_are_named_in_the_log(self):
        server = Server()
        self.addCleanup(server.stop)
        for _ in range(2):
            server.ok("/v1/completions", {"prompt": "a", "max_tokens": 1, "temprature": 1})
        self.assertEqual(server.metric("millrace_unknown_fields_total"), 2)
        self.assertEqual(server.stop(), 0)
        named = [line for line in server.err if b"temprature" in line]
        self.assertEqual(named, [b"note: requests have the unknown field 'temprature', which is "
                                 b"ignored; did you mean 'temperature'?\n"])

    def test_sigterm_finishes_what_was_asked(self):
        # Four rounds of two texts: the signal comes in the first one, and texts still wait if this
        # machine delays it by two.
        server = Server("--sequences", 2, "--grace", 200)
        self.addCleanup(server.stop)
        body = {"prompt": START, "max_tokens": 480, "ignore_eos": True, "seed": 1, "stream": True}
        whole = server.events("/v1/completions", body)
        before = server.texts()
        idle = server.connection()
        idle.request("GET", "/health")
        idle.getresponse().read()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(server.events, "/v1/completions", body) for _ in range(8)]
            self.assertTrue(server.wait_until(lambda: server.texts() == before + 8))
            self.assertGreater(server.metric("vllm:num_requests_waiting"), 0)
            server.process.send_signal(signal.SIGTERM)
            texts = [[json.loads(d)["choices"][0]["text"] for _, d in events[:-1]]
                     for events in (a.result() for a in asked)]
        self.assertEqual(texts, [[json.loads(d)["choices"][0]["text"] for _, d in whole[:-1]]] * 8)
        self.assertEqual(server.process.wait(driver.HANG), 0)
        with self.assertRaises(OSError):
            server.ok("/health")

    def test_sigterm_cuts_when_the_time_is_over(self):
        server = Server("--sequences", 2, "--grace", 0.2, "--log", "none")
        self.addCleanup(server.stop)
        body = json.dumps({"prompt": START, "max_tokens": 500, "ignore_eos": True, "stream": True,
                           "n": 16})
        connection = server.connection()
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        begin = answer.read(100)
        server.process.send_signal(signal.SIGTERM)
        try:
            rest = answer.read()
        except http.client.IncompleteRead as cut:
            rest = cut.partial
        else:
            self.fail("the stream has an end as if it were whole")
        events = (begin + rest).decode().split("\n\n")
        self.assertEqual(json.loads(events[-2][len("data: "):])["error"]["code"], "shutting_down")
        self.assertEqual(server.process.wait(driver.HANG), 0)

    def test_times_of_the_transport(self):
        # No time has an upper bound here: the limit that must not end a request is a minute, or
        # comes first.
        server = Server("--idle-timeout", 0.5, "--header-timeout", 0.3, "--read-timeout", 60)
        self.addCleanup(server.stop)
        self.assertRegex(server.raw(b"GET /health HT"), rb"^HTTP/1\.1 408 ")
        self.assertEqual(server.raw(b""), b"")
        self.assertEqual(server.stop(), 0)
        server = Server("--header-timeout", 0.5, "--read-timeout", 2)
        self.addCleanup(server.stop)
        begin = time.monotonic()
        self.assertRegex(server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                    b"Content-Length: 9\r\n\r\n{"), rb"^HTTP/1\.1 408 ")
        self.assertGreater(time.monotonic() - begin, 1.9)
        self.assertEqual(server.stop(), 0)
        self.fails(2, "serve", "--write-timeout", 0, says="--write-timeout")

    def test_what_is_refused_at_the_start(self):
        self.fails(2, "serve", "--host", "0.0.0.0", says=("--api-key-file", "--no-auth"))
        self.fails(1, "serve", "--api-key-file", self.folder / "none", says="none")
        self.fails(2, "serve", "--allow-origin", "*", says="--allow-origin")
        self.fails(1, "serve", "--host", "256.1.1.1", "--no-auth", says="cannot listen")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.fails(1, "serve", "--port", taken.getsockname()[1], says="in use")
        self.fails(2, "serve", "--port", 0, "--sinks", 4, says="--context streaming")

    def test_other_kinds_of_models(self):
        server = Server(model=("storyteller-diffusion",))
        self.addCleanup(server.stop)
        ask = {"prompt": START, "max_tokens": 24, "seed": 1}
        whole = server.ok("/v1/completions", ask)["choices"][0]["text"]
        self.assertTrue(whole)
        events = server.events("/v1/completions", {**ask, "stream": True})[:-1]
        self.assertEqual("".join(json.loads(d)["choices"][0]["text"] for _, d in events), whole)
        props = server.ok("/props")
        self.assertTrue(props["diffusion"])
        self.assertNotIn("bytes_per_token", props)  # a pass makes several tokens
        chat = {"messages": CHAT, "max_tokens": 24, "seed": 1, "stream": True}
        plain = server.events("/v1/chat/completions", chat)
        shown = server.events("/v1/chat/completions", {
            **chat, "stream_options": {"include_blocks": True}})
        chunks = [json.loads(data) for _, data in shown[:-1]]
        blocks = [c["millrace"]["block"] for c in chunks if "block" in c.get("millrace", {})]
        texts = [[json.loads(data)["choices"][0]["delta"].get("content", "") for _, data in events]
                 for events in (plain[:-1], shown[:-1])]
        self.assertEqual("".join(texts[0]), "".join(texts[1]))
        self.assertNotIn("block", str(plain))
        settled = [block for block in blocks if None not in block]
        self.assertEqual("".join(map("".join, settled)), "".join(texts[1]))
        self.assertGreater(len(blocks), len(settled))
        for path, more in (("/v1/completions", {"logprobs": 1}),
                           ("/v1/completions", {"logprobs": 1, "echo": True, "max_tokens": 0}),
                           ("/v1/completions", {"repetition_penalty": 1.5})):
            self.assertEqual(server.ask(path, {**ask, **more})[0], 400)
        self.assertEqual(server.ask("/v1/embeddings", {"input": "a"})[0], 400)
        for field, value in (("logit_bias", {"5": 1}), ("presence_penalty", 1),
                             ("frequency_penalty", -1), ("min_tokens", 2), ("prompt_logprobs", 0),
                             ("response_format", {"type": "json_object"}),
                             ("tools", [{"type": "function", "function": {"name": "f"}}])):
            status, _, answer = server.ask("/v1/chat/completions", {"messages": CHAT, field: value})
            self.assertEqual((status, answer["error"]["param"]), (400, field))
        self.assertEqual(server.stop(), 0)
        server = Server("--context", "streaming", "--window", 64, "--sequences", 2)
        self.addCleanup(server.stop)
        long = server.ok("/v1/completions", {"prompt": START, "max_tokens": 600, "ignore_eos": True})
        self.assertEqual(long["usage"]["completion_tokens"], 600)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    driver.main()
