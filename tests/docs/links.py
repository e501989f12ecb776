#!/usr/bin/env python3
"""Checks the links of all Markdown pages: relative targets exist, anchors are headings, and every page
of docs/ can be reached from docs/index.md.

    links.py ROOT          check the pages below ROOT
    links.py --self-test   check that faults are found
"""
import pathlib
import re
import sys
import tempfile

import pages

ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:|^//", re.IGNORECASE)  # https:, mailto:


def check(root: pathlib.Path) -> list:
    """What is wrong, a line each."""
    wrong, reached = [], {}
    read = {path.resolve(): pages.read_page(path) for path in pages.all_pages(root)}
    for path, page in read.items():
        name = page.path.relative_to(root).as_posix()
        reached[path] = set()
        for line, link in page.links:
            if ELSEWHERE.match(link):
                continue
            target, _, anchor = link.partition("#")
            goal = (page.path.parent / target).resolve() if target else path
            if target.startswith("/"):
                wrong.append(f"{name}:{line}: {link}: begins with /; links are relative")
            elif not goal.exists():
                wrong.append(f"{name}:{line}: {link}: no such file")
            elif not goal.is_relative_to(root.resolve()):
                wrong.append(f"{name}:{line}: {link}: outside of the tree")
            elif anchor and goal in read and anchor not in read[goal].anchors:
                wrong.append(f"{name}:{line}: {link}: no such heading")
            reached[path].add(goal)
    return wrong + orphans(root, read, reached)


def orphans(root: pathlib.Path, read: dict, reached: dict) -> list:
    start = (root / "docs" / "index.md").resolve()
    if start not in read:
        return ["docs/index.md: is missing"]
    seen, todo = {start}, [start]
    while todo:
        for goal in reached[todo.pop()]:
            if goal in read and goal not in seen:
                seen.add(goal)
                todo.append(goal)
    return [f"{page.path.relative_to(root).as_posix()}: no way leads there from docs/index.md"
            for path, page in read.items()
            if path not in seen and page.path.relative_to(root).parts[0] == "docs"]


def self_test() -> list:
    good = "# A title\n\n[here](#a-title) [there](sub/b.md#two-words-1) `[no](link)` [out](https://x.y)\n"
    other = "## Two words\n## Two words\n[back](../index.md)\n"
    faults = {
        "[x](none.md)": "no such file",
        "[x](sub/b.md#three)": "no such heading",
        "[x\ny](none.md#a)": "no such file",
        "![x](none.svg)": "no such file",
        "[x](/docs/index.md)": "begins with /",
        "[x](../../..)": "outside of the tree",
    }
    wrong = []

    def run(extra, orphan=False):
        with tempfile.TemporaryDirectory() as folder:
            docs = pathlib.Path(folder) / "docs"
            (docs / "sub").mkdir(parents=True)
            (docs / "index.md").write_text(good + extra + "\n")
            (docs / "sub" / "b.md").write_text(other)
            if orphan:
                (docs / "c.md").write_text("alone\n")
            return check(pathlib.Path(folder))

    if run(""):
        wrong.append(f"right links are called wrong: {run('')}")
    for text, fault in faults.items():
        found = run(text)
        if len(found) != 1 or fault not in found[0]:
            wrong.append(f"{text!r}: expected '{fault}', found {found}")
    if "no way leads there" not in "".join(run("", orphan=True)):
        wrong.append("an orphan is not found")
    return wrong


def main() -> int:
    wrong = self_test() if sys.argv[1:] == ["--self-test"] else check(pathlib.Path(sys.argv[1]))
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
