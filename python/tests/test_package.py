"""The wheel itself: its content, the command line, types, stubs, and the examples of the docs."""
import ast
import functools
import importlib.metadata
import importlib.resources
import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import millrace as mr
from millrace import _core

PACKAGE = pathlib.Path(mr.__file__).parent


def test_it_is_the_installed_package(source):
    assert source not in PACKAGE.parents or "build" in PACKAGE.parts
    files = {file.name for file in importlib.resources.files(mr).iterdir()}
    assert {"py.typed", "_core.pyi", "models"} <= files
    assert {file.name for file in (PACKAGE / "models").iterdir()} == {
        "storyteller.gguf", "storyteller-diffusion.gguf"}
    program = subprocess.run([os.environ["MILLRACE_BIN"], "--version"], capture_output=True, text=True)
    assert mr.__version__ == program.stdout.split()[1].rstrip(",")
    assert importlib.metadata.version("millrace") == mr.__version__


def test_the_bundled_models_are_those_of_the_package():
    with mr.Model(device="cpu") as model:
        assert pathlib.Path(model.info.source) == PACKAGE / "models" / "storyteller.gguf"


def test_it_needs_no_library_that_a_plain_machine_lacks():
    needed = subprocess.run(["ldd", _core.__file__], capture_output=True, text=True).stdout
    libraries = {line.split()[0]: line for line in needed.splitlines() if "=>" in line}
    usual = re.compile(r"lib(stdc\+\+|m|gcc_s|c|dl|rt|pthread)\.so")
    for name, line in libraries.items():
        assert usual.match(name) or str(PACKAGE) in line, line


def test_import_is_quick_and_brings_neither_numpy_nor_torch(script):
    seconds = []
    for _ in range(3):  # CPU time, the best of three: the machine may be busy
        done = script("""
import sys, time
begin = time.process_time()
import millrace
print(time.process_time() - begin)
assert "numpy" not in sys.modules and "torch" not in sys.modules
""")
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
    assert min(seconds) < 1.5  # 0.3 on a slow core, most of it for the standard library


def test_the_command_line():
    def run(*words):
        return subprocess.run([sys.executable, "-m", "millrace", *words], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL)

    words = ["run", "-p", "Once upon a time", "-n", "30", "--seed", "7", "-q", "--device", "cpu"]
    expected = subprocess.run([os.environ["MILLRACE_BIN"], *words], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
    done = run(*words)
    assert (done.returncode, done.stdout) == (0, expected.stdout)
    assert done.stdout.startswith("Once upon a time")
    assert run("--version").stdout.startswith(f"millrace {mr.__version__}")
    assert run("run", "storyteller-diffusion", "-n", "4", "--device", "cpu").returncode == 0
    wrong = run("run", "no-such.gguf")
    assert wrong.returncode == 1 and wrong.stderr.startswith("millrace: no-such.gguf: ")
    assert run("rum").returncode == 2
    beside = pathlib.Path(sys.executable).parent / "millrace"  # the script of the environment
    assert subprocess.run([beside, "--version"], capture_output=True).returncode == 0


def test_the_stub_names_what_the_module_has():
    stub = ast.parse((PACKAGE / "_core.pyi").read_text())

    def names(body):
        out = {}
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                out[node.name] = node
            elif isinstance(node, ast.AnnAssign):
                out[node.target.id] = node
        return out

    def public(thing):
        return {name for name in vars(thing) if not name.startswith("_")}

    top = names(stub.body)
    assert set(top) == public(_core)
    for name, node in top.items():
        if isinstance(node, ast.ClassDef) and not issubclass(getattr(_core, name), Exception):
            assert set(names(node.body)) - {"__init__"} == public(getattr(_core, name)), name


def test_types(tmp_path):
    pytest.importorskip("mypy")
    user = tmp_path / "user.py"
    user.write_text("""
import millrace as mr

m = mr.Model("storyteller", device="cpu", ctx=64)
text: mr.Text = m.generate("Once", max_tokens=3, temperature=0.5, stop=["x"])
ids: list[int] = text.ids
pieces: list[str] = list(m.stream("Once"))
rows: list[mr.Text] = m.generate_batch(["Once"], seed=1)
loss: float = m.eval("Once").nll
run: mr.Run = mr.train(model="llama", dim=32, data="data", out="run", tied=True, progress=True)
losses: list[float] = [step["loss"] for step in run.resume(steps=4).metrics]
last: float = run.metrics.column("loss")[-1]
packed: mr.data.Packed = mr.data.pack(data=["a", "b"], tokenizer="storyteller", out="data")
m.generate_batch(["Once"], progress=lambda what, done, total: print(what), max_tokens=3)
m.generate("Once", max_tokens="three")
m.generate("Once", max_token=3)
m.chat([{"role": "user", "content": 3}])
mr.train(dim="wide")
mr.train(dims=3)
""")
    # The types of pandas would take as long as all others together.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\ncache_dir = cache\n"
                                       "[mypy-pandas.*]\nfollow_imports = skip\n"
                                       "ignore_missing_imports = True\n")

    def check(*words):
        return subprocess.run([sys.executable, "-m", "mypy", *words], capture_output=True,
                              text=True, cwd=tmp_path)

    done = check("-p", "millrace")
    assert done.returncode == 0, done.stdout
    done = check(str(user))
    wrong = re.findall(r"user\.py:(\d+): error", done.stdout)
    assert sorted(set(wrong)) == ["15", "16", "17", "18", "19"], done.stdout


def test_the_reference_is_that_of_the_docstrings(source):
    spec = importlib.util.spec_from_file_location("make_reference",
                                                  source / "python" / "make_reference.py")
    make_reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_reference)
    page = (source / "docs" / "python-reference.md").read_text()
    assert page.startswith(make_reference.HEAD)
    for name in make_reference.MODULES:
        section = make_reference.describe(name)
        assert section is None or section in page, f"run python/make_reference.py ({name})"
    for name in mr.__all__:
        if inspect.isclass(getattr(mr, name)) or inspect.isfunction(getattr(mr, name)):
            assert f"### {name}\n" in page and inspect.getdoc(getattr(mr, name)), name


def test_help_lists_every_option():
    for record in (mr.Options, mr.TrainOptions):
        listed = set(re.findall(r"^- (\w+): ", inspect.getdoc(record), re.MULTILINE))
        assert set(record.__annotations__) == listed, record


@pytest.mark.parametrize("path, count", [("docs/python.md", 5), ("README.md", 1)])
def test_the_examples_of_the_page(source, tmp_path, monkeypatch, capsys, path, count):
    page = (source / path).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= count
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLRACE_DEVICE", "cpu")
    # As in conftest.py; the docs should not show threads=1.
    monkeypatch.setattr(mr, "Model", functools.partial(mr.Model, threads=1))
    monkeypatch.setattr(mr, "train", functools.partial(mr.train, threads=1))
    names = {}
    for block in blocks:
        wanted = set(re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE))
        if any(importlib.util.find_spec(name) is None for name in wanted):
            assert wanted <= {"torch", "transformers"}  # users may have them
            continue
        exec(compile(block, path, "exec"), names)
    names["m"].close()
    assert "Once upon a time" in capsys.readouterr().out
