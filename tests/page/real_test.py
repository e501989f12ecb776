#!/usr/bin/env python3
"""The page in Chromium, against `millrace serve` with the bundled models."""
import json
import pathlib
import sys
import tempfile
import threading
import time
import unittest

import browser
from browser import Keys, PageTest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
import driver  # noqa: E402
from serving import Server  # noqa: E402

browser.skip_without_a_browser()


class RealTest(PageTest):
    """One server for a class; each test begins with empty storage."""
    arguments, model = (), ()

    @classmethod
    def setUpClass(cls):
        cls.real = Server("--log", "json", *cls.arguments, model=cls.model)
        cls.real.url = f"http://{cls.real.host}:{cls.real.port}/"
        cls.real.missed = []
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        code = cls.real.stop()
        if code != 0:
            raise AssertionError(f"exit code {code}: {b''.join(cls.real.err)!r}")

    def open(self):
        super().open()
        self.wait(lambda: self.js("return 'model' in engine.props || Boolean(arguments[0])",
                                  self.server.key))

    def serve(self):
        self.server = self.real
        self.driver.get(self.server.url)
        self.js("localStorage.clear(); sessionStorage.clear()")

    def send(self, text, wait=True):
        count = len(self.messages())
        self.type(text + Keys.ENTER)
        self.wait(lambda: len(self.messages()) >= count + 2)
        if wait:
            self.idle()

    def expected(self, said, **more):
        """The server's own answer to the same request."""
        answer = self.server.ok("/v1/completions", {"prompt": said, **more})
        return answer["choices"][0]["text"]

    def last(self):
        return self.messages()[-1][1]

    def answered(self):
        """Statuses of requests for the page, from the server's log."""
        lines = [json.loads(line) for line in self.server.err if line.startswith(b"{")]
        return [line["status"] for line in lines if line.get("path") == "/"]


class Chat(RealTest):
    arguments = ("--verbose-usage", "--sequences", 8)

    def keep_busy(self):
        """Other texts beside the page's, so that its own takes longer."""
        left = threading.Event()

        def load():
            while not left.is_set():
                connection = self.server.connection()
                connection.request("POST", "/v1/completions", json.dumps({
                    "prompt": "Once", "n": 6, "max_tokens": 400, "ignore_eos": True}))
                while not left.is_set() and self.server.metric("vllm:num_requests_running") > 0:
                    left.wait(0.05)
                connection.close()

        thread = threading.Thread(target=load)
        thread.start()

        def leave():
            left.set()
            thread.join()
        self.addCleanup(leave)
        self.wait(lambda: self.server.metric("vllm:num_requests_running") > 1)

    def test_send_and_stream(self):
        self.set("seed", "3")
        self.js("""window.lengths = new Set();
          new MutationObserver(() => lengths.add(chats.open.messages.at(-1).content.length))
            .observe(byId('messages'), {childList: true, subtree: true, characterData: true})""")
        self.send("Tell me a story.")
        self.assertGreater(self.js("return lengths.size"), 3, "the answer did not come in pieces")
        self.assertEqual(self.last(), self.expected("Tell me a story.", seed=3))
        self.assertIn("tok/s", self.all(".figures")[-1].text)

    def test_stop(self):
        self.keep_busy()
        aborted = 'vllm:request_success_total{model_name="storyteller",finished_reason="abort"} '
        for stop in (lambda: self.type(Keys.ESCAPE), lambda: self.js("byId('stop').click()")):
            before = self.server.ok("/metrics").split(aborted)[1].split("\n")[0]
            for _ in range(20):  # a story may be short
                self.send("Tell me a long story.", wait=False)
                self.wait(lambda: self.last() or not self.js("return chats.runs.size"))
                stop()
                self.idle()
                if self.js("return chats.open.messages.at(-1).end") == "stopped":
                    break
            self.assertEqual(self.js("return chats.open.messages.at(-1).end"), "stopped")
            kept = self.last()
            self.wait(lambda: self.server.ok("/metrics").split(aborted)[1].split("\n")[0] != before,
                      what="the server goes on")
            self.assertEqual(self.last(), kept)
            self.assertTrue(self.get("send").is_displayed())

    def test_regenerate_edit_continue_and_reload(self):
        self.set("seed", "7")
        self.set("max_tokens", "12")
        self.send("Tell me a story.")
        self.assertEqual(self.last(), self.expected("Tell me a story.", seed=7, max_tokens=12))
        self.press("Regenerate")
        self.idle()
        second = self.expected("Tell me a story.", seed=8, max_tokens=12)
        self.assertEqual(self.messages(), [["user", "Tell me a story."], ["assistant", second]])
        self.press("Continue", ".actions")
        self.idle()
        self.assertTrue(self.last().startswith(second) and len(self.last()) > len(second))
        shown, kept = self.answers(), self.messages()
        self.driver.refresh()
        self.wait(lambda: self.answers() == shown)
        self.assertEqual(self.messages(), kept)
        self.assertEqual(self.answered()[-1], 304, "the page is sent again")
        self.press("Edit", ".message.user:nth-child(1)")
        area = self.all(".edit textarea")[0]
        area.clear()
        area.send_keys("A dog" + Keys.CONTROL + Keys.ENTER)
        self.idle()
        self.assertEqual(self.messages()[0], ["user", "A dog"])
        self.assertEqual(len(self.messages()), 2)

    def test_it_offers_beginnings(self):
        self.assertIn("This model continues texts", self.get("messages").text)
        first = self.all(".beginning")[0]
        self.assertEqual(first.text, "Once upon a time, in a small village by the sea, there lived …")
        self.set("seed", "3")
        first.click()
        self.wait(lambda: len(self.messages()) == 2)
        self.idle()
        self.assertEqual(self.last(), self.expected(self.messages()[0][1], seed=3))
        self.assertNotIn("User:", self.get("messages").text)

    def test_settings(self):
        self.get("open-settings").click()
        for name, value in (("temperature", "0"), ("max_tokens", "9")):
            self.all(f"[name={name}]")[0].send_keys(value)
        self.get("settings-close").click()
        self.send("Hello")
        self.assertEqual(self.last(), self.expected("Hello", temperature=0, max_tokens=9))
        self.assertIn("9 tokens", self.get("gauges").text)

    def test_a_prompt_that_does_not_fit(self):
        self.expected_errors = ["400 (Bad Request)"]
        self.js("byId('input').value = 'word '.repeat(3000)")
        self.send("")
        self.assertIn("room for 512", self.all(".trouble")[-1].text)

    def test_theme_phone_and_languages(self):
        self.send("Tell me a story.")
        self.set("theme", "light")
        light = self.color()
        self.set("theme", "dark")
        self.assertNotEqual(self.color(), light)
        dark = self.color()
        self.driver.refresh()
        self.wait(lambda: self.answers())
        self.assertEqual(self.color(), dark)
        self.check()
        self.set("language", "zh")
        self.assertEqual(self.get("new").text, "新对话")
        self.send("A dog")
        self.assertIn("词元/秒", self.all(".figures")[-1].text)
        self.set("language", "en")
        self.assertEqual(self.get("new").text, "New chat")
        self.phone()
        self.driver.refresh()
        self.wait(lambda: len(self.answers()) == 2)
        self.send("A cat")
        self.check("cramped", "faint")
        self.get("gauges-toggle").click()
        self.assertTrue(self.get("gauges").is_displayed())
        self.check("cramped")

    def test_gauges(self):
        self.send("Tell me a story.")
        props = self.server.ok("/props")
        usage = self.js("return chats.meters.get(chats.open.id).stats")
        for name in ("rate", "ttft", "bytes", "prompt", "tokens"):
            self.assertGreater(usage[name], 0, name)
        # A token reads all weights, and part of its context.
        self.assertGreaterEqual(usage["bytes"], props["bytes_per_token"])
        self.assertLess(usage["bytes"], 3 * props["bytes_per_token"])
        self.keep_busy()
        self.send("Tell me a story.")
        self.wait(lambda: "of 8 sequences" in self.get("gauges").text)
        shown = self.get("gauges").text
        for part in ("tok/s", "First token", "per token", "of 8 sequences", "KV cache",
                     "Memory plan", "weights", " / 512"):
            self.assertIn(part, shown)
        broken = self.js("return [...document.querySelectorAll('.stack + dl dd')]"
                         ".filter(node => node.offsetHeight > 30).map(node => node.textContent)")
        self.assertEqual(broken, [], "a size is broken into two lines")
        if props["in_cache"]:
            self.assertIn("fits into the cache", shown)
        else:
            self.assertRegex(shown, r"[0-9.]+ [MG]B/s of [0-9.]+ [GT]B/s")
        self.wait(lambda: self.js("return chats.meters.get(chats.open.id).traffic()") is not None)

    def test_the_page_answers_while_others_work(self):
        self.keep_busy()
        times = []
        for _ in range(15):
            begin = time.monotonic()
            self.assertEqual(self.server.ask("/")[0], 200)
            times.append(time.monotonic() - begin)
        times.sort()
        self.assertLess(times[len(times) // 2], 0.1)


class Talks(RealTest):
    """A model with a chat template."""
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        template = pathlib.Path(folder.name) / "t.jinja"
        template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
        cls.arguments = ("--chat-template", template)
        super().setUpClass()

    def test_the_system_prompt_is_sent(self):
        self.assertIn("What shall we write?", self.get("messages").text)
        self.set("system", "Be kind.")
        self.set("temperature", "0")
        self.set("max_tokens", "9")
        self.send("Hello")
        answer = self.server.ok("/v1/chat/completions", {"messages": [
            {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
            "temperature": 0, "max_tokens": 9})
        self.assertEqual(self.last(), answer["choices"][0]["message"]["content"])


class Locked(RealTest):
    key = "a-long-secret"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        keys = pathlib.Path(folder.name) / "keys"
        keys.write_text(cls.key + "\n")
        cls.arguments = ("--api-key-file", keys)
        super().setUpClass()
        # Before the page has the key it has no models to show.
        cls.real.key = {"Authorization": f"Bearer {cls.key}"}

    def test_a_key_is_asked_for_and_sent(self):
        self.expected_errors = ["401"]
        self.wait(lambda: "API key" in self.get("notice").text)
        self.send("Hello")
        self.assertIn("API key", self.all(".trouble")[-1].text)
        self.all(".notice button")[0].click()
        self.all("[name=key]")[0].send_keys(self.key + Keys.ENTER)
        self.all(".trouble button")[-1].click()
        self.wait(lambda: self.messages()[-1][1])
        self.idle()
        self.wait(lambda: "Memory plan" in self.get("gauges").text)
        self.assertNotIn(self.key, self.js("return JSON.stringify(localStorage)"))
        self.assertNotIn(self.key.encode(), b"".join(self.server.err))


class Diffusion(RealTest):
    model = (driver.SOURCE / "models" / "storyteller-diffusion.gguf",)

    def test_a_block_clears_up(self):
        self.set("seed", "3")
        self.js("""window.known = new Set();
          new MutationObserver(() => {
            const block = document.querySelector('.block');
            if (block) known.add(block.querySelectorAll('.known').length + ' of ' +
                                 block.children.length);
          }).observe(byId('messages'), {childList: true, subtree: true, attributes: true})""")
        self.send("Tell me a story.")
        seen = self.js("return [...known]")
        counts = {int(one.split()[0]) for one in seen}
        self.assertGreaterEqual(len(counts), 3, seen)
        self.assertLess(min(counts), max(counts))
        self.assertEqual(self.all(".block"), [])
        # Before the next request, which the panel would count.
        self.wait(lambda: "0 of 64 sequences" in self.get("gauges").text, 3,
                  "the panel does not see that the answer has ended")
        self.assertEqual(self.last(), self.expected("Tell me a story.", seed=3))
        self.assertTrue(self.last())
        self.assertIn("tok/s", self.get("gauges").text)


if __name__ == "__main__":
    unittest.main()
