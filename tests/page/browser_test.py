#!/usr/bin/env python3
"""The page in Chromium, against a mock server: user actions, and errors."""
import json
import pathlib
import tempfile
import time
import unittest

import browser
from browser import By, Keys, PageTest
from prefix_proxy import PrefixProxy

HERE = pathlib.Path(__file__).parent
browser.skip_without_a_browser()


class Chat(PageTest):
    def test_send_and_stream(self):
        self.server.pause = 0.02
        self.send("sample", wait=False)
        lengths = set()
        while self.js("return chats.runs.size") and len(lengths) < 100:
            lengths.add(len(self.answers()[-1]))
        self.idle()
        self.assertGreater(len(lengths), 5, "the answer did not come in pieces")
        for tag, count in (("h3", 1), ("strong", 1), ("em", 1), ("ol > li", 2), ("ul > li", 2),
                           ("tbody tr", 2), ("blockquote", 1), (".code pre", 1)):
            self.assertEqual(len(self.all(f".markdown {tag}")), count, tag)
        link = self.all(".markdown a")[0]
        self.assertEqual(link.get_attribute("rel"), "noopener noreferrer nofollow")
        self.assertTrue(self.server.seen[0]["stream_options"]["include_usage"])
        self.assertNotIn("temperature", self.server.seen[0])
        self.assertIn("188 tok/s", self.all(".figures")[-1].text)

    def test_stop_by_escape_and_by_button(self):
        for stop in (lambda: self.type(Keys.ESCAPE), lambda: self.get("stop").click()):
            left = self.server.left
            self.send("slow", wait=False)
            self.wait(lambda: len(self.answers()) and len(self.answers()[-1]) > 40)
            stop()
            self.idle()
            self.wait(lambda: self.server.left > left, what="the connection stayed open")
            kept = self.answers()[-1]
            time.sleep(0.2)
            self.assertEqual(self.answers()[-1], kept)
            self.assertTrue(self.get("send").is_displayed())

    def test_regenerate_draws_with_the_next_seed(self):
        self.js("app.settings.seed = '7'")
        self.send("hello")
        self.all('[aria-label="Regenerate"]')[-1].send_keys(Keys.ENTER)
        self.idle()
        self.assertEqual(self.js("return document.activeElement.id"), "input", "the focus is lost")
        self.press("Regenerate")
        self.idle()
        self.assertEqual([one["seed"] for one in self.server.seen], [7, 8, 9])
        self.assertEqual([len(one["messages"]) for one in self.server.seen], [1, 1, 1])
        self.assertEqual(len(self.messages()), 2)

    def test_edit_sends_again_from_there(self):
        self.send("first")
        self.send("second")
        self.press("Edit", ".message.user:nth-child(1)")
        area = self.all(".edit textarea")[0]
        area.clear()
        area.send_keys("changed" + Keys.CONTROL + Keys.ENTER)
        self.idle()
        self.assertEqual(self.messages(), [["user", "changed"],
                                           ["assistant", "You said: changed"]])
        self.type(Keys.ARROW_UP)  # edits the last message of the user
        self.all(".edit textarea")[0].send_keys(Keys.ESCAPE)
        self.assertEqual(len(self.all(".edit")), 0)
        self.press("Edit", ".message.assistant")
        area = self.all(".edit textarea")[0]
        area.clear()
        area.send_keys("**mine**")
        self.all(".edit button[type=submit]")[0].click()
        self.assertEqual(self.all(".markdown strong")[0].text, "mine")
        self.assertEqual(len(self.server.seen), 3)

    def test_continue(self):
        self.send("length")
        self.assertIn("token limit", self.all(".trouble.soft")[0].text)
        self.press("Continue", ".actions")
        self.idle()
        self.assertEqual(self.answers(), ["This answer is cut and this is the rest."])
        sent = self.server.seen[-1]
        self.assertEqual(sent["messages"][-1],
                         {"role": "assistant", "content": "This answer is cut"})
        self.assertIs(sent["continue_final_message"], True)
        self.assertEqual(len(self.all(".trouble")), 0)

    def test_several_conversations(self):
        self.send("apples")
        self.get("new").click()
        self.send("slow pears", wait=False)
        self.wait(lambda: len(self.answers()) and self.answers()[-1])
        self.all(".chat")[1].click()  # while the other one streams
        self.assertEqual(self.answers(), ["You said: apples"])
        self.assertTrue(self.get("send").is_displayed())
        self.all(".chat")[0].click()
        grown = len(self.answers()[-1])
        self.wait(lambda: len(self.answers()[-1]) > grown)
        self.type(Keys.ESCAPE)
        self.idle()
        self.press("Rename: apples")
        field = self.all(".rename")[0]
        field.send_keys(Keys.CONTROL + "a")
        field.send_keys("fruit" + Keys.ENTER)
        self.assertEqual([one.text for one in self.all(".chat")], ["slow pears", "fruit"])
        self.press("Delete: fruit")
        self.assertEqual([one.text for one in self.all(".chat")], ["slow pears"])
        self.all(".notice button")[0].click()
        self.assertEqual(self.answers(), ["You said: apples"])
        self.driver.refresh()
        self.wait(lambda: len(self.all(".chat")) == 2)

    def test_export_and_import(self):
        self.send("sample")
        text = self.js("return JSON.stringify(exported(store.chats().map("
                       "one => store.chat(one.id))))")
        self.assertEqual(json.loads(text)["format"], "millrace-chats")
        self.press("Delete: sample")
        with tempfile.TemporaryDirectory() as folder:
            for name, content, count in (
                    ("good.json", text, 1), ("bad.json", "{]", 1), ("other.json",
                    '{"format": "millrace-chats", "chats": [3, {"messages": [{"role": "root"}, '
                    '{"role": "user", "content": 5}, {"role": "user", "content": "kept", '
                    '"evil": 1}]}]}', 2)):
                path = pathlib.Path(folder) / name
                path.write_text(content)
                self.get("import-file").send_keys(str(path))
                self.wait(lambda: len(self.all(".notice")))
                self.assertEqual(len(self.all(".chat")), count, name)
                self.js("byId('notice').replaceChildren()")
        kept = self.js("return store.chats().map(one => store.chat(one.id).messages)")
        self.assertIn([{"role": "user", "content": "kept"}], kept)

    def test_the_exported_file_can_be_read_again(self):
        self.send("sample")
        with tempfile.TemporaryDirectory() as folder:
            self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {
                "behavior": "allow", "downloadPath": folder})
            for label in ("Export this conversation: sample", None):
                self.press(label) if label else self.get("export").click()
                path = self.wait(lambda: next(pathlib.Path(folder).glob("*.json"), None))
                chats = json.loads(path.read_text())["chats"]
                self.assertEqual([one["title"] for one in chats], ["sample"])
                self.assertEqual(chats[0]["messages"][1]["content"], browser.SAMPLE)
                path.unlink()

    def test_two_tabs_see_each_other(self):
        self.send("apples")
        first = self.driver.current_window_handle
        self.driver.switch_to.new_window("tab")
        self.open()
        self.send("pears")
        self.driver.close()
        self.driver.switch_to.window(first)
        self.wait(lambda: self.answers() == ["You said: apples", "You said: pears"])

    def test_errors_are_one_line_with_a_retry(self):
        self.expected_errors = ["400 (Bad Request)", "429", "ERR_INCOMPLETE_CHUNKED", "401"]
        for said, shown in (("error", "The prompt is too long"), ("busy", "wait 3 s"),
                            ("broken", "ended before"), ("midway", "The engine stopped.")):
            self.send(said)
            self.wait(lambda: self.all(".trouble"))
            self.assertIn(shown, self.all(".trouble")[-1].text)
        count = len(self.server.seen)
        self.all(".trouble button")[-1].click()
        self.wait(lambda: len(self.server.seen) == count + 1)
        self.idle()
        self.assertEqual(len(self.messages()), 8)
        self.server.key = "secret"
        self.driver.refresh()
        self.wait(lambda: "API key" in self.get("notice").text)
        self.send("hello")
        self.assertIn("API key", self.all(".trouble")[-1].text)
        self.all(".notice button")[0].click()
        self.all("[name=key]")[0].send_keys("secret" + Keys.ENTER)
        self.all(".trouble button")[-1].click()
        self.wait(lambda: "You said: hello" in self.answers())
        self.assertNotIn("secret", self.js("return JSON.stringify(localStorage)"))

    def test_a_server_that_is_gone(self):
        self.expected_errors = ["ERR_EMPTY_RESPONSE", "ERR_CONNECTION"]
        self.server.gone = True
        self.type("hello" + Keys.ENTER)
        self.wait(lambda: self.all(".trouble"))
        self.assertIn("does not answer", self.all(".trouble")[0].text)

    def test_thinking_is_apart(self):
        self.send("think")
        self.assertEqual(self.answers(), ["Forty-two."])
        self.assertFalse(self.js("return document.querySelector('.thinking').open"))
        self.assertEqual(self.js("return document.querySelector('.thinking pre').textContent"),
                         "Let me see.\nYes.")


class Engine(PageTest):
    def test_gauges(self):
        self.send("sample")
        self.wait(lambda: "3 waiting" in self.get("gauges").text)
        shown = self.get("gauges").text
        for part in ("188 tok/s", "8.40 ms", "71%", "16.2 GB per token", "3.05 TB/s of 4.30 TB/s",
                     "64 from the cache", "of 64 sequences", "42%", "73%", "weights", "15.0 GiB",
                     "107 GiB of 140 GiB", "178 / 8,192"):
            self.assertIn(part, shown)
        self.get("gauges-close").click()
        self.assertFalse(self.get("gauges").is_displayed())
        self.driver.refresh()
        self.assertFalse(self.get("gauges").is_displayed())

    def test_live_speed(self):
        self.server.pause = 0.01
        self.send("slow", wait=False)
        self.wait(lambda: self.all(".curve polyline"))
        rate = self.js("return chats.running().meter.rate()")
        self.assertTrue(20 < rate < 110, rate)  # 100 per second at most
        self.type(Keys.ESCAPE)
        self.idle()

    def test_a_server_that_says_little(self):
        self.server.props = {}
        self.driver.refresh()
        self.send("hello")
        self.assertNotIn("Memory plan", self.get("gauges").text)
        self.assertIn("188 tok/s", self.get("gauges").text)

    def test_a_block_clears_up(self):
        self.send("diffuse", wait=False)
        seen = set()
        while self.js("return chats.runs.size"):
            seen.add(self.js("const cells = document.querySelectorAll('.block .known');"
                             "return document.querySelector('.block') ? cells.length : -1"))
        self.assertLessEqual({1, 2, 3}, seen)
        self.assertEqual(self.answers(), ["Once upon a time there was a mill."])
        self.assertEqual(self.all(".block"), [])


    # One constant answer has one figure, whatever else the server read or how long it was idle.
    def test_the_roof_is_steady(self):
        self.server.pause = 0.02
        self.send("slow", wait=False)
        self.wait(lambda: "of 4.30 TB/s" in self.get("gauges").text)
        shown = set()
        for _ in range(30):
            shown |= {line for line in self.get("gauges").text.split("\n") if "TB/s" in line}
            time.sleep(0.1)
        self.type(Keys.ESCAPE)
        self.idle()
        looks = self.server.looks
        self.wait(lambda: self.server.looks >= looks + 2, 20)
        self.wait(lambda: "of 4.30 TB/s" in self.get("gauges").text)
        shown |= {line for line in self.get("gauges").text.split("\n") if "TB/s" in line}
        self.assertEqual(shown, {"3.05 TB/s of 4.30 TB/s"})

    def test_a_roof_that_was_measured_too_low(self):
        self.server.props = {**self.server.props, "roof": {"bytes_per_s": 2e12}}
        self.driver.refresh()
        self.send("sample")
        self.wait(lambda: "other work disturbed the measurement" in self.get("gauges").text)
        self.assertNotIn("152%", self.get("gauges").text)
        self.assertIn("3.05 TB/s", self.get("gauges").text)

    def test_weights_in_the_cache_have_no_roof(self):
        self.server.props = {**self.server.props, "in_cache": True}
        self.driver.refresh()
        self.send("sample")
        self.wait(lambda: "fits into the cache" in self.get("gauges").text)
        self.assertNotIn("TB/s", self.get("gauges").text)


TEXTS = {"model": "storyteller", "continues_texts": True,
         "beginnings": ["Once upon a time", "Far, far away,"]}


class Continues(PageTest):
    def setUp(self):
        super().setUp()
        self.server.props = TEXTS
        self.driver.refresh()
        self.wait(lambda: self.all(".beginning"))

    def test_a_beginning_is_continued(self):
        shown = self.get("messages").text
        self.assertIn("This model continues texts", shown)
        self.assertNotIn("What shall we write?", shown)
        self.assertEqual(self.get("input").get_attribute("placeholder"),
                         "Write the beginning of a text")
        self.check()
        self.all(".beginning")[0].click()
        self.wait(lambda: self.answers() == ["and so on"])
        self.idle()
        first = self.server.seen[0]
        self.assertEqual(first["prompt"], "Once upon a time")
        self.assertNotIn("messages", first)
        self.assertNotIn("User:", json.dumps(first))
        self.assertNotIn("You", [one.text for one in self.all("h2")])
        self.check()

    # A text has no system prompt: one that was set for another model is neither shown nor sent.
    def test_no_system_prompt_is_asked_for(self):
        self.set("system", "Answer in rhymes.")
        self.get("open-settings").click()
        system = self.all("#settings [name=system]")[0]
        self.assertFalse(system.is_displayed())
        self.assertEqual(self.js("return document.activeElement.name"), "temperature")
        self.check()
        self.get("settings-close").click()
        self.send("One day,")
        self.assertNotIn("rhymes", json.dumps(self.server.seen[0]))
        self.server.props = {"model": "tiny"}
        self.driver.refresh()
        self.get("open-settings").click()
        system = self.all("#settings [name=system]")[0]
        self.assertTrue(system.is_displayed())
        self.assertEqual(system.get_attribute("value"), "Answer in rhymes.")
        self.assertEqual(self.js("return document.activeElement.name"), "system")

    # A text that has ended is not continued by what is written next; one that was cut is.
    def test_what_belongs_to_a_text(self):
        self.send("One day,")
        self.send("Two days,")
        self.js("chats.open.messages[3].end = 'stopped'")
        self.send("and Tom")
        self.assertEqual([one["prompt"] for one in self.server.seen],
                         ["One day,", "Two days,", "Two days, and so on and Tom"])
        self.press("Continue", ".actions")
        self.idle()
        self.assertEqual(self.server.seen[-1]["prompt"],
                         "Two days, and so on and Tom and so on")
        self.assertNotIn("continue_final_message", self.server.seen[-1])
        self.assertEqual(self.answers()[-1], "and so on and so on")

    def test_in_chinese_and_on_a_phone(self):
        self.set("language", "zh")
        self.assertIn("续写", self.get("messages").text)
        self.phone()
        time.sleep(0.5)  # the list of conversations slides away
        self.check()


class Prefix(PageTest):
    def open(self):
        self.proxy = PrefixProxy(self.server.server_port)
        self.proxy.__enter__()
        self.addCleanup(self.proxy.__exit__)
        self.driver.get(self.proxy.url + "/")
        self.wait(lambda: self.js("return app.models.length > 0"))

    def test_under_a_path_of_a_proxy(self):
        self.send("sample")
        self.wait(lambda: "3 waiting" in self.get("gauges").text)
        self.assertEqual(len(self.all(".markdown tbody tr")), 2)
        self.driver.get(self.proxy.url)  # without the slash
        self.wait(lambda: self.js("return app.models.length > 0"))
        self.send("hello")
        self.assertIn("You said: hello", self.answers())
        self.assertEqual(self.proxy.strays, [])


class Markdown(PageTest):
    def test_cases(self):
        script = (HERE / "markdown_test.js").read_text()
        cases = json.loads((HERE / "markdown_cases.json").read_text())
        self.assertEqual(self.js(script + "return markdownFailures(arguments[0])", cases), [])

    def test_streaming_ends_where_drawing_at_once_does(self):
        cases = [text for text, _ in json.loads((HERE / "markdown_cases.json").read_text())]
        cases += ["\n\n".join(cases), browser.SAMPLE]
        wrong = self.js("""
          const wrong = [];
          for (const text of arguments[0]) for (const step of [1, 7]) {
            const whole = document.createElement('div'), parts = document.createElement('div');
            new MarkdownView(whole).update(text, true);
            const settled = [];
            const view = new MarkdownView(parts, node => settled.push([node, node.outerHTML]));
            for (let end = step; end < text.length; end += step) view.update(text.slice(0, end));
            const early = settled.length;
            view.update(text, true);
            if (step === 1 && early < parts.children.length - 2) wrong.push([text, 'late', early]);
            if (whole.innerHTML !== parts.innerHTML) wrong.push([text, step, parts.innerHTML]);
            if (settled.length !== parts.children.length ||
                settled.some(([node, html], i) => node !== parts.children[i] ||
                             html !== node.outerHTML)) wrong.push([text, 'drawn again']);
          }
          return wrong;""", cases)
        self.assertEqual(wrong, [])

    def test_hostile_text_stays_text(self):
        self.send("hostile")
        self.assertIsNone(self.js("return window.broken ?? null"))
        inside = "#messages .markdown "
        self.assertEqual(self.all(f"{inside}script, {inside}img, {inside}iframe, {inside}b"), [])
        links = [one.get_attribute("href") for one in self.all(inside + "a")]
        self.assertTrue(links)
        self.assertEqual([one for one in links if not one.startswith(("http:", "https:"))], [])
        odd = self.js("""return [...document.querySelectorAll('#messages .markdown *')].flatMap(
          node => [...node.attributes].map(one => one.name))
          .filter(name => /^on|^style$|^src/.test(name))""")
        self.assertEqual(odd, [])
        self.driver.refresh()  # now from the browser's storage
        self.wait(lambda: self.all(inside + "table"))
        self.assertIsNone(self.js("return window.broken ?? null"))

    def test_the_policy_forbids_markup_and_script(self):
        self.expected_errors = ["Content Security Policy", "TrustedHTML", "Trusted"]
        self.assertTrue(self.js("""
          try { document.body.innerHTML += '<b>x</b>'; } catch (error) { return true; }"""))
        self.assertTrue(self.js("""
          const done = arguments[0];
          const script = document.createElement('script');
          try { script.textContent = 'window.broken = 1'; document.body.append(script); } catch {}
          return window.broken === undefined;"""))


if __name__ == "__main__":
    unittest.main()
