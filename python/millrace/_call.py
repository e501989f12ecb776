"""Commands of `millrace` that run in this process, by keywords instead of words."""
from __future__ import annotations

import json
import operator
import os
from typing import Any, Callable, Mapping, Sequence

from . import _core
from ._paths import text_of
from ._progress import Shown



def _word(name: str, value: Any, kind: str) -> str:
    """A value as the command line has it. `kind`: what the help calls it."""
    try:
        if kind == "yes|no" and isinstance(value, bool):
            return "yes" if value else "no"
        if kind == "N":
            return str(operator.index(value))
        if kind == "X":
            return repr(float("" if isinstance(value, str) else value))
        return text_of(value, name)
    except (TypeError, ValueError):
        wanted = {"N": "a whole number", "X": "a number"}.get(kind, "a str or a path")
        raise TypeError(f"{name} = {value!r}: is not {wanted}") from None


def words_of(command: Sequence[str], given: Mapping[str, Any]) -> list[str]:
    """The words of a command with these options; None stands for one that is left out."""
    kinds = {name[2:].replace("-", "_"): (name, kind)
             for name, kind, _ in _core.command_options(list(command))}
    out = list(command)
    for name, value in given.items():
        if name not in kinds or name in ("json", "help", "help_all", "comm_timeout"):
            raise TypeError(f"{name!r} is not an option of {' '.join(command)}")
        option, kind = kinds[name]
        if value is None:
            continue
        if not kind:
            if not isinstance(value, bool):
                raise TypeError(f"{name} = {value!r}: is True or False")
            out += [option] if value else []
        else:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                word = _word(name, one, kind)
                # A separate word might look like an option; an empty value after "=" would not
                # work.
                out += [f"{option}={word}"] if word else [option, ""]
    return out


def _repr(value: Any) -> str:
    return repr(os.fspath(value)) if isinstance(value, os.PathLike) else repr(value)


def call(function: str, command: Sequence[str], given: Mapping[str, Any], shown: Shown,
         tell: Callable[[str, int, bytes], None] = lambda kind, number, text: None
         ) -> dict[str, Any]:
    """Runs the command and gives the object that its --json prints. `function`: its name."""
    words = words_of(command, given)
    asked = ", ".join(f"{name}={_repr(value)}" for name, value in given.items()
                      if value is not None)
    with shown:
        made = _core.call(words, f"millrace.{function}({asked})", shown.told, tell)
    out: dict[str, Any] = json.loads(made)
    return out
