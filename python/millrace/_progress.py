"""How far work is, for people."""
from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Callable, Union

from ._core import UsageError

Told = Callable[[str, int, int], object]
#: what is called as (what, done, total); True: a bar, by tqdm where it is installed; None: nothing
Progress = Union[Told, bool, None]


def columns() -> int:
    try:
        told = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # it says it is a terminal, and is none
        told = 0
    return told if told > 1 else 80


class Bar:
    """Bars one after another: a part of the work that has another name begins another one."""

    def __init__(self) -> None:
        self._tqdm: Any = None
        try:
            self._tqdm = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            pass  # prints a line instead
        self._bar: Any = None
        self._what = ""
        self._note = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._tqdm is None:
            if sys.stderr.isatty():
                part = min(1.0, done / total) if total else 0.0
                # A line wider than the terminal would leave a row with every redraw.
                line = f"{what} {100 * part:3.0f}%{self._note}"[:columns() - 1]
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
                self._what = what
            return
        if self._bar is None or self._what != what:
            self.close()
            self._what = what
            # Byte counts are large.
            self._bar = self._tqdm(desc=what, total=total, unit_scale=total >= 100_000)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def note(self, **values: str) -> None:
        """Numbers beside the bar."""
        self._note = "".join(f"  {name} {value}" for name, value in values.items())
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._what:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        self._bar, self._what = None, ""


class Shown:
    """The progress of one call, for a `with`: `told` is what the engine calls."""

    def __init__(self, asked: Progress) -> None:
        self.bar: Bar | None = None
        self.told: Told | None = None
        if asked is True:
            self.bar = Bar()
            self.told = self.bar
        elif callable(asked):
            self.told = asked
        elif asked is not None and asked is not False:
            raise UsageError("progress: is True, or a function that takes what, done and total")

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
