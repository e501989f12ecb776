#!/usr/bin/env python3
"""Checks that no code reads numbers by the process's locale, in which 0.6 may be 0,6:
core/read_double.h and std::from_chars do not depend on it."""
import pathlib
import re
import sys

READS = re.compile(r"\b(stod|stof|stold|strtod|strtof|strtold|atof)\s*\(")
SEEN = ["std::stod(text)", "x = strtof (p, nullptr);", "::atof(argv[1])", "std::strtold(a, &b)"]
NOT_SEEN = ["read_double(text)", "std::stoi(text)", "best_of(x)", "std::strtoll(a, &b, 10)",
            "restof(x)"]


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    wrong = [f"the pattern does not see: {line}" for line in SEEN if not READS.search(line)]
    wrong += [f"the pattern sees: {line}" for line in NOT_SEEN if READS.search(line)]
    files = 0
    for folder in ("src", "include", "bench", "examples", "python/src"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".inl"}:
                continue
            files += 1
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if READS.search(line.split("//")[0]):
                    name = path.relative_to(root).as_posix()
                    wrong.append(f"{name}:{number}: depends on the locale; use core/read_double.h "
                                 f"or std::from_chars: {line.strip()}")
    if not files:
        wrong.append(f"{root} has no sources")
    print("\n".join(wrong) or f"no number is read by the locale in {files} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
