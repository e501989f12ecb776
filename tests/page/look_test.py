#!/usr/bin/env python3
"""Look and use of the page: themes, languages, a phone, keyboard and screen reader, a thousand
messages, and what survives a reload."""
import time
import unittest

import browser
from browser import Keys, PageTest

browser.skip_without_a_browser()


class Access(PageTest):
    def test_names_contrast_and_size_in_both_themes(self):
        self.expected_errors = ["400 (Bad Request)"]
        self.send("sample")
        self.send("think")
        self.send("error")
        self.send("length")
        self.press("Edit", ".message.user:nth-child(1)")
        self.js("notice('text', 'Undo', () => {})")
        for theme in ("light", "dark"):
            self.set("theme", theme)
            self.check()
            self.get("open-settings").click()
            self.check()
            self.get("settings-close").click()

    def test_focus_is_seen_and_goes_everywhere(self):
        self.send("sample")
        self.js("document.activeElement.blur(); byId('side').setAttribute('tabindex', '-1');"
                "byId('side').focus()")
        seen = []
        for _ in range(40):
            self.driver.switch_to.active_element.send_keys(Keys.TAB)
            name, mark = self.js("""
              const node = document.activeElement;
              const style = getComputedStyle(node);
              const ring = getComputedStyle(node.closest('form') ?? node);
              return [node.getAttribute('aria-label') || node.textContent.trim() || node.tagName,
                      (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2) ||
                      ring.boxShadow.includes('0px 0px 0px 1px')];""")
            if name in seen[:1]:
                break
            seen.append(name)
            if self.js("return document.activeElement !== document.body"):
                self.assertTrue(mark, f"the focus on {name!r} is not seen")
        for name in ("New chat", "sample", "Rename: sample", "Export", "Import", "Settings",
                     "Engine", "Messages", "Copy", "Regenerate", "Continue", "Copy code",
                     "Your message", "Send"):
            self.assertIn(name, seen)

    def test_a_screen_reader_hears_blocks(self):
        self.js("""window.heard = [];
          new MutationObserver(list => list.forEach(one => one.addedNodes.forEach(node =>
            heard.push(node.textContent)))).observe(byId('say'), {childList: true})""")
        self.server.pause = 0.02
        self.send("sample")
        heard = self.js("return heard")
        self.assertEqual(heard[0], "The answer begins.")
        self.assertEqual(heard[1], "Rivers")
        self.assertTrue(heard[2].startswith("A river carries water downhill"))
        self.assertEqual(heard[-1], "The answer is complete.")
        self.assertEqual(len(heard), 9)
        self.assertEqual(self.get("log").get_attribute("aria-live"), "off")

    def test_enter_of_an_input_method_does_not_send(self):
        self.type("ni hao")
        self.js("""byId('input').dispatchEvent(new KeyboardEvent('keydown',
                   {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))""")
        self.type(Keys.SHIFT + Keys.ENTER)
        self.assertEqual(self.js("return byId('input').value"), "ni hao\n")
        self.assertEqual(self.server.seen, [])


class Settings(PageTest):
    def test_settings_are_kept_and_sent(self):
        self.get("open-settings").click()
        values = {"system": "Be brief.", "temperature": "0.5", "top_p": "0.9", "top_k": "40",
                  "min_p": "0.05", "max_tokens": "99", "seed": "3", "key": "k"}
        for name, value in values.items():
            self.all(f"[name={name}]")[0].send_keys(value)
        self.all("[name=temperature]")[0].send_keys("e9")  # out of range: rejected
        self.get("settings-close").click()
        self.driver.refresh()
        self.get("open-settings").click()
        for name, value in values.items():
            self.assertEqual(self.all(f"[name={name}]")[0].get_property("value"), value, name)
        self.all("[name=remember]")[0].click()
        self.get("settings-close").click()
        self.assertEqual(self.js("return localStorage.getItem('millrace.key')"), "k")
        self.send("hello")
        sent = self.server.seen[0]
        self.assertEqual(sent["messages"][0], {"role": "system", "content": "Be brief."})
        for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"):
            self.assertEqual(sent[name], float(values[name]), name)

    def test_theme_follows_the_system_unless_told(self):
        def system(value):
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                "features": [{"name": "prefers-color-scheme", "value": value}]})
        self.addCleanup(system, "")
        system("light")
        light = self.wait(lambda: self.color())
        system("dark")
        self.wait(lambda: self.color() != light)
        self.set("theme", "light")
        self.assertEqual(self.color(), light)
        self.driver.refresh()
        self.assertEqual(self.color(), light)

    def test_models_can_be_chosen(self):
        self.server.models = ["small", "large"]
        self.driver.refresh()
        self.wait(lambda: self.get("model").is_displayed())
        self.js("byId('model').value = 'large'; byId('model').dispatchEvent(new Event('change'))")
        self.send("hello")
        self.assertEqual(self.server.seen[0]["model"], "large")
        self.check("structure", "unnamed")

    def test_reload_while_an_answer_streams(self):
        self.send("slow", wait=False)
        self.wait(lambda: len(self.answers()) and len(self.answers()[-1]) > 40)
        self.driver.refresh()
        self.wait(lambda: self.answers() and len(self.answers()[-1]) > 40)

    def test_storage_that_is_full(self):
        self.js("Storage.prototype.setItem = () => {"
                "  throw new DOMException('', 'QuotaExceededError'); }")
        self.send("hello")
        self.assertEqual(self.answers(), ["You said: hello"])
        self.assertIn("storage is full", self.get("notice").text)
        self.get("new").click()
        self.all(".chat")[0].click()
        self.assertEqual(self.answers(), ["You said: hello"])


class Phone(PageTest):
    def test_fits_360_pixels(self):
        self.phone()
        self.driver.refresh()
        self.check("cramped")
        self.send("sample")
        self.send("code")
        self.check("cramped", "faint")
        box = self.js("return byId('composer').getBoundingClientRect().bottom")
        self.assertLessEqual(box, 740)
        self.assertFalse(self.get("side").is_displayed())
        self.get("menu").click()
        self.wait(lambda: self.get("new").is_displayed() and
                  self.js("return byId('side').getBoundingClientRect().left") == 0)
        self.check("cramped", "unnamed")
        self.js("document.elementFromPoint(350, 400).click()")  # beside it
        self.wait(lambda: not self.get("side").is_displayed())
        self.get("gauges-toggle").click()
        self.assertTrue(self.get("gauges").is_displayed())
        self.check("cramped")
        self.js(
            "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
        self.assertFalse(self.get("gauges").is_displayed())
        self.get("menu").click()
        self.js("byId('open-settings').click()")
        self.wait(lambda: not self.get("side").is_displayed())  # it slides out of the window
        self.check("cramped")


class Chinese(PageTest):
    options = ("--lang=zh-CN", "--accept-lang=zh-CN")

    def test_follows_the_browser_and_can_be_switched(self):
        self.assertEqual(self.js("return document.documentElement.lang"), "zh-CN")
        self.assertEqual(self.get("new").text, "新对话")
        self.send("sample")
        self.assertIn("词元/秒", self.all(".figures")[0].text)
        english = self.js("""
          return [...document.querySelectorAll('button, h2, h3, dt, label > span')]
            .map(node => node.getAttribute('aria-label') || node.textContent).filter(text =>
            /^[A-Z][a-z]+/.test(text) && !/^(Top|Min) |^Millrace|^Rivers/.test(text))""")
        self.assertEqual(english, [])
        self.check()
        self.set("language", "en")
        self.assertEqual(self.get("new").text, "New chat")
        self.driver.refresh()
        self.assertEqual(self.get("new").text, "New chat")
        self.set("language", "system")
        self.assertEqual(self.get("new").text, "新对话")


class Long(PageTest):
    def best(self, enough, measure):
        """The best of three times, or the first that is good enough: the machine may be busy."""
        least = measure()
        for _ in range(2):
            if least < enough:
                break
            least = min(least, measure())
        return least

    def test_a_thousand_messages(self):
        self.js("""
          const messages = [];
          for (let i = 0; i < 500; i++) {
            messages.push({role: 'user', content: 'Question ' + i},
                          {role: 'assistant', content: arguments[0] + '\\n\\nAnswer ' + i});
          }
          store.saveChat({id: '00000000000000aa', title: 'long', updated: Date.now(),
                          messages});""",
                browser.SAMPLE)
        self.driver.refresh()
        self.wait(lambda: len(self.all(".message")) == 1000, 20)
        opened = self.best(3000, lambda: self.js("""const begin = performance.now();
          chats.openId('00000000000000aa'); document.body.offsetHeight;
          return performance.now() - begin"""))
        self.assertLess(opened, 3000, "ms to open it")
        self.wait(lambda: self.js(
            "const log = byId('log');"
            "return log.scrollHeight - log.scrollTop - log.clientHeight < 9"))
        self.assertIn("Answer 499", self.all(".message")[-1].text)
        drawn = self.js("return [...document.querySelectorAll('.message .body')].filter("
                        "node => node.checkVisibility({contentVisibilityAuto: true})).length")
        self.assertTrue(0 < drawn < 60, f"{drawn} messages are laid out, most of them out of sight")
        worst = self.best(120, lambda: self.driver.execute_async_script("""
          const done = arguments[0], log = byId('log'), times = [];
          let last = performance.now(), count = 0;
          const step = now => {
            times.push(now - last);
            last = now;
            log.scrollTop -= 400;
            if (++count < 90) requestAnimationFrame(step);
            else done(times.sort((a, b) => a - b)[80]);
          };
          requestAnimationFrame(step);"""))
        self.assertLess(worst, 120, "ms of a frame while scrolling, nine of ten are faster")
        self.assertTrue(self.get("to-end").is_displayed())
        begin = time.monotonic()
        self.type("typing stays quick")
        self.assertLess(time.monotonic() - begin, 3)
        self.type(Keys.ENTER)
        self.idle()
        self.assertEqual(len(self.server.seen[0]["messages"]), 1001)
        self.assertIn("typing stays quick", self.answers()[-1])
        print(f"\na thousand messages: open {opened:.0f} ms, frame {worst:.0f} ms")

    def test_a_long_answer_costs_no_more_at_its_end(self):
        times = self.js("""
          const view = new MarkdownView(document.createElement('div'));
          const times = [];
          let text = '';
          for (let i = 0; i < 300; i++) {
            const begin = performance.now();
            for (let j = 0; j < 20; j++) {
              text += arguments[0].slice(j * 30, j * 30 + 30);
              view.update(text);
            }
            text += '\\n\\n';
            times.push(performance.now() - begin);
          }
          const sum = list => list.reduce((a, b) => a + b);
          return [sum(times.slice(20, 70)), sum(times.slice(250)), text.length];""", browser.SAMPLE)
        self.assertGreater(times[2], 90000)
        self.assertLess(times[1], 4 * times[0] + 50)

    def test_reading_above_is_not_pulled_down(self):
        self.send("code")
        self.send("slow", wait=False)
        self.wait(lambda: self.js("return byId('log').scrollHeight") > 3000)
        self.js("byId('log').scrollTop -= 500")
        self.wait(lambda: self.get("to-end").is_displayed())
        place = self.js("return byId('log').scrollTop")
        time.sleep(0.4)
        self.assertAlmostEqual(self.js("return byId('log').scrollTop"), place, delta=3)
        self.get("to-end").click()
        self.wait(lambda: not self.get("to-end").is_displayed())
        self.type(Keys.ESCAPE)
        self.idle()


if __name__ == "__main__":
    unittest.main()
