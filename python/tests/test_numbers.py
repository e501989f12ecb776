"""Token ids, logits, embeddings, evaluation and profiles."""
import json
import math
import os
import subprocess

import numpy as np
import pytest

import millrace as mr
from conftest import DEVICE


def test_tokenize_and_back(model):
    for text in ("Once upon a time", "Ça va, 你好 🎉", "", " two  blanks "):
        ids = model.tokenize(text)
        assert ids == [int(id) for id in tokens_of_the_program(text).split()]
        assert model.detokenize(ids) == text
        assert model.detokenize(np.array(ids, dtype=np.int64)) == text
    assert model.tokenize("Once") == [model.tokenize("")[0], *model.tokenize("Once", special=False)]
    with pytest.raises(TypeError, match="str or bytes"):
        model.tokenize(7)


def tokens_of_the_program(text):
    return subprocess.run([os.environ["MILLRACE_BIN"], "tokenize", "--ids", "--file", "-"],
                          check=True, capture_output=True, text=True, input=text).stdout


def test_logits_are_those_that_tokens_are_drawn_from(model):
    text = model.generate("Once upon a time", max_tokens=20, temperature=0, logprobs=5)
    prompt = model.tokenize("Once upon a time")
    rows = model.logits([*prompt, *text.ids])
    assert rows.dtype == np.float32 and rows.shape == (len(prompt) + 20, model.info.vocab)
    assert rows[len(prompt) - 1: -1].argmax(1).tolist() == text.ids
    for row, entry in zip(rows[len(prompt) - 1:].astype(np.float64), text.logprobs):
        logprobs = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert math.isclose(logprobs[entry.id], entry.logprob, abs_tol=1e-5)


def test_logits_do_not_depend_on_what_follows_or_on_the_batch(model):
    ids = model.tokenize("Once upon a time there was a little dog who loved to run.") * 20
    rows = model.logits(ids)  # more rows than a pass has
    if model.info.device == "cpu":
        assert np.array_equal(model.logits(ids[:7]), rows[:7])
    else:  # few tokens use another GEMM there, in bf16; logits are up to 23
        assert np.array_equal(model.logits(ids[:70])[:7], rows[:7])
        assert np.allclose(model.logits(ids[:7]), rows[:7], atol=0.5)


def test_arrays_are_used_where_they_lie(model):
    ids = np.array(model.tokenize("Once upon a time"), dtype=np.int32)
    ids.flags.writeable = False
    out = np.full((len(ids), model.info.vocab), np.nan, dtype=np.float32)
    made = model.logits(ids, out=out)
    assert made is out and made.ctypes.data == out.ctypes.data
    assert np.array_equal(out, model.logits(ids.tolist()))
    assert np.array_equal(model.logits(ids.astype(np.int64)[::-1][::-1]), out)


@pytest.mark.parametrize("ids", [[1.5], [[1, 2]], ["a"], None])
def test_ids_of_a_wrong_kind(model, ids):
    with pytest.raises(TypeError, match="one row of integers"):
        model.logits(ids)


def test_ids_that_cannot_be(model):
    for ids in ([-1], [model.info.vocab], [2**40]):
        with pytest.raises(mr.InputError, match="tokens of the model"):
            model.logits(ids)
        for call in (model.generate, model.detokenize):
            with pytest.raises(mr.InputError, match="tokens of the model"):
                call(ids)
    with pytest.raises(mr.InputError, match="no token"):
        model.logits([])
    with pytest.raises(mr.InputError, match="fit into the context of 512"):
        model.logits([1] * 513)


def test_out_of_a_wrong_kind(model):
    shape = (2, model.info.vocab)
    read_only = np.zeros(shape, np.float32)
    read_only.flags.writeable = False
    for out in (np.zeros(shape), np.zeros((3, 4), np.float32), read_only, [0],
                np.zeros((model.info.vocab, 2), np.float32).T):
        with pytest.raises(TypeError, match="writable contiguous float32"):
            model.logits([1, 2], out=out)


def test_embeddings(model):
    texts = ["The cat was happy.", "The dog was happy.", "The cat was happy."]
    rows = model.embed(texts)
    assert rows.shape == (3, model.info.dim) and rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert np.array_equal(rows[0], rows[2]) and not np.allclose(rows[0], rows[1])
    assert np.array_equal(model.embed(texts[1]), rows[1])
    # One text is the beginning of the other, so that the mean is not equal by accident.
    last = model.embed("The", pool="last", normalize=False)
    ids = model.tokenize("The")
    first = model.embed(model.detokenize(ids[:1]), pool="last", normalize=False)
    mean = model.embed("The", normalize=False)
    assert len(ids) == 2 and np.allclose(mean, (first + last) / 2, atol=1e-5)
    assert model.embed([]).shape == (0, model.info.dim)
    with pytest.raises(mr.UsageError, match="mean or last"):
        model.embed("The", pool="max")


def test_eval_is_that_of_the_program(model, program, tmp_path):
    text = "Once upon a time there was a dog.\n---\nOne day it ran away.\n"
    (tmp_path / "text").write_text(text)
    for words, options in (([], {}), (["--split", "---", "--ends"], {"split": "---", "ends": True}),
                           (["--split", "---", "--limit", "1"], {"split": "---", "limit": 1})):
        said = json.loads(program("eval", "--text", str(tmp_path / "text"), "--json", *words))
        result = model.eval(text, **options)
        assert (result.nll, result.perplexity, result.tokens, result.documents) == (
            said["nll"], said["ppl"], said["tokens"], said["documents"])


def test_profile(model, tmp_path):
    profile = model.profile("Once upon a time", max_tokens=12, seed=7)
    assert profile.text == model.generate("Once upon a time", max_tokens=12, seed=7)
    assert "tok/s" in profile.summary and profile.summary in profile.table()
    assert str(profile) == profile.table()
    stages = {record["stage"] for record in profile.records() if record["phase"] == "decode"}
    assert {"qkv", "attention", "head", "sample"} <= stages
    profile.save_html(tmp_path / "page.html")
    assert '"kind":"roofline"' in (tmp_path / "page.html").read_text()
    profile.save_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    with pytest.raises(mr.InputError, match="nowhere"):
        profile.save_html(tmp_path / "nowhere" / "page.html")
    assert len(model.profile("Once", seed=1, ignore_eos=True).text.ids) == 32


def test_a_profile_is_that_of_the_program(program):
    with mr.Model(device=DEVICE, threads=1) as fresh:  # with nothing in its cache
        profile = fresh.profile("Once upon a time", max_tokens=12, seed=7)
    words = ("profile", "-p", "Once upon a time", "-n", "12", "--seed", "7")
    shown, said = program(*words), json.loads(program(*words, "--json"))
    assert (profile.text, profile.text.ids) == (said["text"], said["ids"])
    titles = [[line.split(",")[:2] for line in text.splitlines() if " in all" in line]
              for text in (profile.table(), shown)]
    assert titles[0] == titles[1] and titles[0][0][0].startswith("prefill: 1 step")
    stages = {(record["phase"], record["stage"]): record["calls"] for record in profile.records()}
    assert stages == {(phase, stage["stage"]): stage["calls"] for phase, roofline
                      in said["roofline"].items() for stage in roofline["stages"]}


def test_profile_to_pandas(model):
    pandas = pytest.importorskip("pandas")
    frame = model.profile("Once", max_tokens=8, seed=1).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    shares = frame.groupby("phase")["share"].sum()
    assert set(shares.index) == {"decode", "prefill"} and (shares <= 1.0001).all()
