#!/usr/bin/env python3
"""Writes docs/python-reference.md from the docstrings of the package.

usage: make_reference.py [FILE]      with a Python that has millrace installed"""
import dataclasses
import importlib.util
import inspect
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
# The sources beside this file have no compiled module: do not import from there.
sys.path[:] = [folder for folder in sys.path if pathlib.Path(folder).resolve() != HERE]
PAGE = HERE.parent / "docs" / "python-reference.md"
MODULES = ["millrace", "millrace.data", "millrace.ops"]
HEAD = """# The Python package: reference

Made from the docstrings by `python/make_reference.py`; [python.md](python.md) is the way in. The
examples are run by the tests.
"""


# A docstring of a class lists its fields as "- name: what it is", which `help()` shows.
FIELD = re.compile(r"^- (\w+): (.+(?:\n  .+)*)\n?", re.MULTILINE)


def paragraphs(thing):
    """The docstring, with examples as code blocks, without the list of fields."""
    out, example = [], False
    for line in FIELD.sub("", inspect.getdoc(thing) or "").splitlines():
        begins = line.lstrip().startswith(">>>")
        if begins and not example:
            out += ["```python"]
        elif example and not line.strip():
            out += ["```"]
        example = begins or (example and bool(line.strip()))
        # The page joins the lines of a paragraph itself.
        out.append(line.strip() if example else line)
    return "\n".join(out + ["```"] * example).strip()


def signature(name, function):
    """The signature as in the source, without `self`, in lines of 100 characters."""
    given = inspect.signature(function)
    words, keywords_alone = [], False
    for parameter in given.parameters.values():
        kind = parameter.kind
        if parameter.name == "self":
            continue
        if kind is parameter.KEYWORD_ONLY and not keywords_alone:
            words.append("*")
            keywords_alone = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        word = stars + parameter.name
        if parameter.annotation is not parameter.empty:
            # A TypedDict stands for the keywords that it lists.
            word += ": " + re.sub(r"^Unpack\[(.*)\]$", r"\1", annotation(parameter.annotation))
        if parameter.default is not parameter.empty:
            word += f" = {parameter.default!r}"
        words.append(word)
    end = "" if given.return_annotation in (given.empty, None, "None") else (
        f" -> {annotation(given.return_annotation)}")
    lines, indent = [f"{name}("], " " * (len(name) + 1)
    for i, word in enumerate(words):
        word += ", " if i + 1 < len(words) else ""
        if len(lines[-1]) + len(word) > 100:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += word
    return "\n".join(lines) + ")" + end


def annotation(given):
    return given if isinstance(given, str) else inspect.formatannotation(given)


def fields(thing):
    """(name, type, what the docstring says) of annotated members."""
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return []
    found = re.findall(r"^    (\w+): ([^#=\n]+?)(?: = [^#\n]+?)?$", source, re.MULTILINE)
    about = {name: re.sub(r"\s+", " ", text) for name, text in
             FIELD.findall(inspect.getdoc(thing) or "")}
    known = getattr(thing, "__annotations__", {})
    assert set(about) <= set(known), f"{thing}: describes {set(about) - set(known)}, not a field"
    return [(name, kind, about.get(name, "")) for name, kind in found
            if name in known and not name.startswith("_")]


def members(thing):
    """Methods and properties of the class itself."""
    for name, member in vars(thing).items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, (property, classmethod, staticmethod)) or inspect.isfunction(member):
            yield name, member


def can_be_made(thing):
    """Whether users call it: results of calls are made from the compiled module's objects."""
    if issubclass(thing, (BaseException, dict, tuple)) or dataclasses.is_dataclass(thing):
        return False
    return "__init__" in vars(thing) and "_core." not in str(inspect.signature(thing))


def describe_class(name, thing):
    out = [f"### {name}", ""]
    if can_be_made(thing):
        out += ["```python", signature(name, thing), "```", ""]
    base = thing.__bases__[0]
    if issubclass(thing, BaseException) and base is not Exception:
        out += [f"An `{base.__name__}`.", ""]
    out += [paragraphs(thing), ""]
    rows = fields(thing)
    if rows:
        out += ["| name | type | |", "|---|---|---|"]
        out += [f"| `{field}` | `{kind.replace('|', chr(92) + '|')}` | {about} |"
                for field, kind, about in rows]
        out.append("")
    for member_name, member in members(thing):
        if isinstance(member, property):
            out += [f"#### {name}.{member_name}", "", paragraphs(member), ""]
        else:
            function = getattr(thing, member_name)
            out += [f"#### {name}.{member_name}", "", "```python",
                    signature(member_name, function), "```", "", paragraphs(function), ""]
    return out


def describe(module_name):
    """The section of a module; None if the package has none of that name."""
    if importlib.util.find_spec(module_name) is None:
        return None
    module = importlib.import_module(module_name)
    out = [f"## {module_name}", "", paragraphs(module), ""]
    for name in sorted(module.__all__, key=lambda name: (not name[0].islower(), name)):
        thing = getattr(module, name)
        if inspect.ismodule(thing) or not (inspect.isclass(thing) or callable(thing)):
            continue
        if inspect.isclass(thing):
            out += describe_class(name, thing)
        else:
            out += [f"### {name}", "", "```python", signature(name, thing), "```", "",
                    paragraphs(thing), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip() + "\n"


def page():
    sections = [describe(name) for name in MODULES]
    return "\n".join([HEAD, *(section for section in sections if section)])


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    path.write_text(page())


if __name__ == "__main__":
    main()
