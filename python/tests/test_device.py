"""Models on a GPU. Skips if there is none, unless MILLRACE_REQUIRE_GPU says that there must be
one."""
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

import millrace as mr


@pytest.fixture(scope="module")
def device_model():
    try:
        opened = mr.Model(device="cuda")
    except mr.DeviceError as error:
        if os.environ.get("MILLRACE_REQUIRE_GPU"):
            raise
        pytest.skip(str(error))
    with opened:
        yield opened


def used_bytes():
    """GPU memory of this process."""
    table = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory",
                            "--format=csv,noheader,nounits"], capture_output=True, text=True)
    rows = [line.split(",") for line in table.stdout.splitlines()]
    mine = [int(used) << 20 for pid, used in rows if int(pid) == os.getpid()]
    if not mine:
        pytest.skip("nvidia-smi does not tell what this process holds")
    return mine[0]


def test_text_is_that_of_the_program(device_model):
    said = subprocess.run([os.environ["MILLRACE_BIN"], "run", "-p", "Once upon a time", "-n", "60",
                           "--seed", "7", "--device", "cuda", "--json"], check=True,
                          capture_output=True, text=True).stdout
    text = device_model.generate("Once upon a time", max_tokens=60, seed=7)
    assert device_model.info.device == "cuda"
    assert f'"ids":{text.ids}'.replace(" ", "") in said.replace(" ", "")


def test_texts_of_a_batch_are_those_of_each_alone(device_model):
    prompts = ["Once upon a time", "One day", "The little dog"] * 8
    texts = device_model.generate_batch(prompts, max_tokens=40, seed=3)
    for i in (0, 1, 5, 23):
        assert texts[i] == device_model.generate(prompts[i], max_tokens=40, seed=3 + i)


def test_numbers_are_close_to_the_cpus(device_model, model):
    if model.info.device != "cpu":
        pytest.skip("there is no model on the CPU to compare with")
    story = "Once upon a time there was a little dog who loved to run. " * 9  # several passes
    ids = model.tokenize(story)
    here, there = model.logits(ids), device_model.logits(ids)
    assert np.abs(here - there).max() < 0.1 * np.abs(here).max()
    assert (here.argmax(1) == there.argmax(1)).mean() > 0.95
    for pool in ("mean", "last"):
        a, b = model.embed([story, "The cat."], pool=pool), device_model.embed([story, "The cat."], pool=pool)
        assert ((a * b).sum(1) > 0.999).all()
    again = device_model.embed([story, "The cat."])
    assert np.array_equal(again, device_model.embed([story, "The cat."]))
    a, b = model.eval(story), device_model.eval(story)
    assert abs(a.nll - b.nll) < 0.01 * a.nll


def test_a_profile_has_the_devices_stages(device_model):
    profile = device_model.profile("Once upon a time", max_tokens=16)
    stages = {record["stage"] for record in profile.records()}
    assert any("head" in stage for stage in stages), stages
    assert all(record["seconds"] >= 0 for record in profile.records())
    assert device_model.generate("Once", max_tokens=4)  # still works


def test_an_interrupt_leaves_the_model_usable(device_model):
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    with mr.Model("random:stories-110m:f16", device="cuda", ctx=1 << 20) as slow:
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            slow.generate([1, 2, 3], max_tokens=1 << 19, ignore_eos=True)
        assert time.monotonic() - begin < 60
        assert len(slow.generate([1, 2, 3], max_tokens=3, ignore_eos=True).ids) == 3


def test_threads_share_one_engine(device_model):
    alone = [device_model.generate("One day", max_tokens=30, seed=i) for i in range(6)]
    made = [None] * 6

    def work(i):
        made[i] = device_model.generate("One day", max_tokens=30, seed=i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == alone


def test_closing_frees_the_device(device_model):
    closed = []

    def open_and_close():
        with mr.Model("random:stories-110m:f16", device="cuda", pool=4096) as other:
            other.generate([1, 2, 3], max_tokens=2)
            closed.append(other)  # closing frees it, not the last reference
            return used_bytes()

    open_and_close()  # loaded code stays
    before = used_bytes()
    assert open_and_close() > before + (200 << 20)
    assert used_bytes() < before + (32 << 20)
    held = mr.Model("random:stories-110m:f16", device="cuda", pool=4096)
    del held
    assert used_bytes() < before + (32 << 20)


def test_too_much_is_an_exception(device_model):
    with pytest.raises(mr.DeviceError, match="GiB"):
        mr.Model("random:llama-2-7b:bf16", device="cuda", ctx=1 << 26)
    assert device_model.generate("Once", max_tokens=4)


def test_blocks_are_filled_in(device_model):
    with mr.Model("storyteller-diffusion", device="cuda") as model:
        text = model.generate("Once upon a time", max_tokens=40, block=8, steps=4, seed=7)
        assert text == model.generate("Once upon a time", max_tokens=40, block=8, steps=4, seed=7)
        several = model.generate_batch(["Once upon a time", "One day"], max_tokens=40, block=8, steps=4,
                                       seed=7)
        assert several[0] == text
