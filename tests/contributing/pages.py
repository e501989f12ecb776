"""Reads the worked examples of docs/contributing/ and applies them to a copy of the tree.

A page tells a person what to write, in lines of these forms, each followed by a fenced block:

    New file `PATH`:
    In `PATH`, after `LINE`:
    In `PATH`, before `LINE`:
    In `PATH`, instead of `LINE`:

LINE is a whole line of the file, without its indentation, and occurs once in it. Commands stand in
fenced blocks of the language `sh`. A page in any other form is an error, so that no step is passed over.
"""
import pathlib
import re
import subprocess

NEW = re.compile(r"^New file `([^`]+)`:$")
EDIT = re.compile(r"^In `([^`]+)`, (after|before|instead of) `([^`]+)`:$")


class Outdated(Exception):
    """The page does not fit the tree."""


class Step:
    def __init__(self, kind, path, line, text, at):
        self.kind, self.path, self.line, self.text, self.at = kind, path, line, text, at


class Page:
    """Steps (what to write) and commands (what to run), in the order of the text."""

    def __init__(self, text, name="page"):
        self.name, self.steps, self.commands = name, [], []
        lines = text.splitlines()
        at = 0
        said = None  # the line that announces a block, and its number
        while at < len(lines):
            line = lines[at]
            if line.startswith("```"):
                end = next((i for i in range(at + 1, len(lines)) if lines[i] == "```"), None)
                if end is None:
                    raise Outdated(f"{name}:{at + 1}: a block without an end")
                self.add_block(said, line[3:], lines[at + 1:end], at + 1)
                said, at = None, end
            elif line.strip():
                announces = NEW.match(line) or EDIT.match(line)
                if said is not None:
                    raise Outdated(f"{name}:{at + 1}: a block was announced, and there is none")
                if not announces and re.match(r"^(New file|In `[^`]+`, (after|before|instead))", line):
                    raise Outdated(f"{name}:{at + 1}: not a form that is known: {line}")
                said = announces
            at += 1
        if said is not None:
            raise Outdated(f"{name}: ends where a block was announced")

    def add_block(self, said, language, lines, number):
        if language == "sh":
            self.commands += [line for line in lines if line and not line.startswith("#")]
        elif said is None and language not in ("text", "mermaid"):
            raise Outdated(f"{self.name}:{number}: code, and no line before it says where it goes")
        elif said is not None:
            text = "".join(line + "\n" for line in lines)
            if said.re is NEW:
                self.steps.append(Step("new", said[1], None, text, number))
            else:
                self.steps.append(Step(said[2], said[1], said[3], text, number))


def tree_files(source):
    """What a clone has: tracked files, and new ones that git does not ignore. Without git: all but build."""
    done = subprocess.run(["git", "-C", str(source), "ls-files", "-zco", "--exclude-standard"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode == 0:
        names = [name for name in done.stdout.decode().split("\0") if name]
    else:
        names = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
        names = [name for name in names if not name.startswith(("build/", ".git/"))]
    return [name for name in names if (source / name).is_file()]


def edited(text, step, where):
    """`text` after one edit. Raises Outdated where its line is missing or not alone."""
    lines = text.splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if line.strip() == step.line.strip()]
    if len(found) != 1:
        raise Outdated(f"{where}: {step.path} has {len(found)} lines `{step.line}`, not one")
    at = found[0]
    if step.kind == "after":
        lines[at] += step.text
    elif step.kind == "before":
        lines[at] = step.text + lines[at]
    else:
        lines[at] = step.text
    return "".join(lines)


def apply_steps(page, tree):
    """Writes what the page says into `tree`, whose files may be links. Returns the paths: new and changed."""
    new, changed = [], []
    for step in page.steps:
        where = f"{page.name}:{step.at}"
        path = pathlib.Path(tree) / step.path
        if step.kind == "new":
            if path.exists():
                raise Outdated(f"{where}: {step.path} is there already")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
            new.append(step.path)
            continue
        if not path.is_file():
            raise Outdated(f"{where}: there is no {step.path}")
        text = edited(path.read_text(), step, where)
        path.unlink()  # it may be a link into the real tree
        path.write_text(text)
        if step.path not in new + changed:
            changed.append(step.path)
    return new, changed
