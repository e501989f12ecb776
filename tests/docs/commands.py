#!/usr/bin/env python3
"""Checks the shell commands of the pages in ROOT (README.md, CONTRIBUTING.md, ...) and docs/: a block with
commands is run, or an HTML comment directly above its fence says why not:

    <!-- not run: needs a GPU -->    the commands are not run, but their options must exist
    <!-- fails -->                   every command must end with an error

A command within a sentence is not run, but must exist, with its options.

Blocks are run on the CPU in a scratch folder, in order within a page, so that the files of one block serve
the next. models/ and examples/ are there. Two folders are exempt: docs/notebook/, whose pages are logs with
commands of the versions that they measured, and docs/contributing/, which tests/contributing/ follows.

    MILLRACE_BIN=PROGRAM commands.py ROOT [PAGE...]   check all pages, or some
    MILLRACE_BIN=PROGRAM commands.py --self-test      check that faults are found
"""
import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import pages

SHELL = {"", "sh", "bash", "shell", "console"}
# What a plain block's line begins with where it is a command and no output.
COMMAND = re.compile(r"^(\$ |(?:[A-Z][A-Z0-9_]*=\S* +)*(?:millrace(?:-lab)?|make|pip|pip3|python|python3|mpirun|"
                     r"cmake|ctest|git|curl|docker|apt-get|sudo|tar|\./|bench/|tools/|scripts/|"
                     r"build/)(?:\s|[\w./-]*\s|$))")
# A command within a sentence: it is not run, but must exist, with its options.
INLINE = re.compile(r"^(?:millrace(?:-lab)?|make) (?!\.\.\.|[A-Z])\S")
# What may be run; other programs install, build, or need what is not here.
HARMLESS = {"millrace", "millrace-lab", "python3", "echo", "printf", "cat", "head", "tail", "ls", "mkdir", "cd", "awk",
            "test", "wc", "sort", "diff"}
# Folders whose commands are not run here, and why.
EXEMPT = {"docs/notebook": "its pages are logs", "docs/contributing": "tests/contributing/ follows them"}
SECONDS = 240  # for a block on a busy machine; all of them take seconds


def is_shell(block: pages.Block) -> bool:
    if block.language not in SHELL:
        return False
    return block.language != "" or any(map(COMMAND.match, block.text.splitlines()))


def commands(text: str) -> list:
    """The commands of a block, each whole. Where lines begin with $, the others are output."""
    lines = text.splitlines()
    prompted = any(line.startswith("$ ") for line in lines)
    found, part = [], ""
    for line in lines:
        if not part:
            if prompted and not line.startswith("$ "):
                continue
            line = line[2:] if prompted else line
            if not line.strip() or line.lstrip().startswith("#"):
                continue
        part += ("\n" if part else "") + line
        if not part.endswith("\\") and is_whole(part):
            found.append(part)
            part = ""
    return found + ([part] if part else [])


def is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quotation mark is open
        return False
    return True


def simple_commands(command: str) -> list:
    """The words of each program that a command calls, without assignments before it."""
    found = []
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split, words, skip = True, [], False
    for word in lexer:
        if word and set(word) <= set("|&;()"):
            found.append(words)
            words = []
        elif word and set(word) <= set("<>&"):
            skip = True
        elif skip:
            skip = False
        elif words or not re.match(r"^[A-Za-z_]\w*=", word):
            words.append(word)
    return [words for words in found + [words] if words]


class Program:
    def __init__(self, path: str):
        self.path, self.name = path, pathlib.Path(path).name

    @functools.lru_cache(maxsize=None)
    def help(self, *words) -> str:
        done = subprocess.run([self.path, *words, "--help-all"], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    @functools.lru_cache(maxsize=None)
    def options(self, *words) -> set:
        return set(re.findall(r"--?[a-z][a-z0-9-]*", self.help(*words)))

    def names(self, *words) -> set:
        """The commands that `PROGRAM WORDS` has."""
        _, _, rest = self.help(*words).partition("Commands:\n")
        return set(re.findall(r"^  ([a-z]+)", rest.partition("\n\n")[0], re.MULTILINE))

    def faults(self, words: list) -> list:
        """Commands and options in the words of a call that the program does not know."""
        path, rest = [], words[1:]
        while rest and self.names(*path) and not rest[0].startswith("-"):
            if rest[0] not in self.names(*path):
                return [f"{' '.join([self.name] + path + rest[:1])}: no such command"]
            path.append(rest.pop(0))
        wrong = []
        for word in rest:
            option = re.match(r"^\[?(--?[a-z][a-z0-9-]*)", word)
            if option and option[1] not in self.options(*path):
                wrong.append(f"{' '.join([self.name] + path)}: no option {option[1]}")
        return wrong


class Checker:
    def __init__(self, root: pathlib.Path, program: str, scratch: pathlib.Path):
        self.root, self.program, self.scratch = root, Program(program), scratch
        self.programs = {"millrace": self.program}
        if (lab := pathlib.Path(program).with_name("millrace-lab")).exists():
            self.programs["millrace-lab"] = Program(str(lab))
        self.targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
        self.wrong, self.run, self.marked, self.named, self.slowest = [], 0, 0, 0, []
        (scratch / "bin").mkdir(parents=True)
        for name, one in self.programs.items():
            (scratch / "bin" / name).symlink_to(one.path)
        shutil.copytree(root / "models", scratch / "models")
        self.environment = dict(os.environ, MILLRACE_DEVICE="cpu", HOME=str(scratch),
                                PATH=f"{scratch / 'bin'}:{os.environ.get('PATH', '')}")

    def check(self, path: pathlib.Path) -> None:
        name = path.relative_to(self.root).as_posix()
        place = self.scratch / name.replace("/", "-")
        place.mkdir()
        for shared, origin in (("models", self.scratch), ("examples", self.root)):
            if (origin / shared).exists():
                (place / shared).symlink_to(origin / shared)
        page = pages.read_page(path)
        for block in filter(is_shell, page.blocks):
            for fault in self.faults(block, place):
                self.wrong.append(f"{name}:{block.line}: {fault}")
        for line, code in page.code:
            if INLINE.match(code):
                self.named += 1
                self.wrong += [f"{name}:{line}: {fault}" for fault in self.unknown([code])]

    def faults(self, block: pages.Block, place: pathlib.Path) -> list:
        calls = commands(block.text)
        unknown = self.unknown(calls)
        if re.match(r"not run: \S", block.mark):
            self.marked += 1
            return unknown
        if block.mark == "fails":
            self.run += 1
            return [f"'{call}' should fail with a line, and does not" for call in calls
                    if self.status(call, place)[0] not in (1, 2, 3)]
        wrong = unknown or [
            f"{words[0]} is not run by this test: put <!-- not run: WHY --> above the fence"
            for call in calls for words in simple_commands(call) if words[0] not in HARMLESS]
        if wrong:
            return wrong
        self.run += 1
        script = block.text if calls and not block.text.startswith("$ ") else "\n".join(calls)
        status, said = self.status(script, place)
        return [] if status == 0 else [f"ends with {status}: {said}"]

    def unknown(self, calls: list) -> list:
        wrong = []
        for call in calls:
            for words in simple_commands(call):
                while len(words) > 1 and words[0] in ("mpirun", "srun", "env", "time"):
                    start = next((i for i, word in enumerate(words) if word in self.programs), None)
                    words = words[start:] if start else words[:1]
                if program := self.programs.get(pathlib.Path(words[0]).name):
                    wrong += program.faults(words)
                elif words[0] == "make":
                    wrong += [f"make {word}: no such target" for word in words[1:]
                              if re.match(r"^[a-z-]+$", word) and not word.startswith("-")
                              and word not in self.targets]
        return wrong

    def status(self, script: str, place: pathlib.Path) -> tuple:
        began = time.monotonic()
        try:
            done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=place,
                                  env=self.environment, stdin=subprocess.DEVNULL, timeout=SECONDS,
                                  capture_output=True, text=True, errors="replace")
        except subprocess.TimeoutExpired:
            return "no end", f"not done after {SECONDS} s"
        self.slowest.append((time.monotonic() - began, place.name, script.splitlines()[0]))
        return done.returncode, (done.stderr.strip() or done.stdout.strip())[-500:]


def documents(root: pathlib.Path) -> list:
    found = sorted(root.glob("*.md"))
    for path in pages.all_pages(root / "docs"):
        if not any(path.is_relative_to(root / folder) for folder in EXEMPT):
            found.append(path)
    return found


def check_commands_page(root: pathlib.Path, program: Program) -> list:
    """docs/commands.md has a section for each command, and no other command."""
    page = pages.read_page(root / "docs" / "commands.md")
    there = {text for level, text in page.headings if level == 2 and text.islower()}
    known = program.names()
    return ([f"docs/commands.md: has no section '{name}'" for name in sorted(known - there)] +
            [f"docs/commands.md: {name} is no command" for name in sorted(there - known)])


def self_test(program: str) -> list:
    cases = {  # the text of a page, and a part of what is said about it; "" is none
        "```sh\nmillrace tokenize --text Once\n```": "",
        "```\n$ millrace tokenize --text 'a\nb'\noutput\n```": "",
        "```\nmillrace is a program\n```": "no such command",
        "```\nsome output\nmillrace: a line\n```": "",
        "```text\nmillrace nonsense\n```": "",
        "```\nmillrace run nosuch.gguf\n```": "ends with 1",
        "<!-- fails -->\n```\n$ millrace run nosuch.gguf\n```": "",
        "<!-- fails -->\n```\n$ millrace tokenize --text x\n```": "should fail",
        "```\nmake test\n```": "make is not run",
        "<!-- not run: builds -->\n```\nmake test\n```": "",
        "<!-- not run: builds -->\n```\nmake nonsense\n```": "no such target",
        "<!-- not run -->\n```\nmake test\n```": "make is not run",
        "<!-- not run: needs a model -->\n\n```\nmake test\n```": "make is not run",
        "<!-- not run: needs a model -->\n```\nmillrace run M --nonsense 3\n```": "no option --nonsense",
        "<!-- not run: needs MPI -->\n```\nmpirun -n 2 millrace trian\n```": "no such command",
        "```\nmillrace tokenize --text x > a.txt && cat a.txt\n```\n```\ncat a.txt | wc\n```": "",
        "```sh\ncat a.txt\n```": "ends with 1",
        "Run `make test`, `make` or `millrace tokenize\n--text X`; `millrace COMMAND --help` helps.": "",
        "Run `make nonsense`.": "make nonsense: no such target",
        "Run `millrace tokenize\n--nonsense`.": "no option --nonsense",
    }
    wrong = []
    for text, fault in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "tree"
            (root / "models").mkdir(parents=True)
            (root / "Makefile").write_text("test: build\nbuild:\n")
            (root / "README.md").write_text(text + "\n")
            checker = Checker(root, program, pathlib.Path(folder) / "scratch")
            checker.check(root / "README.md")
        if bool(fault) != bool(checker.wrong) or (fault and fault not in checker.wrong[0]):
            wrong.append(f"{text!r}: expected '{fault}', found {checker.wrong}")
    return wrong


def main() -> int:
    program = str(pathlib.Path(os.environ["MILLRACE_BIN"]).resolve())
    if sys.argv[1:] == ["--self-test"]:
        wrong = self_test(program)
    else:
        root = pathlib.Path(sys.argv[1]).resolve()
        chosen = [pathlib.Path(name).resolve() for name in sys.argv[2:]] or documents(root)
        with tempfile.TemporaryDirectory() as folder:
            checker = Checker(root, program, pathlib.Path(folder) / "scratch")
            for path in chosen:
                checker.check(path)
        wrong = checker.wrong + check_commands_page(root, checker.program)
        print(f"{checker.run} blocks run, {checker.marked} marked as not run, {checker.named} commands within "
              "sentences; exempt:",
              "; ".join(f"{folder} ({why})" for folder, why in EXEMPT.items()))
        for seconds, place, call in sorted(checker.slowest, reverse=True)[:5]:
            print(f"  {seconds:5.1f} s  {place}: {call[:80]}")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
