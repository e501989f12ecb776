#!/usr/bin/env python3
"""Checks that an include only ever points down the house (docs/architecture.md)."""
import pathlib
import re
import sys

HOUSE = ["core", "observe", "ops", "formats", "text", "model", "decode", "train", "serve", "bench", "cli"]
LEVEL = {room: level for level, room in enumerate(HOUSE)}


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    wrong, seen = [], 0
    for path in sorted([*(root / "src").rglob("*"), *(root / "bench").rglob("*")]):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".inl"}:
            continue
        parts = path.relative_to(root).parts
        room = parts[1] if parts[0] == "src" else parts[0]
        if room not in LEVEL:
            wrong.append(f"{path}: '{room}' is not a room of the house")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"/]+)/', line)
            if not match or match[1] == "millrace":
                continue
            seen += 1
            if match[1] not in LEVEL:
                wrong.append(f"{path}:{number}: includes unknown room '{match[1]}'")
            elif LEVEL[match[1]] > LEVEL[room]:
                wrong.append(f"{path}:{number}: '{room}' points up to '{match[1]}'")
    print("\n".join(wrong) or f"{seen} includes between rooms, all of them downward")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
