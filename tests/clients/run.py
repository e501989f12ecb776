#!/usr/bin/env python3
"""Runs clients_test.py with common clients, in its own virtual environment.

usage: run.py BUILD     BUILD: the build folder, with the program in it

Exits with 77, and says why in one line, if PyPI does not provide them. The environment stays in the
build folder, and is recreated if one of them is missing."""
import os
import pathlib
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "python" / "tests"))
from run import install, say, skip, step, used  # noqa: E402

CLIENTS = ["openai", "anthropic", "langchain-openai"]


def ready(python):
    imports = "import " + ", ".join(name.replace("-", "_") for name in CLIENTS)
    return python.exists() and subprocess.run([python, "-c", imports], stdout=subprocess.DEVNULL,
                                              stderr=subprocess.DEVNULL).returncode == 0


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    work = build / "clients"
    python = work / "bin" / "python"
    # Without a network, fail within seconds.
    os.environ.update(PIP_RETRIES="1", PIP_TIMEOUT="10")
    if not ready(python):
        shutil.rmtree(work, ignore_errors=True)
        made = step("environment, made", [sys.executable, "-m", "venv", work])
        if made.returncode != 0:
            skip("no virtual environment can be made (Debian: python3-venv)")
        install(python, python, CLIENTS,
                lambda said: skip(f"PyPI does not give {', '.join(CLIENTS)}: "
                                  f"{said.strip().splitlines()[-1][:200]}"))
    begin = used()
    tests = subprocess.run(
        [python, "-B", str(SOURCE / "tests" / "clients" / "clients_test.py")],
        env={**os.environ, "MILLRACE_BIN": str(build / "millrace"),
             "MILLRACE_SOURCE": str(SOURCE), "MILLRACE_DEVICE": "cpu",
             "LANGSMITH_TRACING": "false", "PYTHONPYCACHEPREFIX": str(work / "pycache")})
    say("clients", begin)
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
