#!/usr/bin/env python3
"""Checks that `make docs` and `make test-compat` go on after python3-venv was missing: then
`python3 -m venv` fails and leaves bin/python without pip. Exits with 77 where make is missing."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# What `python3 -m venv FOLDER` does: without ensurepip, and with. Anything else succeeds.
BROKEN = """#!/bin/sh
[ "$1" = -m ] || exit 0
mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
echo "The virtual environment was not created successfully because ensurepip is not available"
exit 1
"""
WHOLE = """#!/bin/sh
[ "$1" = -m ] || exit 0
mkdir -p "$3/bin" && for name in python pip mkdocs; do cp "$0" "$3/bin/$name" || exit 1; done
"""


def main():
    if not shutil.which("make"):
        return 77
    wrong = []
    with tempfile.TemporaryDirectory(prefix="millrace-makefile-") as name:
        folder = pathlib.Path(name)
        shutil.copy(pathlib.Path(sys.argv[1]) / "Makefile", folder)
        python = folder / "bin/python3"
        python.parent.mkdir()
        env = {key: value for key, value in os.environ.items()
               if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        env["PATH"] = f"{python.parent}:{env['PATH']}"
        for target in ("docs", "test-compat"):
            for script, fails in ((BROKEN, True), (WHOLE, False), (WHOLE, False)):
                python.write_text(script)
                python.chmod(0o755)
                # -o: without the build that test-compat needs.
                done = subprocess.run(["make", "JOBS=1", "-o", "program", target], cwd=folder,
                                      env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True)
                if (done.returncode != 0) != fails or fails != ("python3-venv" in done.stdout):
                    wrong.append(f"make {target}: status {done.returncode}\n{done.stdout}")
    print("\n".join(wrong) or "a virtual environment that failed is made again")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
