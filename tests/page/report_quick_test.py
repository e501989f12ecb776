#!/usr/bin/env python3
"""The page of reports without a browser: does its policy fit it, does it stay at home, does its
script read only fields that data has, and (where node is) does the roofline become a file."""
import base64
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import unittest

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parents[1] / "src/observe/page"
BUILD = pathlib.Path(os.environ.get("MILLRACE_BUILD", "build/release"))
PAGE = (BUILD / "report_page" / "index.html").read_text()
FIELDS = json.loads((HERE / "report_fields.json").read_text())
SCRIPTS = {path.name: path.read_text() for path in sorted(SOURCE.glob("*.js"))}


class Joined(unittest.TestCase):
    def test_every_file_is_in_the_page(self):
        for name, source in SCRIPTS.items():
            self.assertIn(source, PAGE, f"{name} is not in the page: add it to cmake/page.cmake")
        self.assertIn((SOURCE / "page.css").read_text(), PAGE)
        self.assertEqual(re.findall(r"@[A-Z]+@", PAGE), ["@DATA@"])
        self.assertLess(len(PAGE), 64 * 1024)

    def test_the_policy_names_the_hashes(self):
        [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', PAGE)
        for part in ("style", "script"):
            [inside] = re.findall(rf"<{part}>(.*?)</{part}>", PAGE, re.S)
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            self.assertIn(f"{part}-src 'sha256-{digest}';", policy)
        self.assertNotIn("unsafe", policy)
        self.assertTrue(policy.startswith("default-src 'none';"))

    def test_no_other_host_and_no_markup_from_text(self):
        # The name of SVG's namespace is the one address; nothing is fetched from it.
        text = PAGE.replace("http://www.w3.org/2000/svg", "")
        self.assertEqual(re.findall(r"https?:|(?:src|href|action)=|@import|url\(|fetch\(|"
                                    r"XMLHttpRequest|WebSocket", text), [])
        self.assertNotRegex(text, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|"
                                  r"DOMParser|\beval\b|new Function|\son\w+=\"|\sstyle=\"")


class Fields(unittest.TestCase):
    def test_the_script_reads_no_other_fields(self):
        """By the names of its variables: what is called `stage` is a stage."""
        read = {kind: set() for kind in FIELDS}
        for source in SCRIPTS.values():
            for kind, field in re.findall(r"\b(\w+)\.(\w+)", re.sub(r"//.*", "", source)):
                if kind in FIELDS:
                    read[kind].add(field)
        for kind, fields in FIELDS.items():
            known = {*fields["needs"], *fields.get("may", [])}
            self.assertLessEqual(read[kind], known, kind)
            self.assertLessEqual(set(fields["needs"]), read[kind] | read["section"],
                                 f"{kind}: not read")


@unittest.skipUnless(shutil.which("node"), "no node: report_test.py checks it in Chromium")
class Roofline(unittest.TestCase):
    def figure(self, roofline, width=760):
        script = "\n".join(SCRIPTS[f"{name}.js"] for name in
                           ("units", "drawing", "table", "curves", "roofline", "timeline", "page"))
        done = subprocess.run(
            ["node", "-e", script + "\nconst made = rooflineFigure(JSON.parse(process.argv[1]), "
             f"{width});"
             "process.stdout.write(made ? standalone(made, '') : '');", json.dumps(roofline)],
            capture_output=True, text=True, check=True)
        return done.stdout

    def stage(self, name, gflop_s, intensity, int8):
        flops = gflop_s * 1e9
        return {"stage": name, "calls": 1, "seconds": 1, "share": 0.5, "bytes": flops / intensity,
                "flops": flops, "int8_flops": flops if int8 else 0, "gb_s": gflop_s / intensity,
                "gflop_s": gflop_s, "flops_per_byte": intensity, "roof": "memory",
                "percent_of_ceiling": 50}

    def roofline(self, *stages, **ceilings):
        return {"phase": "<decode>", "stages": stages, "ceilings": ceilings}

    def test_a_file_that_stands_alone(self):
        stages = (self.stage("<qkv>", 100, 8, True), self.stage("attention", 40, 30, False))
        svg = self.figure(self.roofline(*stages, read_gb_s=30, f32_gflop_s=160,
                                        int8_gflop_s=1300, bf16_gflop_s=600))
        self.assertTrue(svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" width="760"'))
        self.assertEqual(svg.count("<circle"), 2)
        self.assertEqual(svg.count('class="roof"'), 3)
        for part in ("memory: 30.0 GB/s", "f32: 160 GFLOP/s", "int8: 1.30 TFLOP/s", "&#60;qkv&#62;"):
            self.assertIn(part, svg)
        for part in ("NaN", "Infinity", "undefined", "bf16", "<qkv>"):
            self.assertNotIn(part, svg)

    # Letters of 12 pixels are at least 5 wide on average, and 9 high above their line.
    def boxes(self, svg):
        out = []
        for x, y, anchor, text in re.findall(
                r'<text x="([\d.-]+)" y="([\d.-]+)" text-anchor="(\w+)">([^<]*)</text>', svg):
            if not re.search("[a-z]", text) or text == "FLOPs per byte":
                continue  # a number of an axis
            x, y, wide = float(x), float(y), 5 * len(text)
            left = x - wide * {"start": 0, "middle": 0.5, "end": 1}[anchor]
            out.append((text, left, y - 9, left + wide, y))
        return out

    def test_labels_keep_off_the_roofs_and_each_other(self):
        draw = random.Random(5)
        for width in (330, 352, 390, 760, 1168):
            for _ in range(20):
                # Dots that lie close together, as those of a real pass do, near the roof.
                at = draw.uniform(0.3, 30)
                stages = [self.stage(name, 17 * x * draw.uniform(0.3, 1.2), x, draw.random() < 0.7)
                          for name in ("qkv", "attention", "out", "up", "down", "head", "norm")
                          for x in [at * draw.uniform(0.8, 1.3)]]
                rates = dict(read_gb_s=draw.uniform(5, 60), f32_gflop_s=draw.uniform(50, 900),
                             int8_gflop_s=draw.uniform(100, 2000))
                svg = self.figure(self.roofline(*stages, **rates), width)
                [(wide, high)] = re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)
                self.assertEqual(int(wide), width)
                boxes = self.boxes(svg)
                self.assertGreaterEqual(len(boxes), 8)
                roofs = [[float(x) for x in one] for one in re.findall(
                    r'class="roof" x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"', svg)]
                self.assertGreaterEqual(len(roofs), 2)
                for text, left, top, right, bottom in boxes:
                    self.assertTrue(left >= 0 and right <= width and bottom <= float(high), text)
                    for x1, y1, x2, y2 in roofs:
                        on = [(x1 + (x2 - x1) * i / 999, y1 + (y2 - y1) * i / 999)
                              for i in range(1000)]
                        crossed = [p for p in on if left < p[0] < right and top < p[1] < bottom]
                        self.assertEqual(crossed, [], (text, width, svg))
                for i, (text, *a) in enumerate(boxes):
                    for other, *b in boxes[:i]:
                        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                        self.assertTrue(apart, (text, other, width, svg))

    def test_numbers_are_rounded_for_people(self):
        script = SCRIPTS["units.js"] + """process.stdout.write(JSON.stringify([
          [0, 0.00213, 0.0149, 3.14159, 31.4159, 314.159].map(figure),
          [1, 1000, 0.000123456789, 1.23456789, 184213.2345, -12345.6].map(UNITS.plain)]))"""
        done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(done.stdout), [
            ["0.00", "0.0021", "0.01", "3.14", "31.4", "314"],
            ["1", "1000", "0.0001235", "1.235", "184213", "-12346"]])

    def test_only_roofs_that_have_work(self):
        svg = self.figure(self.roofline(self.stage("up", 40, 30, False), read_gb_s=30,
                                        f32_gflop_s=160, int8_gflop_s=1300))
        self.assertEqual(svg.count('class="roof"'), 2)
        self.assertNotIn("int8", svg)

    def test_without_ceilings_or_work_there_is_still_no_nonsense(self):
        bare = self.figure(self.roofline(self.stage("up", 40, 30, False)))
        self.assertEqual((bare.count("<circle"), bare.count('class="roof"')), (1, 0))
        self.assertNotIn("NaN", bare)
        idle = {**self.stage("up", 40, 30, False), "flops": 0}
        self.assertEqual(self.figure(self.roofline(idle)), "")


if __name__ == "__main__":
    unittest.main()
