"""Expected behaviour of a Python package: threads, Ctrl-C, errors, closing, processes, memory."""
import gc
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

import millrace as mr
from millrace import _model
from patience import HANG, Engine, eventually, threads


def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def slow_engine():
    """A model that needs seconds for a long text."""
    with Engine("random:gpt2:f32", device="cpu") as opened:
        opened.pass_seconds = opened.seconds_of(lambda: opened.model.generate([5] * 256, max_tokens=1))
        yield opened


@pytest.fixture
def slow(slow_engine):
    return slow_engine.model


@pytest.mark.parametrize("call", [
    lambda m: m.generate("x", max_tokens=-1, ignore_eos=True),
    lambda m: list(m.stream("x", max_tokens=-1, ignore_eos=True)),
    lambda m: m.generate_batch(["x"] * 40, max_tokens=-1, ignore_eos=True),
    lambda m: m.generate("x " * 450, max_tokens=-1, ignore_eos=True),
    lambda m: m.profile("x", max_tokens=-1, ignore_eos=True),
    lambda m: m.eval("x " * 20000),
    lambda m: m.embed(["x " * 400] * 50),
], ids=["generate", "stream", "batch", "prompt", "profile", "eval", "embed"])
def test_ctrl_c_stops_the_work_and_leaves_the_model_usable(slow_engine, slow, call):
    begin = slow_engine.seconds()

    ended = threading.Event()

    def interrupt():
        slow_engine.wait_for(begin + 0.3)
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        call(slow)
        ended.set()
    thread.join()
    # The pass in which it comes is finished; all of the work would be ten passes or more.
    assert slow_engine.seconds() - begin < 0.3 + 4 * slow_engine.pass_seconds
    assert len(slow.generate("x", max_tokens=2, seed=1, ignore_eos=True).ids) == 2


def test_a_gpu_that_is_not_used_is_named(monkeypatch):
    monkeypatch.setenv("MILLRACE_DEVICE", "auto")
    monkeypatch.setattr(mr._model._core, "gpu_passed_over", lambda: "its driver is too old")
    with pytest.warns(RuntimeWarning, match="the GPU is not used: its driver is too old"):
        mr.Model().close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mr.Model(device="cpu").close()  # as asked


def test_other_threads_run_while_the_engine_works(slow):
    seen = []
    stop = threading.Event()

    def count():
        while not stop.is_set():
            seen.append(time.monotonic())
            time.sleep(0.005)

    watcher = threading.Thread(target=count)
    watcher.start()
    begin = time.monotonic()
    try:
        slow.generate("x " * 300, max_tokens=20, ignore_eos=True, seed=1)
    finally:
        seconds = time.monotonic() - begin
        stop.set()
        watcher.join()
    assert len(seen) > 10 and max(b - a for a, b in zip(seen, seen[1:])) < seconds / 2


def test_threads_share_a_model(model):
    expected = [model.generate("Once", max_tokens=60, seed=seed) for seed in range(12)]
    texts, failed = {}, []

    def tell(seed):
        try:
            for _ in range(3):
                texts[seed] = model.generate("Once", max_tokens=60, seed=seed)
                model.eval("Once upon a time.")  # alone, between the others
                assert texts[seed] == expected[seed]
                with pytest.raises(mr.InputError):
                    model.generate("Once " * 600)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=tell, args=[seed]) for seed in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed and len(texts) == 12


def test_closing_ends_what_others_wait_for(monkeypatch):
    model = mr.Model("random:gpt2:f32", device="cpu", threads=1)
    failed = []
    waiting = threading.Semaphore(0)
    wait = _model.wait

    def counted(*pending, **given):  # the engine has the work when its caller begins to wait
        waiting.release()
        wait(*pending, **given)

    monkeypatch.setattr(_model, "wait", counted)

    def tell():
        try:
            model.generate("x", max_tokens=-1, ignore_eos=True)
        except mr.Error as error:
            failed.append(error)

    workers = [threading.Thread(target=tell) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in workers:
        assert waiting.acquire(timeout=HANG)
    model.close()
    for worker in workers:
        worker.join(HANG)
    assert [type(error) for error in failed] == [mr.UsageError] * 3
    assert "was closed while it worked" in str(failed[0])


def test_prompts_that_wait_cost_nothing(source):
    """Where every pass looks at each of them, twelve times as many take a hundred times as long."""
    with Engine(source / "tests/reference/llama2", device="cpu", threads=1) as engine:
        few, many = (engine.seconds_of(lambda: engine.model.generate_batch(
            ["Once"] * count, max_tokens=4, ignore_eos=True, seed=1)) for count in (2000, 24_000))
    assert many < 2 * 12 * few


def test_texts_that_wait_end_when_they_are_closed():
    with mr.Model("random:gpt2:f32", device="cpu", threads=1, max_sequences=1) as model:
        streams = [model.stream("x", max_tokens=-1, ignore_eos=True) for _ in range(6)]
        next(streams[0])  # which takes seconds
        for stream in (streams[5], streams[1], streams[3]):
            stream.close()
        assert not streams[0]._pending.ended()
        streams[0].close()
        assert next(streams[2])
        assert not streams[4]._pending.ended()


def test_a_text_is_pickled_with_what_it_knows(model):
    text = model.generate("Once", max_tokens=5, seed=1, logprobs=1)
    copy = pickle.loads(pickle.dumps(text))
    assert copy == text and vars(copy) == vars(text)


def test_a_closed_model_says_so():
    with mr.Model(device="cpu") as model:
        stream = model.stream("Once", max_tokens=5)
    for call in (lambda: model.generate("Once"), lambda: model.stream("Once"),
                 lambda: model.logits([1]), lambda: model.eval("Once"),
                 lambda: model.profile("Once"), lambda: model.embed("Once"),
                 lambda: model.generate_batch(["Once"])):
        with pytest.raises(mr.UsageError, match="model: is closed; open it again"):
            call()
    assert "closed" in repr(model)
    model.close()
    try:
        list(stream)  # ended before, or by closing the model
    except mr.UsageError as error:
        assert "was closed while it worked" in str(error)


def test_closing_and_dropping_end_the_threads():
    engine = Engine(device="cpu", threads=2)
    own = engine.threads
    assert eventually(lambda: len(own & threads()) == 2)  # one drives the engine, one helps it
    engine.model.close()
    assert eventually(lambda: not own & threads())
    engine = Engine(device="cpu", threads=2)
    own = engine.threads
    stream = engine.model.stream("Once", max_tokens=-1, ignore_eos=True)
    del engine
    gc.collect()
    assert next(stream)  # which keeps it alive
    assert len(own & threads()) == 2
    del stream
    gc.collect()
    assert eventually(lambda: not own & threads())


def test_nothing_grows_over_ten_thousand_calls(model):
    ids = model.tokenize("Once upon")

    def calls(count):
        for i in range(count):
            model.generate(ids, max_tokens=1, seed=i)
            model.detokenize(model.tokenize("Once"))
            if i % 10 == 0:
                next(model.stream(ids, max_tokens=2, seed=1, stop=["x"]))
                model.logits(ids)
            if i % 50 == 0:
                with pytest.raises(mr.UsageError):
                    model.generate(ids, temperature=-1)

    calls(1000)
    gc.collect()
    objects, bytes_before, references = len(gc.get_objects()), resident_bytes(), sys.getrefcount(
        model)
    calls(10_000)
    gc.collect()
    assert len(gc.get_objects()) - objects < 1000
    assert sys.getrefcount(model) == references
    assert resident_bytes() - bytes_before < 4 << 20


@pytest.mark.parametrize("call, kind, words", [
    (lambda: mr.Model("no-such.gguf"), mr.InputError, "no-such.gguf: no file"),
    (lambda: mr.Model("./no-such.gguf"), mr.InputError, "no-such.gguf"),
    (lambda: mr.Model(__file__), mr.InputError, "test_behaviour.py"),
    (lambda: mr.Model("random:gpt2:f31"), mr.UsageError, "f31"),
    (lambda: mr.Model(""), mr.UsageError, "path: is empty"),
    (lambda: mr.Model(device="tpu"), mr.UsageError, "device = tpu"),
    (lambda: mr.Model(kv_type="f8"), mr.UsageError, "kv_type = f8"),
    (lambda: mr.Model(device="cpu", kv_type="bf16"), mr.UsageError, "is only supported on a GPU"),
    (lambda: mr.Model(threads=-1), mr.UsageError, "threads = -1"),
    (lambda: mr.Model(max_sequences=0), mr.UsageError, "max_sequences = 0"),
    (lambda: mr.Model("random:llama-2-7b:f32", device="cpu", ctx=1 << 29), mr.DeviceError, "GiB"),
], ids=range(11))
def test_models_that_cannot_be_opened(call, kind, words):
    with pytest.raises(kind, match=words) as raised:
        call()
    assert isinstance(raised.value, mr.Error) and "\n" not in str(raised.value)


@pytest.mark.parametrize("options, kind", [
    ({"temperature": -1}, mr.UsageError), ({"temperature": float("nan")}, mr.UsageError),
    ({"top_p": 2}, mr.UsageError), ({"top_k": -1}, mr.UsageError), ({"min_p": 9}, mr.UsageError),
    ({"max_tokens": -2}, mr.UsageError), ({"seed": -1}, mr.UsageError),
    ({"seed": 1 << 64}, mr.UsageError), ({"seed": 1.5}, TypeError),
    ({"repeat_window": -2}, mr.UsageError), ({"min_tokens": -1}, mr.UsageError),
    ({"stop_ids": ["a"]}, TypeError), ({"logprobs": 21}, mr.UsageError),
    ({"max_tokens": "a"}, TypeError), ({"max_tokens": 1 << 40}, TypeError),
    ({"stop": [1]}, TypeError), ({"max_token": 3}, TypeError), ({"temperature": [1]}, TypeError),
], ids=str)
def test_options_that_cannot_be(model, options, kind):
    words = next(iter(options)).replace("_", ".")
    with pytest.raises(kind, match=words) as raised:
        model.generate("Once", **options)
    assert "\n" not in str(raised.value)
    assert len(model.generate("Once", max_tokens=2).ids) == 2


@pytest.mark.parametrize("call", [
    lambda m: m.generate(None), lambda m: m.generate([1.5]), lambda m: m.generate_batch([None]),
    lambda m: m.chat("Hi"), lambda m: m.chat([{"role": "user"}]),
    lambda m: m.chat([{"role": "user", "content": 3}]), lambda m: m.detokenize(3),
    lambda m: m.eval(3), lambda m: m.embed([3]), lambda m: m.profile(3),
    lambda m: mr.Model(threads="2"), lambda m: mr.Model(3), lambda m: m.eval("Once", split=3),
    lambda m: m.chat([{"role": "user", "content": "Hi"}], template_file=3),
], ids=range(14))
def test_arguments_of_a_wrong_type(model, call):
    with pytest.raises(TypeError) as raised:
        call(model)
    assert "\n" not in str(raised.value) and "incompatible" not in str(raised.value)


@pytest.mark.parametrize("path", ["/tmp/\udcff", b"/tmp/\xff"])
@pytest.mark.parametrize("name, call", [
    ("path", lambda m, path: mr.Model(path)),
    ("tokenizer", lambda m, path: mr.Model(device="cpu", tokenizer=path)),
    ("template_file", lambda m, path: m.chat([{"role": "user", "content": "Hi"}],
                                             template_file=path)),
    ("path", lambda m, path: m.profile("Once", max_tokens=1).save_html(path)),
    ("path", lambda m, path: m.profile("Once", max_tokens=1).save_trace(path)),
    ("data", lambda m, path: mr.data.pack(data=path, tokenizer="storyteller", out="x")),
    ("out", lambda m, path: mr.train(data="x", out=path)),
], ids=range(7))
def test_paths_that_are_not_utf_8(model, name, call, path):
    with pytest.raises(mr.InputError, match=f"^{name} = b?'/tmp/.*: is not UTF-8; rename it"):
        call(model, path)


def test_paths_may_be_bytes(model, tmp_path):
    talk = [{"role": "user", "content": "Hi"}]
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    texts = [model.chat(talk, max_tokens=3, seed=1, template_file=path)
             for path in (template, os.fsencode(template))]
    assert texts[0] == texts[1]


def test_a_page_replaces_no_other_file(model, tmp_path):
    profile, file = model.profile("Once", max_tokens=1), tmp_path / "notes"
    file.write_text("mine")
    for save in (profile.save_html, profile.save_trace):
        with pytest.raises(mr.UsageError, match="not a report of millrace"):
            save(file)
    assert file.read_text() == "mine"


def test_numbers_do_not_depend_on_the_locale(script, source, tmp_path):
    locales = pathlib.Path(os.environ["MILLRACE_BIN"]).parent / "locales"
    if not (locales / "de_DE.UTF-8").exists():
        pytest.skip("no locale with decimal commas was made")
    (tmp_path / "text").write_text("One day.\n" * 99)
    done = script("""
import locale
import millrace as mr
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
packed = mr.data.pack(data="text", tokenizer="storyteller", out="packed", split="\\n", val=0.1)
print(packed.train_documents)
""", env={**os.environ, "LOCPATH": str(locales)})
    assert (done.returncode, done.stderr) == (0, "") and int(done.stdout) < 99


def test_a_text_is_split_at_any_bytes(model):
    text = "Once upon a time.|One day."
    expected = model.eval(text, split="|")
    assert expected.documents == 2
    for mark in (b"\xff", b"\x00"):
        assert model.eval(text.encode().replace(b"|", mark), split=mark).nll == expected.nll


def test_numbers_of_numpy_are_numbers(model):
    numpy = pytest.importorskip("numpy")
    expected = model.generate("Once", max_tokens=9, temperature=0.5, seed=3)
    assert model.generate("Once", max_tokens=numpy.int64(9), temperature=numpy.float32(0.5),
                          seed=numpy.int64(3)) == expected


def test_the_line_is_that_of_the_program():
    said = subprocess.run([os.environ["MILLRACE_BIN"], "run", "no-such.gguf"], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL)
    with pytest.raises(mr.InputError) as raised:
        mr.Model("no-such.gguf")
    assert said.stderr == f"millrace: {raised.value}\n" and said.returncode == 1


def test_progress_is_told_and_may_stop_the_loading():
    told = []
    mr.Model("random:gpt2:q8_0", device="cpu",
             progress=lambda what, done, total: told.append((what, done, total))).close()
    assert told and all(done <= total for _, done, total in told)

    def stop(what, done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        mr.Model("random:gpt2:q8_0", device="cpu", progress=stop)


@pytest.mark.parametrize("busy", [False, True])
def test_a_fork_is_told_to_open_a_model_of_its_own(script, busy):
    done = script(f"busy = {busy}" + """
import os, sys, time, warnings
import millrace as mr
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: that there are threads
m = mr.Model(device="cpu", threads=1)
text = m.generate("Once", max_tokens=5, seed=1)
stream = m.stream("Once", max_tokens=-1, ignore_eos=True) if busy else list(m.stream("Once"))
time.sleep(0 if busy else 0.1)
if os.fork() == 0:
    try:
        m.generate("Once")
    except mr.UsageError as error:
        print(error)
    del stream
    own = mr.Model(device="cpu", threads=1)
    assert own.generate("Once", max_tokens=5, seed=1) == text
    del m
    sys.exit(0)  # with everything that runs at the end of an interpreter
assert os.wait()[1] == 0
assert m.generate("Once", max_tokens=5, seed=1) == text
""")
    assert done.returncode == 0, done.stderr
    assert "was opened before this process was forked" in done.stdout and not done.stderr


def test_processes_that_are_spawned(script):
    done = script("""
import multiprocessing
import millrace as mr

def tell(seed):
    with mr.Model(device="cpu", threads=1) as m:
        return str(m.generate("Once", max_tokens=9, seed=seed))

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        texts = pool.map(tell, [1, 2])
    assert texts == [tell(1), tell(2)]
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "del m", "m.close()", "s.close()",
                                    "threading.Thread(target=m.generate).start()"])
def test_an_interpreter_ends_quietly(script, ending):
    done = script(f"""
import sys, threading
import millrace as mr
m = mr.Model(device="cpu", threads=1)
s = m.stream("Once", max_tokens=-1, ignore_eos=True)
next(s)
{ending}
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ctrl_c_ends_a_script(script):
    done = script("""
import os, signal, threading
import millrace as mr
m = mr.Model("random:gpt2:f32", device="cpu")
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
m.generate_batch(["x"] * 1000, max_tokens=-1, ignore_eos=True)  # takes minutes
""")
    assert done.returncode == -signal.SIGINT and "KeyboardInterrupt" in done.stderr


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_closing_frees_the_weights():
    with mr.Model("random:gpt2:f32", device="cpu", threads=1) as opened:
        opened.generate([1], max_tokens=1)
        before = resident()
    assert resident() < before - (200 << 20)  # of 500 MB
    assert opened.info.parameters > 100e6 and "closed" in repr(opened)


@pytest.mark.parametrize("work", [
    lambda m: m.embed(["Once upon a time there was a dog. " * 20] * 400),
    lambda m: m.eval("Once upon a time there was a dog. " * 20000, split="\n"),
    lambda m: m.logits([5] * 1000),
])
def test_closing_ends_what_has_the_engine_for_itself(slow_engine, work):
    engine = Engine("random:gpt2:f32", device="cpu", threads=1)
    ended = []

    def run():
        try:
            work(engine.model)
        except mr.Error as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    engine.wait_for(engine.seconds() + 0.3)
    begin = time.process_time()
    engine.model.close()
    thread.join()
    assert time.process_time() - begin < 4 * slow_engine.pass_seconds
    assert len(ended) == 1 and "was closed while it worked" in str(ended[0])


@pytest.mark.parametrize("call, kind, words", [
    (lambda m: m.eval("Once", temperature=1.0), mr.UsageError, "temperature: is of a generation"),
    (lambda m: m.eval("Once", limit=1 << 40), mr.UsageError, "limit = 1099511627776"),
    (lambda m: m.generate([]), mr.InputError, "prompt: has no token"),
    (lambda m: m.generate_batch("Once"), TypeError, "prompts are several"),
    (lambda m: m.generate("Once", seed="x"), TypeError, "seed is an int, not str"),
    (lambda m: mr.Model(threads=1.5), TypeError, "threads is an int, not float"),
    (lambda m: mr.Model(ignore_keys=[1]), TypeError, "ignore_keys"),
    (lambda m: mr.Model(b"/no/such/file.gguf"), mr.InputError, "no such file|does not exist|No such"),
])
def test_arguments_that_cannot_be(model, call, kind, words):
    with pytest.raises(kind, match=words):
        call(model)
