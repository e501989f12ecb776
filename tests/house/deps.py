#!/usr/bin/env python3
"""Checks which packages scripts/deps.sh asks apt-get for, on a machine without any command of theirs:
with --program, which the Dockerfile uses, none that only tests and MPI need."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ONLY_TESTS = {"python3", "libopenmpi-dev", "openmpi-bin"}  # and libgtest-dev, if its header is missing


def main():
    script = pathlib.Path(sys.argv[1]) / "scripts/deps.sh"
    wrong = []
    with tempfile.TemporaryDirectory(prefix="millrace-deps-") as name:
        folder = pathlib.Path(name)
        for tool in ("sh", "env", "grep", "head", "sort", "mktemp", "rm", "tail"):
            (folder / tool).symlink_to(shutil.which(tool))
        for tool, text in (("id", "echo 0"), ("apt-get", f'echo "$@" >>{folder}/asked')):
            (folder / tool).write_text(f"#!/bin/sh\n{text}\n")
            (folder / tool).chmod(0o755)
        env = {key: value for key, value in os.environ.items() if key != "CXX"}
        for options, expected in ((["--program"], set()), ([], ONLY_TESTS)):
            (folder / "asked").write_text("")
            done = subprocess.run(["/bin/sh", script, *options], env={**env, "PATH": name},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            asked = set((folder / "asked").read_text().split())
            if done.returncode != 0 or not {"g++", "cmake", "ninja-build"} <= asked:
                wrong.append(f"deps.sh {options}: {sorted(asked)}\n{done.stdout}")
            if asked & ONLY_TESTS != expected or (options and "libgtest-dev" in asked):
                wrong.append(f"deps.sh {options} asks for {sorted(asked)}")
        if subprocess.run(["/bin/sh", script, "--programm"], stderr=subprocess.DEVNULL).returncode != 2:
            wrong.append("an option that is not known is refused")
    print("\n".join(wrong) or "deps.sh asks for what is needed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
