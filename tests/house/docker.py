#!/usr/bin/env python3
"""Checks the Dockerfile without Docker: what it copies is there and not ignored, what it calls is
among it, CMake configures with nothing else, and the image runs the program without root. hadolint
reads it, too, where it is installed."""
import fnmatch
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

WORDS = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "EXPOSE", "ENTRYPOINT",
         "CMD"}


def instructions(text):
    """(word, rest) of each, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def ignored(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def check(root, cmake):
    found = instructions((root / "Dockerfile").read_text())
    patterns = [line for line in (root / ".dockerignore").read_text().splitlines()
                if line and not line.startswith("#")]
    wrong = [f"unknown instruction {word}" for word, _ in found if word not in WORDS]
    copied = []
    for rest in (rest for word, rest in found if word == "COPY" and "--from" not in rest):
        copied += shlex.split(rest)[:-1]
    wrong += [f"COPY {path}: not there" for path in copied if not (root / path).exists()]
    wrong += [f"COPY {path}: in .dockerignore" for path in copied if ignored(path, patterns)]
    run = " ".join(rest for word, rest in found if word == "RUN")
    for script in re.findall(r"\bscripts/\S+?\.sh", run):
        if not (root / script).exists() or "scripts" not in copied:
            wrong.append(f"no {script}")
    if "deps.sh --program" not in run:
        wrong.append("the build stage installs what only tests and MPI need")
    last = dict(found[max(i for i, (word, _) in enumerate(found) if word == "FROM"):])
    if last.get("ENTRYPOINT") != '["millrace"]' or last.get("USER", "0") in ("0", "root"):
        wrong.append("the image has to run millrace, and not as root")
    if wrong:
        return wrong
    with tempfile.TemporaryDirectory(prefix="millrace-docker-") as folder:
        tree = pathlib.Path(folder) / "tree"
        tree.mkdir()
        for path in copied:
            (shutil.copytree if (root / path).is_dir() else shutil.copy)(root / path, tree / path)
        [preset] = re.findall(r"--preset (\S+)", run)
        # The build stage has only what deps.sh --program installs.
        absent = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("GTest", "MPI", "Python3")]
        for command in ([cmake, "--preset", preset, "-DMILLRACE_CUDA=OFF", *absent],
                        [cmake, "--build", tree / "build" / preset, "--target", "help"]):
            done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                return [f"without the files that are not copied:\n{done.stdout}"]
        for target in re.findall(r"--target (\S+)", run):
            if not re.search(rf"^{target}: ", done.stdout, re.MULTILINE):
                wrong.append(f"no target {target}")
    if lint := shutil.which("hadolint"):
        done = subprocess.run([lint, root / "Dockerfile"], stdout=subprocess.PIPE, text=True)
        wrong += done.stdout.splitlines()
    return wrong


def main():
    wrong = check(pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cmake")
    print("\n".join(wrong) or "the Dockerfile copies what it needs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
