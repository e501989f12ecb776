#!/usr/bin/env python3
"""Checks that the names of ctest's tests can be typed, differ, and are the same in every build: no
bytes and no addresses of what a parameterised test is given (cmake/tests.cmake: millrace_discover)."""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile


def main():
    build, ctest = sys.argv[1:]
    # --show-only, too, begins a new log: its own folder, or that of the running tests would be lost.
    with tempfile.TemporaryDirectory() as folder:
        tests = pathlib.Path(build).resolve() / "CTestTestfile.cmake"
        (pathlib.Path(folder) / "CTestTestfile.cmake").write_text(f'include("{tests}")\n')
        listed = subprocess.run([ctest, "--show-only"], cwd=folder, check=True,
                                stdout=subprocess.PIPE, text=True).stdout
    names = collections.Counter(re.findall(r"^ +Test +#\d+: (.*)$", listed, re.MULTILINE))
    wrong = [f"{name}: {count} tests have this name" for name, count in names.items() if count > 1]
    wrong += [f"{name}: only letters, digits and ._/:- can be typed" for name in names
              if not re.fullmatch(r"[\w./:-]+", name)]
    print("\n".join(wrong) or f"{len(names)} tests have names")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
