#!/usr/bin/env python3
"""The follower of worked examples notices what it must, and what CONTRIBUTING.md names is there."""
import pathlib
import re
import sys
import tempfile
import unittest

import follow
from pages import Outdated, Page, apply_steps, edited
from quick_build import declares_only

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def page(*lines):
    return Page("\n".join(lines) + "\n")


def edit(kind, line, *new):
    return page(f"In `a.h`, {kind} `{line}`:", "", "```cpp", *new, "```")


class Pages(unittest.TestCase):
    def tree(self, **files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, text in files.items():
            (pathlib.Path(folder.name) / name.replace("_", ".")).write_text(text)
        return pathlib.Path(folder.name)

    def test_edits(self):
        for kind, wanted in (("after", "x\n  y\nnew\nz\n"), ("before", "x\nnew\n  y\nz\n"),
                             ("instead of", "x\nnew\nz\n")):
            tree = self.tree(a_h="x\n  y\nz\n")
            self.assertEqual(apply_steps(edit(kind, "y", "new"), tree), ([], ["a.h"]))
            self.assertEqual((tree / "a.h").read_text(), wanted)

    def test_a_tree_that_moved_on(self):
        for text, says in (("x\nz\n", "has 0 lines"), ("y\ny\n", "has 2 lines"), ("yy\n", "has 0 lines")):
            with self.assertRaisesRegex(Outdated, says):
                apply_steps(edit("after", "y", "new"), self.tree(a_h=text))
        with self.assertRaisesRegex(Outdated, "there is no b.h"):
            apply_steps(page("In `b.h`, after `y`:", "```cpp", "new", "```"), self.tree(a_h="y\n"))
        with self.assertRaisesRegex(Outdated, "is there already"):
            apply_steps(page("New file `a.h`:", "```cpp", "new", "```"), self.tree(a_h="y\n"))

    def test_links_are_not_written_through(self):
        real, tree = self.tree(a_h="y\n"), self.tree()
        (tree / "a.h").symlink_to(real / "a.h")
        apply_steps(edit("after", "y", "new"), tree)
        self.assertEqual((real / "a.h").read_text(), "y\n")
        self.assertEqual((tree / "a.h").read_text(), "y\nnew\n")

    def test_pages_that_are_not_understood(self):
        for lines, says in ((("```cpp", "x", "```"), "no line before it says"),
                            (("New file `a.h`:", "words"), "there is none"),
                            (("New file `a.h`:",), "ends where"),
                            (("In `a.h`, below `y`:", "```cpp", "x", "```"), "no line before|not a form"),
                            (("New file a.h:", "```cpp", "x", "```"), "not a form"),
                            (("```sh", "x"), "without an end")):
            with self.assertRaisesRegex(Outdated, says):
                page(*lines)

    def test_commands(self):
        got = page("```sh", "# why", "a 'b c'", "", "d", "```", "```text", "no", "```")
        self.assertEqual((got.steps, got.commands), ([], ["a 'b c'", "d"]))
        with self.assertRaisesRegex(Outdated, "ran no test"):
            follow.follow(got, lambda line: "[  PASSED  ] 0 tests.\n")
        self.assertEqual(follow.follow(got, lambda line: "[  PASSED  ] 2 tests.\n"), 4)
        self.assertEqual(follow.count_tests("Ran 3 tests in 0.1s\n"), 3)

    def test_what_only_declares(self):
        for text in ("void add_count(const Command& app, Action& action);", "// words", "",
                     "std::vector<int> f(int a);  // why"):
            self.assertTrue(declares_only(edit("after", "y", text).steps), text)
        for text in ("iq4_nl,", "int x;", "int f() { return 1; }", "#define F(x)", "struct A {", "return f(x);"):
            self.assertFalse(declares_only(edit("after", "y", text).steps), text)
        self.assertFalse(declares_only(edit("instead of", "y", "void f();").steps))

    def test_edited_names_the_place(self):
        with self.assertRaisesRegex(Outdated, r"op.md:3: a.h has 0 lines `y`"):
            edited("x\n", edit("after", "y", "new").steps[0], "op.md:3")


class Contributing(unittest.TestCase):
    TEXT = (SOURCE / "CONTRIBUTING.md").read_text()

    def test_examples_are_followed(self):
        linked = set(re.findall(r"docs/contributing/(\w+)\.md", self.TEXT))
        there = {path.stem for path in (SOURCE / "docs" / "contributing").glob("*.md")}
        self.assertEqual(linked, set(follow.EXAMPLES))
        self.assertEqual(there, set(follow.EXAMPLES))

    def test_paths_are_there(self):
        pages = [SOURCE / "CONTRIBUTING.md", *(SOURCE / "docs" / "contributing").glob("*.md")]
        for path in pages:
            text = path.read_text()
            made = {step.path for step in Page(text, path.name).steps} if path.parent.name == "contributing" else set()
            for name in re.findall(r"`((?:src|tests|docs|scripts|bench|cmake|python)/[\w./-]*)`", text):
                if not re.search(r"NAME|MODULE", name):
                    self.assertTrue(name in made or (SOURCE / name).exists(), f"{path.name}: {name}")

    def test_suites_and_targets_are_there(self):
        code = "".join(p.read_text(errors="replace") for folder in ("src", "tests")
                       for p in (SOURCE / folder).rglob("*_test.cpp"))
        for name in re.findall(r"--gtest_filter='\*?(\w+)", self.TEXT):
            self.assertRegex(code, rf"(TEST\w*|INSTANTIATE\w+)\({name}\w*,", name)
        makefile = (SOURCE / "Makefile").read_text()
        targets = set(re.findall(r"^([a-z-]+):.*?##", makefile, re.M))
        # Otherwise make finds a folder of that name, docs/ for example, and does nothing.
        phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)", makefile, re.M)[1].replace("\\", "").split()
        self.assertEqual(targets - set(phony), set())
        for name in re.findall(r"(?:`|^)make ([a-z-]+)", self.TEXT, re.M):
            self.assertIn(name, targets)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
