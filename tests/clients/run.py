#!/usr/bin/env python3
"""Runs clients_test.py with common clients, and lm_eval_test.py, in their own virtual environment.

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

# lm-eval needs neither PyTorch for a server nor anything of transformers but its tokenizers.
CLIENTS = ["openai", "anthropic", "langchain-openai", "lm-eval[api]", "transformers"]


def ready(python):
    names = [name.split("[")[0].replace("-", "_") for name in CLIENTS]
    imports = f"from importlib.util import find_spec as f; assert all(map(f, {names}))"
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
    code = 0
    for tests in ("clients_test.py", "lm_eval_test.py"):
        begin = used()
        done = subprocess.run(
            [python, "-B", str(SOURCE / "tests" / "clients" / tests)],
            env={**os.environ, "MILLRACE_BIN": str(build / "millrace"),
                 "MILLRACE_SOURCE": str(SOURCE), "MILLRACE_DEVICE": "cpu",
                 "LANGSMITH_TRACING": "false", "PYTHONPYCACHEPREFIX": str(work / "pycache")})
        say(tests, begin)
        code = code or done.returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
