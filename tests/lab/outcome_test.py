"""What every experiment of millrace-lab has: --json, --html and --save; and `compare`."""
import json
import re

import driver

SAMPLER = (driver.LAB, "sampler", "--device", "cpu", "--vocab", 500, "--rows", "1,3")


class Outcome(driver.CliTest):
    def setUp(self):
        super().setUp()
        self.runs = self.folder / "runs"
        self.env = {"MILLRACE_LAB_RUNS": str(self.runs)}

    def test_runs_are_kept(self):
        got = self.ok(*SAMPLER, "--json", "--save", "before", env=self.env)
        (file,) = self.runs.iterdir()
        self.assertRegex(file.name, r"^\d{8}_\d{6}_before\.json$")
        kept = json.loads(file.read_text())
        self.assertEqual(kept["result"], got.json())
        self.assertEqual((kept["format"], kept["name"]), ("millrace-lab run", "before"))
        for part in ("sampler", "--vocab 500", "--save before"):
            self.assertIn(part, kept["command"])
        self.assertRegex(kept["date"], r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
        self.assertIn("cores", kept["machine"])
        self.assertEqual(kept["program"], self.ok(driver.LAB, "--version").out.strip())

    def test_compare(self):
        for name in ("a", "b"):
            self.ok(*SAMPLER, "--save", name, env=self.env)
        got = self.ok(driver.LAB, "compare", "a", "b", "--json", env=self.env).json()
        self.assertEqual(got["experiment"], "sampler")
        numbers = {number["name"]: number for number in got["numbers"]}
        self.assertEqual(numbers["vocab"], {"name": "vocab", "a": 500, "b": 500, "ratio": 1})
        for rows in (1, 3):  # an element is named by what it is about
            us = numbers[f"sizes[rows {rows}].us"]
            self.assertAlmostEqual(us["ratio"], us["b"] / us["a"])
        self.assertEqual((got["only_a"], got["only_b"]), ([], []))
        text = self.ok(driver.LAB, "compare", "a", "b", env=self.env).out
        self.assertRegex(text, r"sizes\[rows 3\]\.us +[\d.e+-]+ +[\d.e+-]+ +[\d.]+\n")
        self.assertNotIn("vocab  ", text)
        self.assertIn("equal", text)
        self.assertRegex(self.ok(driver.LAB, "compare", "a", "b", "--all", env=self.env).out,
                         r"vocab +500 +500 +1\.000")
        # A run beside itself, by its file; and one with other sizes.
        (file,) = self.runs.glob("*_a.json")
        same = self.ok(driver.LAB, "compare", file, file, "--json", env=self.env).json()
        self.assertEqual(same["equal"], len(same["numbers"]))
        self.ok(driver.LAB, "sampler", "--device", "cpu", "--vocab", 500, "--rows", "1", "--save", "c",
                env=self.env)
        fewer = self.ok(driver.LAB, "compare", "a", "c", "--json", env=self.env).json()
        self.assertIn("sizes[rows 3].us", fewer["only_a"])
        self.assertIn("only in A", self.ok(driver.LAB, "compare", "a", "c", env=self.env).out)

    def test_the_newest_of_a_name_is_meant(self):
        self.runs.mkdir()
        for second, value in ((1, 10.0), (3, 30.0), (2, 20.0)):
            (self.runs / f"20260101_00000{second}_x.json").write_text(json.dumps(
                {"format": "millrace-lab run", "result": {"experiment": "e", "n": value}}))
        got = self.ok(driver.LAB, "compare", "x", self.runs / "20260101_000001_x.json", "--json", env=self.env)
        self.assertEqual((got.json()["numbers"][0]["a"], got.json()["numbers"][0]["b"]), (30, 10))

    def test_elements_are_named_apart(self):
        def run(name, result):
            path = self.folder / name
            path.write_text(json.dumps({"format": "millrace-lab run", "result": {"experiment": "e", **result}}))
            return path
        rows = [{"what": "sum", "bytes": 4, "us": 1.5}, {"what": "sum", "bytes": 8, "us": 2.5}]
        a = run("a.json", {"rows": rows, "deep": {"list": [1, 2], "zero": 0}, "text": "x", "none": None})
        b = run("b.json", {"rows": rows[::-1], "deep": {"list": [1, 3], "zero": 1}, "text": "y"})
        got = self.ok_json(driver.LAB, "compare", a, b)
        self.assertEqual({n["name"]: n["ratio"] for n in got["numbers"]}, {
            "rows[sum, bytes 4].bytes": 1, "rows[sum, bytes 4].us": 1, "rows[sum, bytes 8].bytes": 1,
            "rows[sum, bytes 8].us": 1, "deep.list[0]": 1, "deep.list[1]": 1.5, "deep.zero": None})
        # Two with one first text, and no whole number: by all of their texts.
        rungs = [{"rung": "5", "name": "bf16", "tok_s": 1.5}, {"rung": "5", "name": "fused", "tok_s": 2.5}]
        a = run("a.json", {"rungs": [{"rung": "0", "name": "cpu", "tok_s": 0.5}, *rungs]})
        b = run("b.json", {"rungs": rungs})
        got = self.ok_json(driver.LAB, "compare", a, b)
        self.assertEqual({n["name"]: n["ratio"] for n in got["numbers"]},
                         {"rungs[5, bf16].tok_s": 1, "rungs[5, fused].tok_s": 1})
        self.assertEqual(got["only_a"], ["rungs[0, cpu].tok_s"])

    def test_compare_errors(self):
        self.ok(*SAMPLER, "--save", "a", env=self.env)
        self.fails(1, driver.LAB, "compare", "a", "nothing", env=self.env, says=("nothing", "--save NAME"))
        self.fails(1, driver.LAB, "compare", "a", "../a", env=self.env, says="../a")
        bad = self.folder / "bad.json"
        for text in ("no JSON", "[]", "{}", '{"format": "millrace-lab run"}',
                     '{"format": "millrace-lab run", "result": 3}', '{"format": 3, "result": {}}',
                     '{"format": "millrace-lab run", "result": {"experiment": 5}}'):
            bad.write_text(text)
            self.fails(1, driver.LAB, "compare", "a", bad, env=self.env, says=("bad.json", "kept run"))
        bad.write_text('{"format": "millrace-lab run", "result": {"experiment": "other"}}')
        self.fails(2, driver.LAB, "compare", "a", bad, env=self.env, says=("'other'", "'sampler'"))
        self.fails(1, driver.LAB, "compare", "a", "x" * 300, env=self.env, says="no kept run")
        self.fails(2, driver.LAB, "compare", "a", says="required")

    def test_names_and_places_of_runs(self):
        for name in ("../a", "a/b", ".hidden", "a b"):
            self.fails(2, *SAMPLER, "--save", name, env=self.env, says="--save")
        self.assertFalse(self.runs.exists())
        self.runs.write_text("a file")  # said before the work, whose result would be lost
        self.fails(1, driver.LAB, "ladder", "random:nothing", "--save", "a", env=self.env, says="MILLRACE_LAB_RUNS")

    def test_pages(self):
        page = self.folder / "page.html"
        got = self.ok_json(*SAMPLER, "--html", page)
        shown = driver.Page(page)
        self.assertEqual(shown.elsewhere, [])
        self.assertEqual([row["rows"] for row in shown.table("sizes")], [1, 3])
        for row, size in zip(shown.table("sizes"), got["sizes"]):
            self.assertTrue(abs(row["us"] - size["us"]) <= 1e-5 * size["us"], (row, size))
        about = {row["what"]: row["value"] for row in shown.table("The run")}
        self.assertEqual(about["vocab"], 500)
        self.assertIn("--html", about["command"])
        self.ok(*SAMPLER, "--html", page)  # an earlier page is replaced, nothing else is
        notes = self.folder / "notes.txt"
        notes.write_text("mine")
        self.fails(2, *SAMPLER, "--html", notes, says="notes.txt")
        self.assertEqual(notes.read_text(), "mine")
        self.fails(1, *SAMPLER, "--html", self.folder / "none" / "page.html", says="page.html")

    def test_every_experiment_has_them(self):
        listed = re.search(r"Commands:\n(.*?)\n\n", self.ok(driver.LAB, "--help").out, re.DOTALL)[1]
        names = set(re.findall(r"^  ([a-z]+)", listed, re.MULTILINE))
        self.assertLess({"ladder", "fusion", "context", "sampler", "attention", "streams", "overlap",
                         "precision", "norms", "gemm", "comm", "story", "compare"}, names | {"x"})
        for name in names - {"story", "compare", "completion"}:
            with self.subTest(experiment=name):
                shown = self.ok(driver.LAB, name, "--help").out
                for option in ("--json", "--html FILE", "--save NAME"):
                    self.assertIn(option, shown)


if __name__ == "__main__":
    driver.main()
