#!/usr/bin/env python3
"""Builds the wheel from the objects of a build, installs it in a fresh virtual environment and runs
the tests there.

usage: run.py BUILD [PYTEST ARGUMENT...]     BUILD: the build folder, with the program in it

Exits with 77, and says why, if something is missing that this script cannot install."""
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILDS = ["scikit-build-core>=0.10", "nanobind>=2.2"]
TESTS = ["numpy", "pytest", "pandas", "mypy", "tqdm"]
SKIPPED = 77


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def used():
    """Seconds since the start, and CPU seconds of ended child processes."""
    times = os.times()
    return time.monotonic(), times.children_user + times.children_system


def say(name, begin):
    seconds, cpu = (now - then for now, then in zip(used(), begin))
    print(f"{name}: {seconds:.1f} s, {cpu:.1f} s of CPU", flush=True)


def step(name, command, **given):
    begin = used()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **given)
    say(name, begin)
    return done


def environment(folder, packages, pip=None):
    """A fresh environment with these packages, installed by another one's pip; returns its
    interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    without = ["--without-pip"] if pip else []
    made = step(f"{folder.name}, made", [sys.executable, "-m", "venv", *without, folder])
    if made.returncode != 0:
        skip(f"no virtual environment can be made (Debian: python3-venv):\n{made.stdout}")
    python = folder / "bin" / "python"
    install(python, pip or python, packages,
            lambda said: skip(f"PyPI does not give {', '.join(packages)}:\n{said[-2000:]}"))
    return python


def install(python, pip, packages, failed):
    # Modules are compiled when they are imported: most never are.
    got = step(f"pip install {' '.join(map(str, packages))}",
               [pip, "-m", "pip", "--python", python, "install", "-q", "--no-compile",
                "--disable-pip-version-check", *packages])
    if got.returncode != 0:
        failed(got.stdout)


def stop(said):
    print(said[-8000:])
    sys.exit(1)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    work = build / "python"
    work.mkdir(exist_ok=True)
    if not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists():
        skip("Python.h is missing (Debian: python3-dev)")
    if not shutil.which("ninja"):
        skip("ninja is missing")
    # The build tools stay: their paths are part of the compiler cache's keys.
    tools = work / "tools"
    python = tools / "bin" / "python"
    ready = python.exists() and subprocess.run(
        [python, "-c", "import nanobind, scikit_build_core"], stderr=subprocess.DEVNULL)
    if not ready or ready.returncode != 0:
        python = environment(tools, BUILDS)
    wheels = work / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    made = step("wheel", [python, "-m", "pip", "wheel", str(SOURCE), "--no-build-isolation",
                          "--no-deps", "-w", wheels, "-v",
                          "--config-settings", f"build-dir={work / 'objects'}",
                          "--config-settings", f"cmake.define.MILLRACE_BUILD_DIR={build}"])
    if made.returncode != 0:
        stop(made.stdout)
    [wheel] = wheels.glob("*.whl")
    pip = python
    python = environment(work / "fresh", TESTS, pip)
    install(python, pip, [wheel], stop)
    begin = used()
    tests = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=8",
         "--doctest-modules", "--doctest-ignore-import-errors", "--pyargs", "millrace",
         str(SOURCE / "python" / "tests"), *sys.argv[2:]],
        cwd=work, env={**os.environ, "MILLRACE_BIN": str(build / "millrace"),
             "MILLRACE_LAB": str(build / "millrace-lab"),
                       "MILLRACE_SOURCE": str(SOURCE),
                       "MILLRACE_DEVICE": os.environ.get("MILLRACE_DEVICE") or "cpu",
                       "PYTHONPYCACHEPREFIX": str(work / "pycache")})
    say("pytest", begin)
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
