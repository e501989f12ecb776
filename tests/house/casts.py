#!/usr/bin/env python3
"""Checks that the modules which read untrusted bytes make no pointer to numbers of a pointer to bytes: numbers
are copied. cmake/fuzz.cmake and cmake/serve_asan.cmake compile them without UBSan's check of alignment."""
import pathlib
import re
import sys

MODULES = ["formats", "text", "decode", "serve"]
ALLOWED = re.compile(r"reinterpret_cast<\s*(const )?(char|std::byte)\s*\*>")
# From void*, and as in C.
OTHERS = re.compile(r"(static_cast<|\()\s*(const )?(std::)?(u?int\d+_t|short|int|long|float|double)\s*\*\s*[>)]")


def problems(name: str, code: str) -> list[str]:
    return [f"{name}:{number}: {line.strip()}: copy the bytes (std::memcpy) instead"
            for number, line in enumerate(code.splitlines(), 1)
            if line.count("reinterpret_cast<") != len(ALLOWED.findall(line)) or OTHERS.search(line)]


def main() -> int:
    for cast in ("reinterpret_cast<const float*>(at)", "static_cast<std::uint32_t*>(at)", "(const int*)at"):
        assert problems("x", f"auto* p = {cast};"), cast
    assert not problems("x", "auto* p = reinterpret_cast<const char*>(bytes);")
    root = pathlib.Path(sys.argv[1]) / "src"
    files = [path for module in MODULES for path in sorted((root / module).rglob("*"))
             if path.suffix in {".h", ".cpp"}]
    wrong = [problem for path in files for problem in problems(str(path), path.read_text())]
    print("\n".join(wrong) or f"{len(files)} files cast bytes to bytes and characters only")
    return 1 if wrong or len(files) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
