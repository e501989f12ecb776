#!/usr/bin/env python3
"""Checks that JSON is parsed in one place, src/formats/json.cpp, whose reader has bounds."""
import pathlib
import re
import sys

READER = "src/formats/json.cpp"
# What parses with nlohmann's library: its functions by name, and >> into one of its values.
PARSES = re.compile(r"\bjson::(parse|sax_parse|accept|from_\w+)\b|\bsax_parse\s*\(|_json\b.*>>|"
                    r">>\s*\w*json\b", re.IGNORECASE)


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    wrong, reader_seen = [], False
    for folder in ("src", "include", "bench", "examples"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".inl"}:
                continue
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if not PARSES.search(line.split("//")[0]):
                    continue
                if name == READER:
                    reader_seen = True
                else:
                    wrong.append(f"{name}:{number}: parses JSON past formats/json.h: {line.strip()}")
    if not reader_seen:
        wrong.append(f"{READER}: nothing in it parses JSON; is this check out of date?")
    print("\n".join(wrong) or f"JSON is parsed in {READER} alone")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
