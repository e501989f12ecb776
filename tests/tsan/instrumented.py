#!/usr/bin/env python3
"""Checks that the tests under ThreadSanitizer run instrumented code: every source of the library is part of
mr_tsan (cmake/tsan.cmake), or is left out there by name. The linker takes a missing one from the library,
uninstrumented, and no race in it is found.

    instrumented.py BUILD LEFT_OUT...    BUILD: has compile_commands.json and the objects of mr_tsan
                                         LEFT_OUT: sources below src/ without .cpp, as `train/plan/*`
"""
import fnmatch
import json
import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parents[2] / "src"
CALL = b"__tsan_func_entry"  # which instrumented functions call


def sources_of(entry):
    """What a command compiles: one file, or those that a unity file includes."""
    file = pathlib.Path(entry["directory"], entry["file"])
    if "/Unity/" not in entry["file"]:
        return [file]
    return map(pathlib.Path, re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE))


def compiled(commands, *targets):
    """C++ sources below src/ that the targets compile, and the object of each."""
    found = {}
    for entry in commands:
        made = re.search(r" -o (\S+)", entry["command"])[1]
        if any(made.startswith(f"CMakeFiles/{target}.dir/") for target in targets):
            for source in sources_of(entry):
                if source.is_relative_to(SRC) and source.suffix == ".cpp":
                    name = source.relative_to(SRC).with_suffix("").as_posix()
                    found[name] = pathlib.Path(entry["directory"], made)
    return found


def main():
    build, left_out = pathlib.Path(sys.argv[1]), sys.argv[2:]
    commands = json.loads((build / "compile_commands.json").read_text())
    library, checked = compiled(commands, "millrace", "mr_isa_portable"), compiled(commands, "mr_tsan")
    wrong = []
    for name in sorted(set(library) - set(checked)):
        # Calls of a GPU and of MPI, which these tests have none of.
        if not name.endswith(("_cuda", "_mpi")) and not any(fnmatch.fnmatch(name, one) for one in left_out):
            wrong.append(f"src/{name}.cpp: is not in mr_tsan, and not left out by name (cmake/tsan.cmake)")
    for one in left_out:
        if not fnmatch.filter(library, one):
            wrong.append(f"{one}: is left out by name (cmake/tsan.cmake), and is no source of the library")
    for path in sorted(set(checked.values())):
        if not path.exists():
            wrong.append(f"{path}: is not built")
        elif CALL not in path.read_bytes():
            wrong.append(f"{path}: is not instrumented")
    print("\n".join(wrong) or f"{len(checked)} of {len(library)} sources of the library are instrumented")
    return 1 if wrong or not checked or not library else 0


if __name__ == "__main__":
    sys.exit(main())
