"""mr.ops on numpy's arrays."""
import gc
import os
import sys
import threading

import numpy as np
import ops_reference as reference
import pytest

import millrace as mr
from millrace import _ops_numpy


@pytest.fixture(autouse=True)
def two_threads():
    mr.ops.set_threads(2)


def drawn(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def qkv(queries, keys, heads=4, kv_heads=2, dim=16):
    return (drawn(queries, heads, dim), drawn(keys, kv_heads, dim, seed=1),
            drawn(keys, kv_heads, dim, seed=2))


@pytest.mark.parametrize("mask", reference.MASKS.values(), ids=reference.MASKS.keys())
@pytest.mark.parametrize("lengths", [(19, 19), (5, 23), (1, 30), (9, 4), (3, 0)], ids=str)
def test_attention_is_its_definition(mask, lengths):
    q, k, v = qkv(*lengths)
    out, lse = mr.ops.attention(q, k, v, return_lse=True, **mask)
    wanted, bound = reference.attention(q, k, v, **mask)
    reference.assert_within(out, wanted["out"], bound["out"], "out")
    reference.assert_within(lse, wanted["lse"], bound["lse"], "lse")


def test_batches_layouts_and_types():
    q, k, v = qkv(6, 6)
    batch = [np.stack([x, x[::-1], x]) for x in (q, k, v)]
    out, lse = mr.ops.attention(*batch, return_lse=True)
    alone, alone_lse = mr.ops.attention(q, k, v, return_lse=True)
    assert out.shape == (3, 6, 4, 16) and lse.shape == (3, 4, 6)
    assert np.array_equal(out[0], alone) and np.array_equal(out[2], alone)
    assert np.array_equal(lse[2], alone_lse) and not np.array_equal(out[1], alone)
    heads_first = mr.ops.attention(*(x.swapaxes(1, 2) for x in batch), layout="bhsd")
    assert np.array_equal(heads_first.swapaxes(1, 2), out)
    halves = [x.astype(np.float16) for x in (q, k, v)]
    half = mr.ops.attention(*halves)
    assert half.dtype == np.float16
    assert np.array_equal(half, mr.ops.attention(*(x.astype(np.float32) for x in halves)).astype(
        np.float16))
    assert np.array_equal(mr.ops.attention(q, k, v, scale=0.5),
                          mr.ops.attention(q * 2, k, v, scale=0.25))


def test_a_packed_batch_is_its_sequences():
    lengths_q, lengths_k = [3, 0, 7, 1], [3, 2, 9, 8]
    cu_q, cu_k = (np.cumsum([0, *x]).astype(np.int32) for x in (lengths_q, lengths_k))
    q, k, v = qkv(cu_q[-1] + 2, cu_k[-1])  # two tokens belong to no sequence
    out, lse = mr.ops.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k.astype(np.int64),
                                return_lse=True)
    for i in range(4):
        rows, columns = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        alone, alone_lse = mr.ops.attention(q[rows], k[columns], v[columns], return_lse=True)
        assert np.array_equal(out[rows], alone) and np.array_equal(lse[:, rows], alone_lse)
    assert not out[-2:].any()


def test_arrays_are_read_where_they_lie(monkeypatch):
    fused = drawn(7, 6, 16)
    parts = fused[:, :2], fused[:, 2:4], fused[:, 4:]  # of one projection: tokens are 96 apart
    wanted = mr.ops.attention(*(x.copy() for x in parts))
    fused.flags.writeable = False

    def copied(*_):
        raise AssertionError("an array was copied")

    monkeypatch.setattr(_ops_numpy.np, "ascontiguousarray", copied)
    assert np.array_equal(mr.ops.attention(*parts), wanted)
    monkeypatch.undo()
    # Layouts that kernels cannot read are copied.
    odd = [np.repeat(x, 2, axis=2)[..., ::2] for x in parts]
    assert np.array_equal(mr.ops.attention(*odd), wanted)
    raw = np.empty(parts[0].size * 4 + 1, np.uint8)[1:].view(np.float32)  # misaligned
    raw[:] = parts[0].ravel()
    assert np.array_equal(mr.ops.attention(raw.reshape(parts[0].shape), *parts[1:]), wanted)


class Exported:
    """A tensor of a library that only supports DLPack."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack__(self, **given):
        return self.array.__dlpack__(**given)

    def __dlpack_device__(self):
        return (self.device, 0)


def test_whatever_has_dlpack():
    q, k, v = qkv(5, 5)
    out = mr.ops.attention(*(Exported(x) for x in (q, k, v)))
    assert np.array_equal(out, mr.ops.attention(q, k, v))
    ids, p, conf = mr.ops.sample(Exported(drawn(2, 50)), temperature=0)
    assert ids.tolist() == drawn(2, 50).argmax(1).tolist()


class Foreign(Exported):
    """Of a type unknown to numpy."""

    def __dlpack__(self, **_):
        raise BufferError("no such type")


def test_what_numpy_cannot_read():
    q = Foreign(drawn(5, 4, 16))
    with pytest.raises(mr.UsageError, match=r"q: numpy cannot .* Foreign .*no such type.*bfloat16"):
        mr.ops.attention(q, q, q)


def test_rows_without_a_token_are_no_matter_of_files():
    for bad in (np.nan, -np.inf):
        with pytest.raises(mr.InputError, match="logit.*; look for") as caught:
            mr.ops.sample(np.full((2, 9), bad, np.float32))
        assert "file" not in str(caught.value) and "--" not in str(caught.value)


def test_register_transformers_wants_torch(script):
    done = script("""
import sys, millrace as mr
sys.modules["torch"] = None  # as where it is not installed
try:
    mr.ops.register_transformers()
except ImportError as error:
    assert "wants torch" in str(error) and "transformers 4.53" in str(error), error
else:
    raise AssertionError
""")
    assert done.returncode == 0, done.stderr


def test_memory_of_a_gpu_wants_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    q, k, v = (Exported(x, device=2) for x in qkv(5, 5))
    for call in (lambda: mr.ops.attention(q, k, v), lambda: mr.ops.sample(q),
                 lambda: mr.ops.layernorm_residual(q, q, q)):
        with pytest.raises(mr.UsageError, match="want torch"):
            call()


@pytest.mark.parametrize("call, error, said", [
    (lambda q, k, v: mr.ops.attention([1], k, v), TypeError, "not list"),
    (lambda q, k, v: mr.ops.attention(q, None, v), TypeError, "not NoneType"),
    (lambda q, k, v: mr.ops.attention(q.astype(float), k.astype(float), v.astype(float)),
     mr.UsageError, "float64"),
    (lambda q, k, v: mr.ops.attention(q.astype(np.float16), k, v), mr.UsageError, "one type"),
    (lambda q, k, v: mr.ops.attention(q.astype(">f4"), k.astype(">f4"), v.astype(">f4")),
     mr.UsageError, ">f4"),
    (lambda q, k, v: mr.ops.attention(q[0], k, v), mr.UsageError, "tokens, heads, head_dim"),
    (lambda q, k, v: mr.ops.attention(q, k, v[:-1]), mr.UsageError, "one shape"),
    (lambda q, k, v: mr.ops.attention(q, k[..., :8], v[..., :8]), mr.UsageError, "one head_dim"),
    (lambda q, k, v: mr.ops.attention(q[..., :7], k[..., :7], v[..., :7]), mr.UsageError,
     "multiple of 8"),
    (lambda q, k, v: mr.ops.attention(q[:, :3], k, v), mr.UsageError, "multiple of the 2"),
    (lambda q, k, v: mr.ops.attention(q[:, :0], k[:, :0], v[:, :0]), mr.UsageError, "heads"),
    (lambda q, k, v: mr.ops.attention(q[None], k[None].repeat(2, 0), v[None].repeat(2, 0)),
     mr.UsageError, "batch of 1"),
    (lambda q, k, v: mr.ops.attention(q, k, v, window=-1), mr.UsageError, "window = -1"),
    (lambda q, k, v: mr.ops.attention(q, k, v, window=2**31), mr.UsageError, "window"),
    (lambda q, k, v: mr.ops.attention(q, k, v, window="3"), TypeError, "window = '3'"),
    (lambda q, k, v: mr.ops.attention(q, k, v, sinks=2), mr.UsageError, "give a window"),
    (lambda q, k, v: mr.ops.attention(q, k, v, block=4, causal=False), mr.UsageError, "causal"),
    (lambda q, k, v: mr.ops.attention(q, k, v, before=True), mr.UsageError, "give block"),
    (lambda q, k, v: mr.ops.attention(q, k, v, origin=3), mr.UsageError, "origin = 3"),
    (lambda q, k, v: mr.ops.attention(q, k, v, scale=-1), mr.UsageError, "scale"),
    (lambda q, k, v: mr.ops.attention(q, k, v, scale=float("nan")), mr.UsageError, "scale"),
    (lambda q, k, v: mr.ops.attention(q, k, v, scale=0.0), mr.UsageError, "scale = 0.0"),
    (lambda q, k, v: mr.ops.attention(q, k, v, scale=1e60), mr.UsageError, "float32"),
    (lambda q, k, v: mr.ops.attention(q, k, v, causal="no"), TypeError, "causal = 'no'"),
    (lambda q, k, v: mr.ops.attention(q, k, v, block=2, before=2), TypeError, "before = 2"),
    (lambda q, k, v: mr.ops.attention(q, k, v, layout="bsdh"), mr.UsageError, "layout"),
    (lambda q, k, v: mr.ops.attention(q, k, v, layout="bhsd"), mr.UsageError, "bhsd"),
    (lambda q, k, v: mr.ops.attention(q, k, v, max_seqlen=4), mr.UsageError, "cu_seqlens"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens_q=[0, 5]), mr.UsageError, "together"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=[0, 9]), mr.UsageError, "tokens"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=[0, 2**32 + 5]), mr.UsageError,
     "4294967301"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=[1, 5]), mr.UsageError, "must be 0"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=[0, 4, 2]), mr.UsageError, "rise"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=[]), mr.UsageError, "cu_seqlens"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=[0.0, 5.0]), mr.UsageError, "whole"),
    (lambda q, k, v: mr.ops.attention(q[None], k[None], v[None], cu_seqlens=[0, 5]), mr.UsageError,
     "one after another"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, k, q[0, 0]), mr.UsageError, "one shape"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, q, q[0, 0, :8]), mr.UsageError, "weight"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, q, q[0, 0], q[0]), mr.UsageError, "bias"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, q, q[0, 0], eps="x"), TypeError, "eps"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, q, q[0, 0], eps=-1), mr.UsageError, "eps = -1"),
    (lambda q, k, v: mr.ops.rmsnorm_residual(q, q, q[0, 0], np.nan), mr.UsageError, "eps = nan"),
    (lambda q, k, v: mr.ops.rmsnorm_residual(q, q.astype(np.float16), q[0, 0]), mr.UsageError,
     "residual is float16"),
    (lambda q, k, v: mr.ops.sample(q.astype(int)), mr.UsageError, "int64"),
    (lambda q, k, v: mr.ops.sample(q[..., :0]), mr.UsageError, "vocab"),
    (lambda q, k, v: mr.ops.sample(q, temperature=-1), mr.UsageError, "temperature"),
    (lambda q, k, v: mr.ops.sample(q, top_k=-1), mr.UsageError, "top_k"),
    (lambda q, k, v: mr.ops.sample(q, top_k=1.5), TypeError, "top_k"),
    (lambda q, k, v: mr.ops.sample(q, top_p=2), mr.UsageError, "top-p"),
    (lambda q, k, v: mr.ops.sample(q, seed=-1), mr.UsageError, "seed"),
    (lambda q, k, v: mr.ops.sample(q, seed=2**63), mr.UsageError, "seed = 9223372036854775808"),
    (lambda q, k, v: mr.ops.sample(q, seed=np.full(20, 2**63, np.uint64)), mr.UsageError, "int64"),
    (lambda q, k, v: mr.ops.sample(q, seed=[1, 2]), mr.UsageError, "seed has 2 entries"),
    (lambda q, k, v: mr.ops.sample(q * np.nan), mr.InputError, "not a number"),
    (lambda q, k, v: mr.ops.sample(q - np.inf), mr.InputError, "minus infinity"),
    (lambda q, k, v: mr.ops.set_threads(-1), mr.UsageError, "threads"),
    (lambda q, k, v: mr.ops.set_threads(1.5), TypeError, "threads = 1.5"),
])
def test_what_cannot_be(call, error, said):
    with pytest.raises(error, match=said):
        call(*qkv(5, 5))


@pytest.mark.parametrize("shape", [(3, 5, 24), (1, 1), (40, 257), (0, 8)], ids=str)
@pytest.mark.parametrize("kind", ["layer", "layer without bias", "rms"])
def test_norms(shape, kind):
    x, residual = drawn(*shape), drawn(*shape, seed=1)
    weight, bias = drawn(shape[-1], seed=2), drawn(shape[-1], seed=3)
    if kind == "rms":
        y, s = mr.ops.rmsnorm_residual(x, residual, weight, 1e-3, return_sum=True)
        assert np.array_equal(y, mr.ops.rmsnorm_residual(x, residual, weight, 1e-3))
    else:
        more = (bias,) if kind == "layer" else (None,)
        y, s = mr.ops.layernorm_residual(x, residual, weight, *more, 1e-3, return_sum=True)
        assert np.array_equal(y, mr.ops.layernorm_residual(x, residual, weight, *more, 1e-3))
    assert np.array_equal(s, x + residual)
    s = s.astype(np.float64)
    mean = s.mean(-1, keepdims=True) if kind != "rms" else 0
    std = np.sqrt(((s - mean) ** 2).mean(-1, keepdims=True) + 1e-3)
    wanted = (s - mean) / std * weight + (bias if kind == "layer" else 0)
    # Mean and variance are sums over the columns; errors are relative to the largest value of a
    # row.
    size = (abs(s).max(-1, keepdims=True, initial=0) / std + 1) * abs(weight) + abs(bias)
    assert (abs(y - wanted) <= (shape[-1] + 8) * 2.0**-24 * size).all()


def test_a_norm_is_that_of_the_rounded_sum():
    x, weight = drawn(4, 64, dtype=np.float16), drawn(64, seed=2, dtype=np.float16)
    residual = 100 * drawn(4, 64, seed=1, dtype=np.float16)
    zero = np.zeros_like(x)
    y, s = mr.ops.rmsnorm_residual(x, residual, weight, return_sum=True)
    assert np.array_equal(s, x + residual)
    assert np.array_equal(y, mr.ops.rmsnorm_residual(s, zero, weight))
    assert not np.array_equal(y, mr.ops.rmsnorm_residual(x, residual, weight))  # the exact sum


def test_sample_is_that_of_the_model(model):
    ids = model.tokenize("Once upon a time there was")
    rows = model.logits(ids)
    for options in ({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
                    {"temperature": 1.3, "top_k": 0, "top_p": 0.7, "min_p": 0.0},
                    {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}):
        for seed in range(5):
            text = model.generate(ids, max_tokens=1, seed=seed, ignore_eos=True, **options)
            drawn_ids, p, conf = mr.ops.sample(rows[-1], seed=seed, position=len(ids), **options)
            assert drawn_ids.dtype == np.int32 and drawn_ids.shape == ()
            assert [int(drawn_ids)] == text.ids
            assert float(conf) == text.confidence[0] and 0 < p <= 1


def test_rows_are_drawn_by_themselves():
    rows = drawn(33, 1000) * 3
    ids, p, conf = mr.ops.sample(rows, 0.8, 50, 0.9, seed=7, position=3)
    for i in (0, 5, 32):
        alone = mr.ops.sample(rows[i], 0.8, 50, 0.9, seed=7 + i, position=3)
        assert [float(x) for x in alone] == [float(x[i]) for x in (ids, p, conf)]
    again = mr.ops.sample(rows.reshape(3, 11, 1000), 0.8, 50, 0.9, seed=np.arange(33) + 7,
                          position=[3] * 33)
    assert np.array_equal(again[0].ravel(), ids) and again[1].shape == (3, 11)
    assert not np.array_equal(mr.ops.sample(rows, 0.8, 50, 0.9, seed=99)[0], ids)
    assert not np.array_equal(mr.ops.sample(rows)[0], mr.ops.sample(rows)[0])  # random seeds
    assert mr.ops.sample(rows[:0])[0].shape == (0,)


def test_draws_have_the_probabilities_they_say():
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    ids, p, conf = mr.ops.sample(np.broadcast_to(logits, (20000, 4)), top_k=3, seed=1)
    counts = np.bincount(ids, minlength=4)
    for i, share in enumerate([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]):  # five standard deviations
        assert abs(counts[i] - 20000 * share) <= 5 * (20000 * share * (1 - share)) ** 0.5
    assert np.allclose(p[ids == 1], 0.25 / 0.9, rtol=1e-6) and np.allclose(conf[ids == 0], 0.5)


def test_threads_and_forks():
    q, k, v = qkv(64, 64)
    wanted = mr.ops.attention(q, k, v)
    found = []
    workers = [threading.Thread(target=lambda: found.extend(
        np.array_equal(mr.ops.attention(q, k, v), wanted) for _ in range(50))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [True] * 200
    child = os.fork()
    if child == 0:  # the child has no thread of the pool
        os._exit(0 if np.array_equal(mr.ops.attention(q, k, v), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for threads in (1, 3, 0, 2):
        mr.ops.set_threads(threads)
        assert np.array_equal(mr.ops.attention(q, k, v), wanted)


def test_nothing_grows():
    q, k, v = qkv(4, 4)
    x, weight, rows = drawn(4, 16), drawn(16), drawn(2, 30)

    def calls(count):
        for _ in range(count):
            mr.ops.attention(q, k, v)
            mr.ops.layernorm_residual(x, x, weight)
            mr.ops.sample(rows, seed=1)
            try:
                mr.ops.attention(q, k, v, window=-1)
            except mr.UsageError:
                pass

    mr.ops.set_threads(1)
    calls(100)
    gc.collect()
    before = sys.getallocatedblocks(), [sys.getrefcount(a) for a in (q, k, v, x, weight, rows)]
    calls(10000)
    gc.collect()
    after = sys.getallocatedblocks(), [sys.getrefcount(a) for a in (q, k, v, x, weight, rows)]
    # The first ten thousand calls keep about 110 blocks, and later ones none.
    assert after[1] == before[1] and after[0] - before[0] < 2000
