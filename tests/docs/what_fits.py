#!/usr/bin/env python3
"""Compares the table of docs/what-fits.md with what `millrace info --memory` computes. --write replaces it."""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "what-fits.md"
MARK = "<!-- table: tests/docs/what_fits.py -->\n"
MEMORIES = (8, 16, 24, 32, 64, 80, 141)  # GB
SHARE = 0.9
SHAPES = {"qwen2.5-1.5b": "1.5 billion parameters: Qwen2.5 1.5B", "qwen3-4b": "4 billion: Qwen3 4B",
          "llama-2-7b": "7 billion: Llama 2 7B", "llama-3-8b": "8 billion: Llama 3 8B",
          "llama-2-13b": "13 billion: Llama 2 13B", "qwen3-14b": "15 billion: Qwen3 14B",
          "qwen3-32b": "33 billion: Qwen3 32B", "llama-3-70b": "71 billion: Llama 3 70B"}
TYPES = ("bf16", "q8_0", "q4_0")


def info(shape, memory):
    command = [os.environ.get("MILLRACE_BIN", str(ROOT / "build/release/millrace")), "info", f"random:{shape}",
               "--memory", f"{memory * SHARE:g}GB", "--device", "cpu", "--threads", "8", "--json"]
    environment = {**os.environ, "MILLRACE_READ_RATE": "20GB/s"}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    return json.loads(done.stdout)


def cell(context, own):
    if context == 0:
        return "-"
    return "all" if context >= own else f"{context:,}"


def table():
    lines = ["| model | context | type | weights | " + " | ".join(f"{memory} GB" for memory in MEMORIES) + " |",
             "|---|---|---|---|" + "---|" * len(MEMORIES)]
    for shape, name in SHAPES.items():
        said = [info(shape, memory) for memory in MEMORIES]
        own = said[0]["model"]["context"]
        for kind in TYPES:
            rows = [next(row for row in one["what_fits"]["rows"] if row["weights"] == kind and row["kv"] == "f16")
                    for one in said]
            first = kind == TYPES[0]
            cells = [f"{name} (`{shape}`)" if first else "", f"{own:,}" if first else "", kind,
                     f"{rows[0]['weight_bytes'] / 1e9:.1f} GB", *(cell(row["ctx"], own) for row in rows)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    before, after = PAGE.read_text().split(MARK)
    old, rest = "", after
    while rest.startswith("|"):
        line, rest = rest.split("\n", 1)
        old += line + "\n"
    new = table()
    if "--write" in sys.argv:
        PAGE.write_text(before + MARK + new + rest)
        return 0
    wrong = [f"is:        {a}\nshould be: {b}" for a, b in zip(old.splitlines(), new.splitlines()) if a != b]
    if old.count("\n") != new.count("\n"):
        wrong.append(f"{old.count(chr(10))} lines instead of {new.count(chr(10))}")
    print("\n".join(wrong) + "\npython3 tests/docs/what_fits.py --write" if wrong else "the table is what info says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
