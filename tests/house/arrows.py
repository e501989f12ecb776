#!/usr/bin/env python3
"""Checks that includes only point down the list of rooms (docs/architecture.md)."""
import pathlib
import re
import sys

HOUSE = ["core", "observe", "ops", "formats", "text", "model", "decode", "story", "train", "serve",
         "bench", "cli"]
LEVEL = {room: level for level, room in enumerate(HOUSE)}

# Inside model: the folders that each folder may not include; "" is the top, for its headers.
MODEL_SHUT = {
    "": {"io", "cpu", "cuda", "train"},
    "io": {"cpu", "cuda", "train"},
    "cpu": {"train"},
    "cuda": {"train"},
    "train": set(),
}


def model_folder(path: str) -> str:
    """For a path that begins with model/."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


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
        shut = set()
        if room == "model":
            folder = model_folder("/".join(parts[1:]))
            if folder not in MODEL_SHUT:
                wrong.append(f"{path}: 'model/{folder}' is not a part of model")
                continue
            if folder or path.suffix == ".h":
                shut = MODEL_SHUT[folder]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"(([^"/]+)/[^"]*)', line)
            if not match or match[2] == "millrace":
                continue
            seen += 1
            if match[2] not in LEVEL:
                wrong.append(f"{path}:{number}: includes unknown room '{match[2]}'")
            elif LEVEL[match[2]] > LEVEL[room]:
                wrong.append(f"{path}:{number}: '{room}' points up to '{match[2]}'")
            elif match[2] == "model" and model_folder(match[1]) in shut:
                wrong.append(f"{path}:{number}: 'model/{folder}' includes '{match[1]}'")
    print("\n".join(wrong) or f"{seen} includes between rooms, all of them downward")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
