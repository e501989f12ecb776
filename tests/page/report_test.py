#!/usr/bin/env python3
"""Pages of reports in Chromium, opened from disk: a profile, a training run, an evaluation and
streams. No message of the console, every figure drawn, both themes, a phone, the keyboard."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

import browser
from browser import Keys

browser.skip_without_a_browser()
BIN = os.environ["MILLRACE_BIN"]


def run(*command, **environment):
    subprocess.run([*map(str, command)], check=True, capture_output=True,
                   env={**os.environ, **environment})


class Report(browser.Browser):
    """One page of each kind, made once: by the program where no GPU is needed, else by a test."""
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix="millrace-report-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        text = cls.folder / "text.txt"
        text.write_text("Once upon a time there was a mill. " * 40)
        run(BIN, "profile", "-p", "Once upon a time", "-n", 24, "--seed", 1, "--device", "cpu",
            "--html", cls.folder / "profile.html")
        run(BIN, "eval", "--text", text, "--window", 28, "--context", "full,streaming",
            "--device", "cpu", "--plot", cls.folder / "eval.html")
        run(os.environ["MILLRACE_TEST_TRAIN"], "--gtest_filter=TrainReport.ShowsTheRun",
            MILLRACE_REPORT_OUT=str(cls.folder / "train.html"))
        run(os.environ["MILLRACE_TEST_LAB"], "--gtest_filter=Streams.ThePageHasEveryRung",
            MILLRACE_REPORT_OUT=str(cls.folder / "streams.html"))

    def open(self, name):
        self.driver.get((self.folder / f"{name}.html").as_uri())

    def tearDown(self):
        self.assertEqual([one["message"] for one in self.driver.get_log("browser")], [])

    def theme(self, value):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": value}]})
        self.addCleanup(self.driver.execute_cdp_cmd, "Emulation.setEmulatedMedia", {"features": []})

    def check_structure(self):
        self.assertEqual(self.js("""
          const wrong = [];
          for (const [what, count] of [['main', 1], ['h1', 1]]) {
            if (document.querySelectorAll(what).length !== count) wrong.push(what);
          }
          if (!document.documentElement.lang || !document.title) wrong.push('no language or title');
          for (const svg of document.querySelectorAll('svg')) {
            if (!svg.getAttribute('aria-label')) wrong.push('a picture without a name');
          }
          return wrong;"""), [])

    def drawn(self):
        """How many figures there are, and how many of them show something."""
        return self.js("""
          const charts = [...document.querySelectorAll('figure svg')];
          const lines = [...document.querySelectorAll('figure canvas')];
          return [charts.length, charts.filter(one => one.getBoundingClientRect().height > 100 &&
                    one.querySelectorAll('path.curve, circle').length > 0).length,
                  lines.length, lines.filter(one => { const pixels = one.getContext('2d')
                    .getImageData(0, 0, one.width, one.height).data;
                    return new Set(pixels).size > 8; }).length];""")

    def test_every_figure_is_drawn(self):
        for name, charts, lines in (("profile", 2, 1), ("train", 4, 0), ("eval", 1, 0),
                                    ("streams", 0, 4)):
            with self.subTest(name):
                self.open(name)
                self.assertEqual(self.drawn(), [charts, charts, lines, lines])
                self.assertNotRegex(self.js("return document.body.innerText"),
                                    r"NaN|undefined|Infinity|\[object")
                self.check_structure()

    def test_themes_and_a_phone(self):
        for name in ("profile", "train", "eval", "streams"):
            for width in (None, 360):
                if width:
                    self.phone(width)
                colors = set()
                for theme in ("light", "dark"):
                    with self.subTest((name, width, theme)):
                        self.theme(theme)
                        self.open(name)
                        colors.add(self.color())
                        self.check("unnamed", "faint", "cramped")
                self.assertEqual(len(colors), 2)
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_figures_use_their_frame(self):
        for width in (390, 1360):
            self.phone(width)
            for name in ("profile", "train", "eval"):
                self.open(name)
                self.wait(lambda: self.js("""
                  return [...document.querySelectorAll('.drawn')].every(box => {
                    const svg = box.querySelector('svg');
                    return Math.abs(svg.getBoundingClientRect().width - box.clientWidth) < 2 &&
                      Math.abs(svg.viewBox.baseVal.width - box.clientWidth) < 2 &&
                      box.scrollWidth <= box.clientWidth;
                  });"""), what=f"{name} at {width}")

    def test_the_table_behind_a_figure(self):
        self.open("train")
        self.js("document.querySelectorAll('details summary').forEach(one => one.click())")
        self.wait(lambda: len(self.all("details table")) == 4)
        rows = self.js("return document.querySelector('details table').tBodies[0].rows.length")
        self.assertGreaterEqual(rows, 400)
        self.open("streams")
        self.js("document.querySelector('details summary').click()")
        self.wait(lambda: self.all("details table"))
        self.assertIn("copy out", self.all("details table")[0].text)

    def test_points_by_mouse_and_keyboard(self):
        self.open("profile")
        self.js("document.querySelector('.stage').focus()")
        self.assertIn("GFLOP/s", self.all(".tip:not([hidden])")[0].text)
        self.open("train")
        chart = self.all("figure svg")[0]
        self.js("arguments[0].focus()", chart)
        chart.send_keys(Keys.END)
        self.assertRegex(self.all(".tip:not([hidden])")[0].text,
                         r"^step 1000\nloss 0\.\d+\nvalidation 0\.\d+$")
        chart.send_keys(Keys.ARROW_LEFT)
        self.assertRegex(self.all(".tip:not([hidden])")[0].text, r"^step 99\d(\.\d)?\nloss ")

    def test_the_timeline_moves(self):
        self.open("profile")
        view = self.all(".timeline")[0]
        pixels = "return document.querySelector('.timeline canvas').toDataURL()"
        whole = self.js(pixels)
        self.js("arguments[0].focus()", view)
        view.send_keys("+")
        near = self.js(pixels)
        self.assertNotEqual(near, whole)
        view.send_keys(Keys.ARROW_RIGHT)
        self.assertNotEqual(self.js(pixels), near)
        view.send_keys("0")
        self.assertEqual(self.js(pixels), whole)
        self.assertNotRegex(self.js("return document.title"), "^$")

    def test_a_figure_is_saved_as_a_file(self):
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {
            "behavior": "allow", "downloadPath": str(self.folder)})
        self.open("profile")
        self.press("Save as SVG: roofline of decode")
        path = self.wait(lambda: next(self.folder.glob("*.svg"), None))
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        data = json.loads(self.js("return document.getElementById('data').textContent"))
        [decode] = [one for one in data["sections"] if one.get("phase") == "decode"]
        dots = root.findall(".//{http://www.w3.org/2000/svg}circle")
        self.assertEqual(len(dots), sum(stage["flops"] > 0 for stage in decode["stages"]))
        self.assertIn("prefers-color-scheme: dark", path.read_text())
        # The same text, for a script that makes a still.
        said = self.js("return rooflineFile(JSON.parse(document.getElementById('data').textContent),"
                       "'decode')")
        self.assertEqual(said, path.read_text())
        self.driver.get(path.as_uri())  # and a browser draws it
        self.assertEqual(self.js("return document.documentElement.viewBox.baseVal.width"), 760)

    def test_hostile_text_stays_text(self):
        source = (self.folder / "train.html").read_text()
        evil = json.dumps("</script><img src=x onerror=alert(1)>").replace("<", "\\u003c")
        page = self.folder / "evil.html"
        page.write_text(source.replace('"runs/story"', evil, 1))
        self.driver.get(page.as_uri())
        self.assertEqual(self.all("img"), [])
        self.assertIn("<img src=x", self.all("h1")[0].text)


if __name__ == "__main__":
    unittest.main()
