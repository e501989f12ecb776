"""Training and its data: the same runs as the program's, Ctrl-C, callbacks, errors."""
import gc
import inspect
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import types

import pytest

import millrace as mr
from conftest import DEVICE
from millrace import _core

SMALL = {"dim": 32, "layers": 1, "heads": 2, "batch": 2, "seq": 32, "device": DEVICE, "threads": 1,
         "sample_tokens": 0}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([os.environ["MILLRACE_LAB"], "story", "write", "--stories", "60", "--seed", "3", "--out",
                    folder / "stories.txt"], check=True)
    return mr.data.pack(data=folder / "stories.txt", tokenizer="storyteller", out=folder / "data", val=0.1)


def without_times(metrics):
    return [{name: value for name, value in step.items()
             if name not in ("tokens_per_second", "data_wait_seconds", "seconds")}
            for step in metrics]


def test_a_run_is_that_of_the_program(packed, program, tmp_path):
    words = ["--dim", "32", "--layers", "1", "--heads", "2", "--batch", "2", "--seq", "32",
             "--threads", "1", "--steps", "6", "--eval-every", "3", "--eval-batches", "1", "--lr",
             "0.002", "--tied", "no", "--prompt", "Once", "--sample-tokens", "8", "--bos"]
    said = json.loads(program("train", "--data", str(packed.path), "--out", str(tmp_path / "p"),
                              "--json", *words))
    run = mr.train(**{**SMALL, "sample_tokens": 8}, data=packed.path, out=tmp_path / "run", steps=6,
                   eval_every=3, eval_batches=1, lr=0.002, tied=False, prompt="Once", bos=True)
    assert without_times(run.metrics) == without_times(mr.Run(tmp_path / "p").metrics)
    assert [step["step"] for step in run.metrics] == [1, 2, 3, 4, 5, 6]
    for name in ("loss", "val_loss", "bits_per_byte", "parameters", "val_tokens", "step"):
        assert run.result[name] == said[name], name
    assert run.checkpoint == tmp_path / "run" / "checkpoints" / "step-000006"
    assert str(run.checkpoint) == run.result["checkpoint"]
    assert [sample.step for sample in run.samples] == [6] and run.samples[0].text
    page = run.report.read_text()
    assert "millrace.train(" in page and "lr=0.002" in page
    with run.model(device="cpu") as model, mr.Model(tmp_path / "p", device="cpu") as other:
        assert model.info.parameters == run.result["parameters"]
        assert model.generate("Once", max_tokens=8, seed=1).ids == other.generate(
            "Once", max_tokens=8, seed=1).ids


def test_metrics_are_arrays_and_frames(packed, tmp_path):
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    run = mr.train(**SMALL, data=packed.path, out=tmp_path / "run", steps=4, eval_every=2)
    metrics = run.metrics
    loss = metrics.column("loss")
    assert loss.dtype == numpy.float64 and loss.tolist() == [step["loss"] for step in metrics]
    assert numpy.isnan(metrics.column("val_loss")).tolist() == [True, False, True, False]
    assert set(metrics.to_numpy()) == {key for step in metrics for key in step}
    frame = metrics.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and frame.index.tolist() == [1, 2, 3, 4]
    assert frame["val_loss"].isna().tolist() == [True, False, True, False]
    with pytest.raises(KeyError, match="no step has it; there are"):
        metrics.column("los")


def test_a_run_that_was_interrupted_goes_on_bit_for_bit(packed, tmp_path):
    whole = mr.train(**SMALL, data=packed.path, out=tmp_path / "whole", steps=8, save_every=8)

    def interrupt(step):
        if step["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        mr.train(**SMALL, data=packed.path, out=tmp_path / "run", steps=8, save_every=8,
                 on_step=interrupt)
    run = mr.Run(tmp_path / "run")
    assert run.checkpoint.name == "step-000003" and len(run.metrics) == 3
    resumed = run.resume(on_step=None, threads=1, device=DEVICE)
    assert without_times(resumed.metrics) == without_times(whole.metrics)
    assert resumed.result["loss"] == whole.result["loss"]
    more = mr.train(resume=tmp_path / "run", steps=9, device="cpu")
    assert [step["step"] for step in more.metrics] == list(range(1, 10))


def test_ctrl_c_comes_from_outside_and_other_threads_run(packed, script, tmp_path):
    code = f"""
import os, pathlib, signal, threading, time, millrace as mr
log = pathlib.Path("run/metrics.jsonl")
def interrupt():
    while not log.exists() or not log.read_text():  # which needs this thread to run beside the steps
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    mr.train(dim=64, layers=2, heads=2, batch=8, seq=128, steps=100000, device="cpu", threads=1,
             data={str(packed.path)!r}, out="run", sample_tokens=0)
except KeyboardInterrupt:
    run = mr.Run("run")
    print("saved", len(run.metrics) == int(run.checkpoint.name[5:]))
"""
    done = script(code)
    assert done.stdout == "saved True\n", done.stderr


def test_callbacks_are_told_and_may_stop_the_run(packed, tmp_path):
    told, steps = [], []
    mr.train(**SMALL, data=packed.path, out=tmp_path / "run", steps=3,
             progress=lambda *given: told.append(given), on_step=steps.append)
    assert [given for given in told if given[0] == "training"] == [
        ("training", 1, 3), ("training", 2, 3), ("training", 3, 3)]
    assert steps == mr.Run(tmp_path / "run").metrics

    def enough(step):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        mr.train(**SMALL, data=packed.path, out=tmp_path / "other", steps=3, on_step=enough)
    assert mr.Run(tmp_path / "other").checkpoint.name == "step-000001"  # saved first
    (tmp_path / "large.txt").write_text("A cat sat. " * 1_600_000)  # written in two pieces
    with pytest.raises(RuntimeError, match="enough"):
        mr.data.pack(data=tmp_path / "large.txt", tokenizer="storyteller", out=tmp_path / "s",
                     progress=lambda *_: enough(0))
    assert not (tmp_path / "s").exists()


def test_notes_are_warnings(packed, tmp_path):
    run = mr.train(**SMALL, data=packed.path, out=tmp_path / "run", steps=2)
    assert run.notes == []
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text("no line of a run\n" + log.read_text())
    with pytest.warns(RuntimeWarning, match="1 damaged line was left out"):
        run = run.resume(steps=3)
    assert len(run.notes) == 1 and len(run.metrics) == 3


def test_a_bar_is_drawn_where_tqdm_is(packed, tmp_path, capsys):
    pytest.importorskip("tqdm")
    mr.train(**SMALL, data=packed.path, out=tmp_path / "run", steps=3, progress=True)
    said = capsys.readouterr().err
    assert "training: 100%" in said and "3/3" in said and "loss=" in said
    mr.Model("random:gpt2:q8_0", device="cpu", progress=True).close()
    assert "100%" in capsys.readouterr().err


def test_a_line_is_drawn_where_tqdm_is_not(monkeypatch, capsys):
    from millrace import _progress

    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    with _progress.Shown(True) as shown:
        shown.told("loading", 1, 4)
    assert "loading  25%" in capsys.readouterr().err
    # A wider line than the terminal's would leave a row behind.
    monkeypatch.setattr(_progress, "columns", lambda: 8)
    with _progress.Shown(True) as shown:
        shown.told("loading", 1, 4)
    assert capsys.readouterr().err == "\r\033[Kloading\r\033[K"


def test_a_batch_says_how_far_it_is(model):
    told = []
    texts = model.generate_batch(["Once"] * 20, max_tokens=8, seed=1,
                                 progress=lambda *given: told.append(given))
    assert len(texts) == 20 and told[-1] == ("generating", 20, 20)
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
    with pytest.raises(mr.UsageError, match="progress: is True, or a function"):
        model.generate_batch(["Once"], progress=3)

    def enough(*_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        model.generate_batch(["Once"] * 40, max_tokens=-1, ignore_eos=True, progress=enough)
    assert len(model.generate("Once", max_tokens=3).ids) == 3


def test_the_options_are_those_of_the_program():
    hidden = {"json", "help", "help_all", "comm_timeout"}
    known = {name[2:].replace("-", "_"): kind
             for name, kind, _ in _core.command_options(["train"])}
    types = mr.TrainOptions.__annotations__
    assert set(types) == set(known) - hidden
    for name, kind in known.items():
        if name in hidden or name == "tied":
            continue
        wanted = {"N": "int", "X": "float", "": "bool"}.get(kind, "str")
        if kind in ("MODEL", "FOLDER", "RUN"):
            wanted = "Path"
        assert types[name].__forward_arg__ == wanted, name
    keywords = set(inspect.signature(mr.data.pack).parameters)
    options = {name[2:].replace("-", "_") for name, _, _ in _core.command_options(["data", "pack"])}
    assert keywords - {"progress"} == options - hidden


@pytest.mark.parametrize("words, options", [
    (["--data", "no-such", "--out", "r"], {"data": "no-such", "out": "r"}),
    (["--out", "r"], {"out": "r"}),
    (["--resume", "no-such"], {"resume": "no-such"}),
    (["--data", "d", "--out", "r", "--dim", "33"], {"data": "d", "out": "r", "dim": 33}),
    (["--data", "d", "--out", "r", "--objective", "both"],
     {"data": "d", "out": "r", "objective": "both"}),
    (["--data", "d", "--out", "r", "--block", "4"], {"data": "d", "out": "r", "block": 4}),
    (["--data", "d", "--out", "r", "--warmup", "-1"], {"data": "d", "out": "r", "warmup": -1}),
    (["--data", "d", "--out", "r", "--lr", "nan"], {"data": "d", "out": "r", "lr": float("nan")}),
    (["--data", "", "--out", "r"], {"data": "", "out": "r"}),
    (["--resume", "no-such", "--dim", "3"], {"resume": "no-such", "dim": 3}),
], ids=range(10))
def test_errors_have_the_line_of_the_program(words, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = subprocess.run([os.environ["MILLRACE_BIN"], "train", *words], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL)
    with pytest.raises(mr.Error) as raised:
        mr.train(**options)
    assert said.stderr == f"millrace: {raised.value}\n"
    assert said.returncode == {mr.InputError: 1, mr.UsageError: 2}[type(raised.value)]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_hides_a_bundled_model_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "storyteller").mkdir()
    (tmp_path / "text").write_text("One day.")
    said = subprocess.run([os.environ["MILLRACE_BIN"], "data", "pack", "--data", "text",
                           "--tokenizer", "storyteller", "--out", "d"], capture_output=True,
                          text=True)
    with pytest.raises(mr.InputError, match="bundled") as raised:
        mr.data.pack(data="text", tokenizer="storyteller", out="d")
    # The program and the package have their own copies of the model; its path ends the line.
    assert said.stderr.split()[1:-1] == str(raised.value).split()[:-1]


@pytest.mark.parametrize("options, words", [
    ({"dims": 3}, "'dims' is not an option of train"), ({"json": True}, "'json' is not an option"),
    ({"dim": "wide"}, "dim = 'wide': is not a whole number"), ({"dim": 1.5}, "whole number"),
    ({"lr": "fast"}, "lr = 'fast': is not a number"), ({"bos": 1}, "bos = 1: is True or False"),
    ({"model": 3}, "model = 3: is not a str or a path"),
], ids=range(7))
def test_options_of_a_wrong_type(options, words):
    with pytest.raises(TypeError, match=words):
        mr.train(**options)


def test_numbers_of_numpy_are_numbers(packed, tmp_path):
    numpy = pytest.importorskip("numpy")
    run = mr.train(**{**SMALL, "dim": numpy.int64(32)}, data=packed.path, out=tmp_path / "run",
                   steps=numpy.int32(1), lr=numpy.float32(0.5), schedule="constant")
    assert run.metrics[0]["lr"] == 0.5


def test_packing(packed, program, tmp_path):
    text = tmp_path / "-odd name.txt"  # a name that looks like an option
    text.write_text("One day.\nTwo days.\nThree days.")
    made = mr.data.pack(data=text, tokenizer="storyteller", out=tmp_path / "d", split="\n",
                        val_docs=1)
    assert (made.train_documents, made.val_documents, made.files) == (2, 1, 1)
    with pytest.raises(mr.UsageError, match="excludes"):
        mr.data.pack(data=text, tokenizer="storyteller", out=tmp_path / "e", val_docs=1, val=0.5)
    with pytest.raises(mr.InputError, match="already|not empty|is there"):
        mr.data.pack(data=text, tokenizer="storyteller", out=tmp_path / "d")
    other = tmp_path / "other.txt"
    other.write_text("Four days.")
    whole = mr.data.pack(data=[text, other], tokenizer="storyteller", out=tmp_path / "d", split="",
                         force=True, val=0)
    assert (whole.train_documents, whole.val_documents, whole.files) == (2, 0, 2)


def test_a_folder_that_holds_no_run(tmp_path):
    with pytest.raises(mr.InputError, match="no such folder"):
        mr.Run(tmp_path / "no-such")
    with pytest.raises(mr.InputError, match="not the folder of a run"):
        mr.Run(tmp_path).metrics
    assert mr.Run(tmp_path).checkpoint is None
    (tmp_path / "metrics.jsonl").write_text("{}\nno\n")
    with pytest.raises(mr.InputError, match="line 2: is not a step"):
        mr.Run(tmp_path).metrics


def test_threads_train_side_by_side_and_nothing_stays(packed, tmp_path):
    def train(name):
        mr.train(**SMALL, data=packed.path, out=tmp_path / name, steps=4,
                 on_step=lambda step: None, progress=lambda *_: None)

    train("first")
    gc.collect()
    threads, objects = len(os.listdir("/proc/self/task")), len(gc.get_objects())
    callback = lambda *_: None  # noqa: E731
    references = sys.getrefcount(callback)
    both = [threading.Thread(target=train, args=[name]) for name in ("a", "b")]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert without_times(mr.Run(tmp_path / "a").metrics) == without_times(
        mr.Run(tmp_path / "b").metrics)
    for i in range(20):
        with pytest.raises(mr.UsageError):
            mr.train(data=packed.path, progress=callback, on_step=callback)
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads
    assert sys.getrefcount(callback) == references and len(gc.get_objects()) - objects < 200


def test_parquet_is_packed_through_pyarrow(tmp_path, monkeypatch):
    """With a stand-in for pyarrow, which is large: its reader of a file of JSON rows."""
    class ParquetFile:
        def __init__(self, path):
            self.rows = json.loads(pathlib.Path(path).read_bytes()[4:])
            self.schema_arrow = types.SimpleNamespace(names=list(self.rows[0]))

        def iter_batches(self, columns):
            for row in self.rows:  # a batch each
                yield types.SimpleNamespace(to_pylist=lambda row=row: [{name: row[name] for name in columns}])

    class Damaged(Exception):
        pass

    parquet = types.SimpleNamespace(ParquetFile=ParquetFile)
    arrow = types.SimpleNamespace(parquet=parquet, ArrowException=Damaged)
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    texts = ["One text.", "Another \u00e9.", ""]

    def file(name, rows):
        (tmp_path / name).write_bytes(b"PAR1" + json.dumps(rows).encode())
        return tmp_path / name

    def packed(data, **options):
        made = mr.data.pack(data=data, tokenizer="storyteller", out=tmp_path / "data", force=True, val=0, **options)
        return made, (tmp_path / "data" / "train-00000.bin").read_bytes()

    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    want, ids = packed(tmp_path / "plain" / "a.jsonl")
    assert want.train_documents == 2
    rows = file("a.parquet", [{"id": i, "text": text} for i, text in enumerate(texts)])
    pairs = file("b.parquet", [{"prompt": text[:3], "completion": text[3:]} for text in texts])
    assert packed(rows)[1] == packed([str(pairs)])[1] == packed(str(tmp_path / "a.par*"))[1] == ids
    (tmp_path / "folder").mkdir()
    rows.rename(tmp_path / "folder" / "a.parquet")
    (tmp_path / "folder" / ".hidden").write_bytes(b"\0")
    assert packed(tmp_path / "folder")[1] == ids
    # A file that is named twice is packed once, as by the program.
    inside = tmp_path / "folder" / "a.parquet"
    assert packed([tmp_path / "folder", inside, f"{tmp_path}/folder/../folder/a.parquet"])[1] == ids
    with pytest.raises(mr.UsageError, match="its columns: words"):
        packed(file("c.parquet", [{"words": "a"}]))
    with pytest.raises(mr.InputError, match="d.parquet, row 2: has no text"):
        packed(file("d.parquet", [{"text": "a"}, {"text": None}]))

    def raw(text):
        monkeypatch.setattr(ParquetFile, "iter_batches", lambda self, columns: iter(
            [types.SimpleNamespace(to_pylist=lambda: [{"text": text}])]))
        return packed(inside)[1]

    assert raw("é".encode()) == raw("é")  # many data sets have a column of bytes
    with pytest.raises(mr.InputError, match="a.parquet, row 1: is not UTF-8"):
        raw(b"\xff")
    monkeypatch.setattr(ParquetFile, "__init__", lambda self, path: (_ for _ in ()).throw(Damaged("no footer")))
    with pytest.raises(mr.InputError, match="a.parquet: is damaged Parquet: no footer"):
        packed(inside)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(mr.UsageError, match="pip install pyarrow"):
        packed(pairs)
