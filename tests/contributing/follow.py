#!/usr/bin/env python3
"""Follows a worked example of docs/contributing/ on a scratch tree, as a person would, and runs its commands.

    follow.py op|family|quantisation|command [--build build/release]
    follow.py op --full     configures and builds the scratch tree as it stands: minutes

The first form takes the objects of a finished build (quick_build.py) and is a test; the second does
what the page says to the letter. Both fail where the tree moves on and the page does not.
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

from pages import Outdated, Page, apply_steps, tree_files
from quick_build import QuickBuild

SOURCE = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ("op", "family", "quantisation", "command")


def make_tree(source, tree, copies):
    """`tree` has the files of `source`: links to them, or copies."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in tree_files(source):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if copies:
            shutil.copy2(source / name, path)
        else:
            path.symlink_to(source / name)


def show(words, cwd, env):
    """Runs a command and returns its output, which goes to the screen where it fails."""
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **env}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        raise Outdated(f"{shlex.join(words)}: exit code {done.returncode}\n{text[-6000:]}")
    return text


def count_tests(text):
    """How many tests a program of tests says to have passed."""
    found = re.findall(r"^\[  PASSED  \] (\d+) test|^Ran (\d+) test", text, re.M)
    return sum(int(a or b) for a, b in found)


class Quick:
    """Runs the commands of a page with programs of QuickBuild in the place of the build's."""

    def __init__(self, builder, tree):
        self.builder, self.tree, self.programs = builder, tree, {}

    def run(self, line):
        words = shlex.split(line)
        if words[:3] == ["cmake", "--build", "build/release"]:
            for target in words[words.index("--target") + 1:]:
                self.programs["millrace" if target == "millrace_cli" else target] = self.builder.program(target)
            return None
        env = {"MILLRACE_SOURCE": str(self.tree), "MILLRACE_DEVICE": "cpu",
               "MILLRACE_BUILD": str(self.builder.build)}
        if words[0].startswith("build/release/"):
            name = words[0].removeprefix("build/release/")
            if name not in self.programs:
                raise Outdated(f"{line}: the page has not built {name}")
            return show([self.programs[name], *words[1:]], self.tree, env)
        if words[0] == "python3":
            env["MILLRACE_BIN"] = self.programs.get("millrace", "")
            return show([sys.executable, "-B", *words[1:]], self.tree, env)
        raise Outdated(f"a command that cannot be followed: {line}")


def check_format(tree, names):
    """As `make check` does, where the version is installed that the code is formatted with."""
    code = [name for name in names if name.endswith((".h", ".cpp"))]
    tool = next((name for name in ("clang-format-14", "clang-format") if shutil.which(name)), None)
    if not code or not tool or " 14." not in show([tool, "--version"], tree, {}):
        return
    show([tool, "--dry-run", "-Werror", *code], tree, {})


def follow(page, runner):
    tests = 0
    for line in page.commands:
        begin = time.monotonic()
        text = runner(line)
        if text is not None:
            tests += count_tests(text)
        print(f"  {time.monotonic() - begin:6.1f} s  {line}", flush=True)
    if tests == 0:
        raise Outdated(f"{page.name}: its commands ran no test")
    return tests


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build" / "release")
    parser.add_argument("--full", action="store_true", help="configure and build the scratch tree")
    options = parser.parse_args()
    build = options.build.resolve()
    path = SOURCE / "docs" / "contributing" / f"{options.example}.md"
    tree = build / "contributing" / options.example
    try:
        page = Page(path.read_text(), path.name)
        make_tree(SOURCE, tree, options.full)
        new, changed = apply_steps(page, tree)
        print(f"{path.name}: {len(new)} new files, {len(changed)} changed", flush=True)
        check_format(tree, new + changed)
        if options.full:
            show(["cmake", "--preset", "release", "-DMILLRACE_CUDA=OFF"], tree, {})
            tests = follow(page, lambda line: show(["bash", "-ec", line], tree, {"MILLRACE_DEVICE": "cpu"}))
        else:
            builder = QuickBuild(SOURCE, build, tree, page, new, changed)
            tests = follow(page, Quick(builder, tree).run)
            print(f"  {builder.compiled} objects compiled, {len(builder.stale)} of the build were stale")
        print(f"{path.name}: {tests} tests passed")
    except Outdated as error:
        print(f"{path.name} does not fit the tree: {error}", file=sys.stderr)
        return 1
    if not options.full:
        shutil.rmtree(tree)
    return 0


if __name__ == "__main__":
    sys.exit(main())
