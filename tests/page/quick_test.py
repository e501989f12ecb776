#!/usr/bin/env python3
"""The page without a browser: it is in the program, its policy matches, it loads nothing from
elsewhere, both languages are complete, and (with node) Markdown is parsed correctly."""
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import unittest

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parents[1] / "src/serve/page"
BUILD = pathlib.Path(os.environ.get("MILLRACE_BUILD", "build/release"))
FOLDER = BUILD / "page"


def printed(what: str) -> bytes:
    return subprocess.run([os.environ["MILLRACE_PAGE_PRINT"], what], check=True,
                          capture_output=True).stdout


def scripts() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(SOURCE.glob("*.js"))}


class Embedded(unittest.TestCase):
    def test_the_program_has_the_page(self):
        page = printed("page")
        self.assertEqual(page, (FOLDER / "index.html").read_bytes())
        text = page.decode()
        for name, source in scripts().items():
            self.assertIn(source, text, f"{name} is not in the page: add it to cmake/page.cmake")
        self.assertIn((SOURCE / "page.css").read_text(), text)
        self.assertNotIn("\r", text)
        self.assertNotIn("@SCRIPT@", text)
        self.assertLess(len(page), 128 * 1024)

    def test_the_policy_names_the_hashes(self):
        page, policy = printed("page"), printed("policy").decode()
        self.assertEqual(policy, (FOLDER / "policy.txt").read_text().strip())
        for part, rule in (("style", "style-src"), ("script", "script-src")):
            inside = re.findall(rf"<{part}>(.*?)</{part}>".encode(), page, re.S)
            self.assertEqual(len(inside), 1)
            digest = base64.b64encode(hashlib.sha256(inside[0]).digest()).decode()
            self.assertIn(f"{rule} 'sha256-{digest}';", policy)
        self.assertNotIn("unsafe", policy)
        self.assertNotIn("*", policy)
        self.assertRegex(printed("tag").decode(), r'^"[0-9a-f]{32}"$')

    def test_the_same_sources_make_the_same_page(self):
        again = BUILD / "page_again"
        shutil.rmtree(again, ignore_errors=True)
        subprocess.run([os.environ["MILLRACE_CMAKE"], f"-DSOURCE={SOURCE}", f"-DFOLDER={again}",
                        "-P", HERE.parents[1] / "cmake/page.cmake"], check=True)
        for name in ("index.html", "policy.txt", "page.cpp"):
            self.assertEqual((again / name).read_bytes(), (FOLDER / name).read_bytes(), name)
        shutil.rmtree(again)


class AtHome(unittest.TestCase):
    def test_no_other_host(self):
        # SVG's namespace is the only address; nothing is fetched from it.
        text = printed("page").decode().replace("http://www.w3.org/2000/svg", "")
        self.assertEqual(re.findall(r"(?:https?:)?//[a-z0-9][\w.-]*\.[a-z]{2,}\b", text), [])
        self.assertEqual(re.findall(r"\b(?:src|srcset|action|ping)\s*=", text), [])
        self.assertEqual(re.findall(r"@import|url\(|importScripts|WebSocket|EventSource|"
                                    r"sendBeacon|XMLHttpRequest", text), [])
        # Below the page's own address, wherever a proxy has put it.
        paths = re.findall(r"request\('([^']*)'(?! in)", text)
        self.assertEqual(sorted(set(paths)), ["metrics", "props", "v1/models"])
        self.assertIn("request('prompt' in body ? 'v1/completions' : 'v1/chat/completions',", text)
        self.assertEqual(re.findall(r"\bfetch\((.{10})", text), ["base + pat"])
        self.assertEqual(re.findall(r"""['"`(]/(?:v1|props|metrics|health)\b""", text), [])

    def test_text_never_becomes_markup(self):
        for name, source in scripts().items():
            self.assertNotRegex(source, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|"
                                        r"DOMParser|createContextualFragment|\beval\b|new Function",
                                name)
        html = (SOURCE / "index.html").read_text()
        self.assertEqual(re.findall(r"\son\w+=|\sstyle=", html), [])


class Languages(unittest.TestCase):
    def test_both_have_the_same_texts_and_all_are_used(self):
        source = scripts()["i18n.js"]
        english, chinese = re.search(r"en: \{(.*?)\n  \},\n  zh: \{(.*?)\n  \},", source,
                                     re.S).groups()
        texts = [dict(re.findall(r"^    (\w+): '(.*)',$", part, re.M))
                 for part in (english, chinese)]
        self.assertEqual(list(texts[0]), list(texts[1]))
        for key, english in texts[0].items():
            holes = [sorted(re.findall(r"\{\w+\}", one)) for one in (english, texts[1][key])]
            self.assertEqual(holes[0], holes[1], key)
        html = (SOURCE / "index.html").read_text()
        others = "".join(one for name, one in scripts().items() if name != "i18n.js")
        used = set(re.findall(r'data-(?:t|label|placeholder)="(\w+)"', html))
        self.assertLessEqual(used, set(texts[0]))
        self.assertLessEqual(set(re.findall(r"\bt\('(\w+)'", others)), set(texts[0]))
        unused = [key for key in texts[0] if key not in used and f"'{key}'" not in others]
        self.assertEqual(unused, [])


@unittest.skipUnless(shutil.which("node"), "no node: browser_test.py checks it in Chromium")
class Markdown(unittest.TestCase):
    def test_cases(self):
        done = subprocess.run(["node", HERE / "markdown_test.js", SOURCE], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
