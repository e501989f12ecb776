"""Texts to train on: `millrace data` from Python.

    >>> import millrace as mr, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(f"{folder}/texts.txt", "w") as file:
    ...     _ = file.write("A cat sat by the mill.<|endoftext|>The wheel turned.<|endoftext|>" * 50)
    >>> packed = mr.data.pack(data=f"{folder}/texts.txt", tokenizer="storyteller", out=f"{folder}/data")
    >>> packed.train_tokens > 500
    True
"""
from __future__ import annotations

import contextlib
import dataclasses
import glob
import importlib
import json
import os
import pathlib
import tempfile
from typing import Any, Sequence

from ._call import call
from ._core import InputError, UsageError
from ._paths import Path, text_of
from ._progress import Progress, Shown

__all__ = ["Packed", "pack"]


@dataclasses.dataclass(frozen=True)
class Packed:
    """A folder of token shards.

    - files: of text
    """

    path: pathlib.Path
    vocab: int
    files: int
    train_documents: int
    train_tokens: int
    val_documents: int
    val_tokens: int


def pack(*, data: Path | Sequence[Path], tokenizer: Path, out: Path, force: bool = False,
         split: str | None = None, val: float | None = None, val_docs: int | None = None,
         val_data: Path | Sequence[Path] | None = None, seed: int = 0,
         shard_tokens: int | None = None, end: str | None = None, parse_special: bool = False,
         threads: int = 0, progress: Progress = None) -> Packed:
    """Texts (files, folders or globs) as token shards in the folder `out`, for training.

    A file is text, has a JSON object per line ("text", "messages", or "prompt" and "completion"), either of
    them packed by gzip or zstd, or is Parquet with columns of these names, which needs `pyarrow`.
    tokenizer: a tokenizer.json or its folder, a GGUF file, or a bundled model's name. force:
    replace a data folder that is there. split: what stands between documents ("<|endoftext|>"); "": each
    file is one. val: share of the documents held out for validation (0.01), or val_docs: how many,
    or val_data: texts of their own. end: the token after every document (the tokenizer's end of
    text). parse_special: special tokens that the texts spell out become their ids.
    """
    given: dict[str, Any] = {
        "tokenizer": tokenizer, "out": out, "force": force,
        # The command line reads \\n as a line end.
        "split": None if split is None else split.replace("\\", "\\\\"), "val": val,
        "val_docs": val_docs,
        "seed": seed, "shard_tokens": shard_tokens, "end": end, "parse_special": parse_special,
        "threads": threads}
    with contextlib.ExitStack() as stack:
        given["data"] = _readable(data, stack)
        given["val_data"] = None if val_data is None else _readable(val_data, stack)
        made = call("data.pack", ["data", "pack"], given, Shown(progress))
    return Packed(pathlib.Path(made["out"]), made["vocab"], made["files"],
                  made["train"]["documents"], made["train"]["tokens"], made["val"]["documents"],
                  made["val"]["tokens"])


def _list(paths: Path | Sequence[Path]) -> list[Path]:
    return list(paths) if isinstance(paths, (list, tuple)) else [paths]  # type: ignore[list-item]


def _readable(paths: Path | Sequence[Path], stack: contextlib.ExitStack) -> list[Path]:
    """The paths with every Parquet file as JSON lines, in a folder that lasts as long as `stack`."""
    out: list[Path] = []
    seen: set[str] = set()  # the program takes each file once, and would not know these again
    for given in _list(paths):
        name = text_of(given, "data")
        named = [name] if os.path.exists(name) else sorted(glob.glob(name))
        for at in named:
            if os.path.isdir(at):
                files = sorted(str(file) for file in pathlib.Path(at).rglob("*") if file.is_file() and not any(
                    part.startswith(".") for part in file.relative_to(at).parts))
                out += _lines(files, stack, seen) if any(map(_is_parquet, files)) else [at]
            else:
                out += _lines([at], stack, seen)
        if not named:
            out.append(given)
    return out


def _lines(files: list[str], stack: contextlib.ExitStack, seen: set[str]) -> list[Path]:
    out: list[Path] = []
    for file in files:
        if not _is_parquet(file):
            out.append(file)
        elif (name := os.path.normpath(file)) not in seen:
            seen.add(name)
            out.append(_from_parquet(file, stack))
    return out


def _is_parquet(file: str) -> bool:
    if not os.path.isfile(file):  # a pipe is not looked into
        return False
    with open(file, "rb") as opened:
        return opened.read(4) == b"PAR1"


def _from_parquet(file: str, stack: contextlib.ExitStack) -> str:
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(f"{file}: is Parquet, which needs pyarrow: pip install pyarrow") from error
    try:
        table = parquet.ParquetFile(file)
    except arrow.ArrowException as error:
        raise InputError(f"{file}: is damaged Parquet: {error}") from error
    have = set(table.schema_arrow.names)
    for columns in (["text"], ["messages"], ["prompt", "completion"]):
        if have.issuperset(columns):
            break
    else:
        raise UsageError(f"{file}: has no column text, messages, or prompt and completion; its columns: "
                         + ", ".join(sorted(have)))
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-"))
    path = os.path.join(folder, os.path.basename(file) + ".jsonl")
    number = 0
    with open(path, "w", encoding="utf-8") as lines:
        try:
            for batch in table.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    if None in row.values():
                        raise InputError(f"{file}, row {number}: has no {' and '.join(columns)}; leave it out")
                    lines.write(json.dumps(row, default=_text) + "\n")
        except arrow.ArrowException as error:
            raise InputError(f"{file}: is damaged Parquet: {error}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{file}, row {number}: is not UTF-8") from error
    return path


def _text(value: object) -> str:
    """Of a column of bytes, which many data sets have for text."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    raise UsageError(f"a value of type {type(value).__name__} in a row is no text")
