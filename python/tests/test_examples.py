"""Every file of examples/python runs at small sizes, as a user would run it."""
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import DEVICE

FOLDER = pathlib.Path(os.environ["MILLRACE_SOURCE"]) / "examples" / "python"


def run(name, *words, folder, stdin="", **env):
    done = subprocess.run([sys.executable, str(FOLDER / name), *words], input=stdin, cwd=folder,
                          capture_output=True, text=True, timeout=120,
                          env={**os.environ, "MILLRACE_DEVICE": DEVICE, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_chat(tmp_path, model):
    said = run("chat.py", "--max-tokens", "12", "--seed", "3", "--system", "Tell.",
               folder=tmp_path, stdin="Hi\nAnd then?\n")
    messages = [{"role": "system", "content": "Tell."}, {"role": "user", "content": "Hi"}]
    first = model.chat(messages, max_tokens=12, temperature=0.8, seed=3)
    assert said.startswith(first.strip()) and len(said) > len(first)


def test_batch(tmp_path):
    said = run("batch.py", "--count", "6", "--max-tokens", "8", "--together", "4", folder=tmp_path)
    assert "48 tokens of 6 texts" in said and "each text is as if alone" in said


def test_profile_plots(tmp_path):
    # Without matplotlib a page is written instead of a picture.
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    said = run("profile_plots.py", "--max-tokens", "6", folder=tmp_path,
               PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert "attention" in said and '"kind":"roofline"' in (tmp_path / "profile.html").read_text()


def test_profile_plots_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    said = run("profile_plots.py", "--max-tokens", "6", "--out", "p.svg", folder=tmp_path)
    assert "written: p.svg" in said and "</svg>" in (tmp_path / "p.svg").read_text()


def test_sampler_study(tmp_path):
    said = run("sampler_study.py", "--max-tokens", "12", "--reps", "1", "--thresholds", "0.5",
               folder=tmp_path)
    assert "both samplers draw the same tokens" in said
    passes = {line[:24].strip(): int(line[24:32]) for line in said.splitlines()[2:-1]}
    assert passes["sampler on the CPU"] == passes["the engine's sampler"] == 12
    assert passes["4 tokens per pass"] < passes["2 tokens per pass"] < 12
    assert set(passes) >= {"threshold 0.5", "entropy"}


def test_train_storyteller(tmp_path):
    words = ["--stories", "40", "--dim", "32", "--layers", "1", "--batch", "4", "--seq", "64"]
    said = run("train_storyteller.py", *words, "--steps", "12", folder=tmp_path)
    assert "in 12 steps" in said and "Once upon a time" in said and "tokens to train on" in said
    first, last = (float(word) for word in said.split("loss ")[1].split(" in ")[0].split(" -> "))
    assert last < first
    assert "in 14 steps" in run("train_storyteller.py", "--steps", "14", folder=tmp_path)


def test_attention_vs_torch(tmp_path):
    pytest.importorskip("torch")
    said = run("attention_vs_torch.py", "--seq", "32", "--heads", "2", "--head-dim", "16", "--reps",
               "1", "--device", "cpu", folder=tmp_path)
    assert float(said.splitlines()[1].split()[-1]) < 1e-4


def test_every_example_is_tested_and_listed():
    names = {path.name for path in FOLDER.glob("*.py")}
    page = (FOLDER / "README.md").read_text()
    here = pathlib.Path(__file__).read_text()
    assert names and all(f"`{name}`" in page and f'run("{name}"' in here for name in names)
