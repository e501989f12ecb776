"""Tests of the installed package. `run.py` builds the wheel and calls pytest in an environment of
its own; MILLRACE_BIN is the program of the same build, MILLRACE_SOURCE the source tree."""
import os
import pathlib
import subprocess
import sys

import pytest

import millrace as mr
from patience import HANG


DEVICE = os.environ.get("MILLRACE_DEVICE", "cpu")
os.environ.setdefault("MILLRACE_READ_RATE", "20GB/s")  # the program then measures no memory


# One thread: on a busy machine, many short calls would wait for a second one.
@pytest.fixture(scope="session")
def model():
    with mr.Model(device=DEVICE, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def diffusion():
    with mr.Model("storyteller-diffusion", device=DEVICE, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def source():
    return pathlib.Path(os.environ["MILLRACE_SOURCE"])


@pytest.fixture(scope="session")
def program():
    """The program of the build, as program(*words) -> standard output."""

    def run(*words):
        return subprocess.run([os.environ["MILLRACE_BIN"], *words, "--device", DEVICE], check=True,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout

    return run


@pytest.fixture
def script(tmp_path):
    """A separate Python process, as script(code) -> CompletedProcess."""

    def run(code, timeout=HANG, **given):
        path = tmp_path / "script.py"
        path.write_text(code)
        return subprocess.run([sys.executable, str(path)], capture_output=True, text=True,
                              timeout=timeout, cwd=tmp_path, **given)

    return run
