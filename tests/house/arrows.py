#!/usr/bin/env python3
"""Checks the dependencies between modules (the folders of src/, bench/ and lab/): a file may include headers of
its own module and of modules before it in MODULES. docs/architecture.md has the same list, top down."""
import pathlib
import re
import sys

MODULES = ["core", "observe", "ops", "formats", "hub", "text", "model", "decode", "train", "serve",
           "bench", "cli", "lab", "pull"]
LEVEL = {module: level for level, module in enumerate(MODULES)}

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
    for path in sorted(path for top in ("src", "bench", "lab") for path in (root / top).rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".inl"}:
            continue
        parts = path.relative_to(root).parts
        module = parts[1] if parts[0] == "src" else parts[0]
        if module not in LEVEL:
            wrong.append(f"{path}: '{module}' is not a known module")
            continue
        shut = set()
        if module == "model":
            folder = model_folder("/".join(parts[1:]))
            if folder not in MODEL_SHUT:
                wrong.append(f"{path}: 'model/{folder}' is not a part of model")
                continue
            if folder or path.suffix == ".h":
                shut = MODEL_SHUT[folder]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"(([^"/]+)/[^"]*)', line)
            if not match or match[2] == "millrace" or match[2] == "gpu" and path.stem.endswith("_test"):
                continue  # tests/gpu/
            seen += 1
            if match[2] not in LEVEL:
                wrong.append(f"{path}:{number}: includes unknown module '{match[2]}'")
            elif LEVEL[match[2]] > LEVEL[module]:
                wrong.append(f"{path}:{number}: '{module}' may not include '{match[2]}'")
            elif match[2] == "model" and model_folder(match[1]) in shut:
                wrong.append(f"{path}:{number}: 'model/{folder}' includes '{match[1]}'")
    print("\n".join(wrong) or f"{seen} includes, all of them allowed")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
