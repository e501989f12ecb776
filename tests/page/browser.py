"""Chromium through Selenium, for the tests of the page."""
import os
import pathlib
import shutil
import sys
import time
import unittest

from mock_server import SAMPLE, Server

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = By = Keys = None

CHECKS = (pathlib.Path(__file__).parent / "look_checks.js").read_text()
FOLDER = pathlib.Path(os.environ.get("MILLRACE_BUILD", "build/release")) / "page"


def skip_without_a_browser():
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium")
    if not (webdriver and driver and browser):
        print("skipped: the page's tests need chromium, chromium-driver and python3-selenium")
        sys.exit(77)


def start(*options):
    settings = webdriver.ChromeOptions()
    for one in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--window-size=1360,900", *options):
        settings.add_argument(one)
    settings.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=settings)


class Browser(unittest.TestCase):
    """One browser for a class."""
    options = ("--lang=en-US",)

    @classmethod
    def setUpClass(cls):
        cls.driver = start(*cls.options)

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()

    def js(self, script, *values):
        return self.driver.execute_script(script, *values)

    def wait(self, condition, seconds=10, what="it did not happen"):
        end = time.monotonic() + seconds
        while not (value := condition()):
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.02)
        return value

    def get(self, name):
        return self.driver.find_element(By.ID, name)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def check(self, *names):
        for name in names or ("unnamed", "structure", "faint", "cramped"):
            self.assertEqual(self.js(CHECKS + f"return {name}()"), [], name)

    def phone(self, width=360, height=740):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 2, "mobile": True})
        self.addCleanup(self.driver.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})

    def color(self):
        return self.js("return getComputedStyle(document.body).backgroundColor")

    def press(self, label, scope=""):
        buttons = self.all(f'{scope} button[aria-label="{label}"]')
        self.assertTrue(buttons, f"no button {label!r} in {scope!r}")
        self.js("arguments[0].click()", buttons[-1])


class PageTest(Browser):
    """A server and a fresh page for each test."""
    def serve(self):
        self.server = Server(FOLDER)
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)

    def setUp(self):
        self.serve()
        self.expected_errors = []  # parts of console messages that this test causes
        self.open()
        self.driver.get_log("browser")

    def tearDown(self):
        console = [one["message"] for one in self.driver.get_log("browser")
                   if not any(part in one["message"] for part in self.expected_errors)]
        self.assertEqual(console, [])
        self.assertEqual(self.server.missed, [])

    def open(self):
        self.driver.get(self.server.url)  # another port is another origin: its storage is empty
        self.wait(lambda: self.js("return app.models.length > 0 || Boolean(arguments[0])",
                                  self.server.key))

    def type(self, text):
        self.get("input").send_keys(text)

    def idle(self):
        self.wait(lambda: self.js("return chats.runs.size === 0"), what="the answer does not end")

    def send(self, text, wait=True):
        before = len(self.server.seen)
        self.type(text + Keys.ENTER)
        self.wait(lambda: len(self.server.seen) > before or self.js(
            "return chats.runs.size === 0 && chats.open.messages.length > 0"))
        if wait:
            self.idle()

    def answers(self):
        return self.js("return [...document.querySelectorAll('.message.assistant .markdown')]"
                       ".map(node => node.textContent.trim())")

    def set(self, name, value):
        """A field of the settings."""
        self.js("""const field = document.querySelector(`[name=${arguments[0]}]`);
                   field.value = arguments[1];
                   field.dispatchEvent(new Event('input', {bubbles: true}));""", name, value)

    def messages(self):
        return self.js("return chats.open.messages.map(one => [one.role, one.content])")
