"""Paths, as the engine takes them."""
from __future__ import annotations

import os
from typing import Union

from . import _core

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def text_of(path: Path, name: str = "path") -> str:
    """A path as UTF-8. `name`: of the argument, for the error."""
    try:
        return os.fsdecode(path).encode("utf-8").decode()
    except UnicodeEncodeError:
        raise _core.InputError(f"{name} = {path!r}: is not UTF-8; rename it, or open it through a "
                               f"link that is") from None
