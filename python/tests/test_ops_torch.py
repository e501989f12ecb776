"""mr.ops on torch's tensors: values and gradients against f64, the compiler, errors, memory growth.
Tests also run on a GPU if there is one; test_ops_cuda.py has streams and graphs."""
import gc
import sys
import threading

import numpy as np
import ops_reference as reference
import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402
from torch_cases import device, drawn  # noqa: E402, F401

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def qkv(queries, keys, heads=4, kv_heads=2, dim=16, batch=(), **given):
    return (drawn(*batch, queries, heads, dim, **given),
            drawn(*batch, keys, kv_heads, dim, seed=1, **given),
            drawn(*batch, keys, kv_heads, dim, seed=2, **given))


def f64(x):
    return x.detach().cpu().double().numpy()


def check(made, wanted, bound, names):
    for name in names:
        reference.assert_within(f64(made[name]), wanted[name], bound[name], name)


def run(q, k, v, dout, **options):
    """out, lse and gradients of one call."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = mr.ops.attention(*leaves, return_lse=True, **options)
    dq, dk, dv = torch.autograd.grad(out, leaves, dout)
    assert out.dtype == q.dtype and lse.dtype == torch.float32 and not lse.requires_grad
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


ALL = ("out", "lse", "dq", "dk", "dv")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mask", reference.MASKS.values(), ids=reference.MASKS.keys())
def test_attention_and_its_gradients(device, mask, dtype):
    for (queries, keys), dim in (((19, 19), 16), ((6, 23), 64), ((1, 30), 128), ((9, 4), 8),
                                 ((130, 150), 96)):
        q, k, v = qkv(queries, keys, dim=dim, device=device, dtype=TYPES[dtype])
        dout = drawn(queries, 4, dim, seed=5, device=device, dtype=TYPES[dtype])
        made = run(q, k, v, dout, **mask)
        wanted, bound = reference.attention(f64(q), f64(k), f64(v), f64(dout), dtype=dtype, **mask)
        check(made, wanted, bound, ALL)


def test_batches_and_layouts(device):
    q, k, v = qkv(7, 9, batch=(3,), device=device)
    dout = drawn(3, 7, 4, 16, seed=5, device=device)
    made = run(q, k, v, dout, window=4, sinks=1)
    for i in range(3):
        alone = run(q[i], k[i], v[i], dout[i], window=4, sinks=1)
        for name in ALL:
            assert torch.equal(made[name][i], alone[name]), name
    # torch's own layout, as views of ours, as separate memory, and with one key head per query
    # head.
    turned = [x.transpose(1, 2) for x in (q, k, v, dout)]
    for given in (turned, [x.contiguous() for x in turned]):
        again = run(*given, window=4, sinks=1, layout="bhsd")
        assert torch.equal(again["lse"], made["lse"])
        for name in ("out", "dq", "dk", "dv"):
            assert torch.equal(again[name].transpose(1, 2), made[name]), name
    wide = [k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)]
    made = run(q, *wide, dout)
    again = run(*(x.transpose(1, 2).contiguous() for x in (q, *wide, dout)), layout="bhsd")
    assert torch.equal(again["lse"], made["lse"])
    for name in ("out", "dq", "dk", "dv"):
        assert torch.equal(again[name].transpose(1, 2), made[name]), name


def test_it_is_torchs_own_attention(device):
    q, k, v = qkv(33, 33, batch=(2,), dim=64, device=device)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).double() for x in (q, k, v)), is_causal=True, enable_gqa=True)
    made = mr.ops.attention(*(x.transpose(1, 2) for x in (q, k, v)), layout="bhsd")
    assert (made - wanted).abs().max() < 1e-5


def test_a_packed_batch_is_its_sequences(device):
    cu_q, cu_k = ([0, 3, 3, 10, 11], [0, 3, 5, 14, 22])
    q, k, v = qkv(13, 24, device=device)  # two tokens of both belong to no sequence
    dout = drawn(13, 4, 16, seed=5, device=device)
    bounds = {"cu_seqlens_q": torch.tensor(cu_q, dtype=torch.int32, device=device),
              "cu_seqlens_k": torch.tensor(cu_k, device=device)}  # int64
    for more in ({}, {"max_seqlen": 9}, {"max_seqlen_q": 7, "max_seqlen_k": 9}):
        made = run(q, k, v, dout, **bounds, **more)
        for i in range(4):
            rows, columns = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
            alone = run(q[rows], k[columns], v[columns], dout[rows])
            for name in ALL:
                part = (made[name][:, rows] if name == "lse"
                        else made[name][rows if name in ("out", "dq") else columns])
                assert torch.equal(part, alone[name]), name
        assert not made["out"][11:].any() and not made["dq"][11:].any()
        assert not made["dk"][22:].any() and not made["dv"][22:].any()


def test_tensors_that_lie_in_some_way(device):
    """Parts of one projection are read in place; other layouts are copied, and give the same."""
    fused = drawn(2, 9, 8, 16, device=device)
    parts = fused[:, :, :4], fused[:, :, 4:6], fused[:, :, 6:]
    dout = drawn(2, 9, 4, 16, seed=5, device=device)
    wanted = run(*(x.clone() for x in parts), dout)
    odd = [torch.zeros(x.numel() + 1, device=device)[1:].view(x.shape).copy_(x) for x in parts]
    for given in (parts, [x.transpose(0, 1).contiguous().transpose(0, 1) for x in parts],
                  [x.repeat_interleave(2, 3)[..., ::2] for x in parts], odd):
        made = run(*given, dout)
        for name in ALL:
            assert torch.equal(made[name], wanted[name]), name
    # Gradients without their own memory: of a sum, and of every second column.
    leaves = [x.detach().requires_grad_() for x in parts]
    mr.ops.attention(*leaves).sum().backward()
    ones = run(*parts, torch.ones_like(dout))
    assert torch.equal(leaves[1].grad, ones["dk"])


def test_only_some_want_gradients(device):
    q, k, v = qkv(5, 5, device=device)
    k.requires_grad_()
    mr.ops.attention(q, k, v).sum().backward()
    assert q.grad is None and v.grad is None and k.grad.abs().sum() > 0
    with torch.no_grad():
        assert not mr.ops.attention(q, k, v).requires_grad
    with torch.inference_mode():
        mr.ops.attention(q, k, v)


def test_empty_tensors(device):
    for queries, keys, batch in ((0, 4, ()), (4, 0, ()), (0, 0, (2,)), (3, 3, (0,))):
        q, k, v = qkv(queries, keys, batch=batch, device=device)
        made = run(q, k, v, torch.ones_like(q))
        assert made["out"].shape == q.shape and not made["out"].any()
        assert all(not made[name].any() for name in ("dq", "dk", "dv"))


# ---- norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["layer", "layer without bias", "rms"])
@pytest.mark.parametrize("types", [("float32", "float32"), ("float16", "float16"),
                                   ("bfloat16", "bfloat16"), ("bfloat16", "float32")], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 40), (2, 257), (2048, 1024), (0, 16)], ids=str)
def test_norms_and_their_gradients(device, kind, types, shape):
    if shape[0] == 2048 and device == "cpu" and types[0] != "float16":
        pytest.skip("the size is about kernels of a GPU")
    x_type, residual_type = (TYPES[name] for name in types)
    cols = shape[-1]
    given = [drawn(*shape, device=device, dtype=x_type),
             drawn(*shape, seed=1, device=device, dtype=residual_type),
             drawn(cols, seed=2, device=device, dtype=x_type),
             drawn(cols, seed=3, device=device, dtype=x_type)]
    dy, ds = (drawn(*shape, seed=i, device=device, dtype=t) for i, t in ((7, x_type),
                                                                        (8, residual_type)))
    leaves = [a.detach().requires_grad_() for a in given]
    exact = [a.detach().double().cpu().requires_grad_() for a in given]
    s64 = exact[0] + exact[1]
    if kind == "rms":
        call = lambda *a, **o: mr.ops.rmsnorm_residual(*a[:3], 1e-3, **o)  # noqa: E731
        y64 = s64 / (s64.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * exact[2]
    else:
        biased = kind == "layer"
        call = lambda *a, **o: mr.ops.layernorm_residual(  # noqa: E731
            *a[:3], a[3] if biased else None, 1e-3, **o)
        y64 = torch.nn.functional.layer_norm(s64, (cols,), exact[2], exact[3] if biased else None,
                                             1e-3)
    y, s = call(*leaves, return_sum=True)
    assert y.dtype == x_type and s.dtype == residual_type
    assert torch.equal(s, (given[0] + given[1]).to(residual_type))
    made = torch.autograd.grad((y, s), leaves, (dy, ds), allow_unused=True)
    wanted = torch.autograd.grad((y64, s64), exact, (dy.double().cpu(), ds.double().cpu()),
                                 allow_unused=True)
    unit = max(reference.EPSILON[name] for name in types)
    sums = reference.EPSILON["float32"]
    rows = max(1, s.numel() // cols)
    std = (s64 - (0 if kind == "rms" else s64.mean(-1, keepdim=True))).pow(2).mean(-1).sqrt()
    # s is rounded once, which affects the whole row; h = (s - mean) / std is at most this.
    height = 0 if not s.numel() else float((s64.abs().amax(-1) / (std + 0.03)).max().detach())
    loss = (8 * unit + (cols + 8) * sums) * (1 + height) ** 2
    top = [float(a.detach().abs().max()) if a.numel() else 0 for a in (*exact, dy, ds)]

    def near(a, b, size):
        assert a.shape == b.shape
        error = (a.double().cpu() - b).abs()
        assert not error.numel() or float(error.max()) <= loss * size

    near(y, y64, top[2] + top[3])
    rstd = float((1 / (std + 1e-4)).max().detach()) if s.numel() else 0
    for a, b in zip(made[:2], wanted[:2]):
        near(a, b, top[4] * top[2] * rstd * 4 + top[5])
    for a, b in zip(made[2:], wanted[2:]):
        if a is None or b is None:
            assert a is None and b is None
        else:  # a sum over the rows
            near(a, b, top[4] * (rows**0.5 + rows * sums / unit + 1))
    # Without gradients and without the sum: the same, except for the sum's rounding.
    near(call(*given), y64, top[2] + top[3])


def test_norm_gradients_through_one_result(device):
    x, weight = drawn(4, 32, device=device), drawn(32, seed=1, device=device)
    for which in (0, 1):
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        mr.ops.layernorm_residual(a, b, weight, return_sum=True)[which].square().sum().backward()
        c = x.clone().requires_grad_()
        s = c + x
        (s if which else torch.nn.functional.layer_norm(s, (32,), weight)).square().sum().backward()
        assert torch.allclose(a.grad, c.grad, atol=1e-4) and torch.equal(a.grad, b.grad)


# ---- sampling -----------------------------------------------------------------------------------


def test_sample(device):
    rows = 3 * drawn(33, 5000)
    for options in ({"temperature": 0}, {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
                    {"top_p": 0.5}, {"min_p": 0.1, "temperature": 2.0}):
        wanted = mr.ops.sample(rows.numpy(), seed=11, position=4, **options)
        made = mr.ops.sample(rows.to(device), seed=11, position=4, **options)
        assert [x.dtype for x in made] == [torch.int32, torch.float32, torch.float32]
        assert np.array_equal(made[0].cpu(), wanted[0])
        for a, b in zip(made[1:], wanted[1:]):
            assert np.allclose(a.cpu(), b, rtol=1e-5)
        seeds = torch.arange(11, 44, device=device)
        again = mr.ops.sample(rows.to(device), seed=seeds, position=torch.full_like(seeds, 4),
                              **options)
        assert all(torch.equal(a, b) for a, b in zip(again, made))
    halves = rows.to(device, torch.bfloat16)
    assert torch.equal(mr.ops.sample(halves, seed=1)[0], mr.ops.sample(halves.float(), seed=1)[0])
    torch.manual_seed(5)
    first = mr.ops.sample(rows.to(device))[0]
    torch.manual_seed(5)
    assert torch.equal(mr.ops.sample(rows.to(device))[0], first)
    assert mr.ops.sample(rows.to(device).view(3, 11, 5000), seed=1)[0].shape == (3, 11)
    assert mr.ops.sample(rows[:0].to(device))[0].shape == (0,)


# ---- the compiler -------------------------------------------------------------------------------


def attention_samples(device):
    q, k, v = qkv(6, 6, batch=(2,), device=device)
    packed = qkv(9, 9, device=device)
    cu = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    plain = (None, None, 0, 0, True, 0, 0, 0, 0, False, None)
    grad = [x.clone().requires_grad_() for x in (q, k, v)]
    yield q, k, v, *plain
    yield (*grad, *plain)
    yield (*(x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)), *plain)
    yield (*packed, cu, cu, 5, 5, True, 3, 1, 0, 0, False, 0.5)


def test_opcheck(device):
    ops = torch.ops.millrace
    mr.ops.sample(torch.zeros(1, 4))  # registers the ops
    for sample in attention_samples(device):
        torch.library.opcheck(ops.attention.default, sample)
    q, k, v = qkv(6, 6, batch=(2,), device=device)
    rest = (None, None, 0, 0, True, 0, 0, 0, 0, False, None)
    out, lse = ops.attention(q, k, v, *rest)
    torch.library.opcheck(ops.attention_backward.default, (out, q, k, v, out, lse, *rest))
    for dtype in (torch.float32, torch.bfloat16):
        x, w = (drawn(*shape, device=device, dtype=dtype) for shape in ((3, 4, 24), (24,)))
        torch.library.opcheck(ops.norm_residual.default, (x, x + 1, w, None, 1e-5, False))
        grad = [a.clone().requires_grad_() for a in (x, x, w, w)]
        torch.library.opcheck(ops.norm_residual_sum.default, (*grad, 1e-5, True))
        torch.library.opcheck(ops.norm_residual_sum.default, (x, x, w, None, 1e-5, False))
        torch.library.opcheck(ops.norm_residual_backward.default, (x, None, x, w, 1e-5, True, True))
    torch.library.opcheck(ops.sample.default, (drawn(4, 50, device=device), None, None, 0.8, 5, 0.9,
                                               0.0, 7, 0))


def test_compile(device):
    import torch._dynamo.testing

    torch._dynamo.reset()
    backend = "inductor" if device == "cuda" else "aot_eager"  # so that no C++ compiler is needed

    def layer(q, k, v, x, w):
        y = mr.ops.attention(q, k, v, window=3, sinks=1)
        z, s = mr.ops.layernorm_residual(x, x * 2, w, w, 1e-5, return_sum=True)
        h = mr.ops.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), layout="bhsd")
        return y.sum() + (z * s).sum() + (h * h).sum() + mr.ops.rmsnorm_residual(x, x, w).sum()

    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for tokens in (6, 9, 12):  # the second size makes it dynamic
        given = [*qkv(tokens, tokens, batch=(2,), device=device), drawn(5, 16, device=device),
                 drawn(16, device=device)]
        both = []
        for function in (layer, compiled):
            leaves = [a.clone().requires_grad_() for a in given]
            out = function(*leaves)
            out.backward()
            both.append([out, *(a.grad for a in leaves)])
        for a, b in zip(*both):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            assert torch.allclose(compiled(*given), layer(*given), rtol=1e-5)
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    draw = torch.compile(lambda x, seed: mr.ops.sample(x, 0.8, 20, 0.9, seed=seed), backend=counter,
                         fullgraph=True)
    rows = drawn(4, 200, device=device)
    for seed in range(5, 15):
        made, wanted = draw(rows, seed), mr.ops.sample(rows, 0.8, 20, 0.9, seed=seed)
        assert all(torch.equal(a, b) for a, b in zip(made, wanted))
    assert counter.frame_count <= 2  # for one seed, then for any


def test_the_first_call_may_be_compiled(script):
    done = script("""
import sys, torch, millrace as mr
assert "millrace._ops_torch" not in sys.modules
f = torch.compile(lambda q: mr.ops.attention(q, q, q), backend="aot_eager", fullgraph=True)
q = torch.randn(1, 4, 2, 8)
for _ in range(3):
    assert torch.equal(f(q), mr.ops.attention(q, q, q))
""")
    assert done.returncode == 0, done.stderr


def test_tensors_without_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = (x.to("meta") for x in qkv(5, 5))
    assert mr.ops.attention(q, k, v).is_meta
    assert mr.ops.layernorm_residual(q, q, q[0, 0]).shape == q.shape
    assert mr.ops.sample(q)[0].shape == (5, 4)
    with FakeTensorMode():
        q, k, v = (torch.empty(5, 2, 8) for _ in range(3))
        out, lse = mr.ops.attention(q, k, v, return_lse=True)
        assert out.shape == (5, 2, 8) and lse.shape == (2, 5)


# ---- what cannot be, threads, growth ------------------------------------------------------------


@pytest.mark.parametrize("call, error, said", [
    (lambda q, k, v: mr.ops.attention(q, k.numpy(), v), TypeError, "k is a tensor"),
    (lambda q, k, v: mr.ops.attention(q, None, v), TypeError, "NoneType"),
    (lambda q, k, v: mr.ops.attention(q.double(), k.double(), v.double()), mr.UsageError,
     "float64"),
    (lambda q, k, v: mr.ops.attention(q.long(), k, v), mr.UsageError, "int64"),
    (lambda q, k, v: mr.ops.attention(q.half(), k, v), mr.UsageError, "one type"),
    (lambda q, k, v: mr.ops.attention(q, k.to("meta"), v), mr.UsageError, "k lies on meta"),
    (lambda q, k, v: mr.ops.attention(q.to_sparse(), k, v), mr.UsageError, "dense"),
    (lambda q, k, v: mr.ops.attention(q[0], k, v), mr.UsageError, "head_dim"),
    (lambda q, k, v: mr.ops.attention(q[..., :4], k[..., :4], v[..., :4]), mr.UsageError,
     "multiple of 8"),
    (lambda q, k, v: mr.ops.attention(q[:, :3], k, v), mr.UsageError, "multiple of the 2"),
    (lambda q, k, v: mr.ops.attention(q, k, v, window=[3]), TypeError, "window"),
    (lambda q, k, v: mr.ops.attention(q, k, v, window=-2), mr.UsageError, "window"),
    (lambda q, k, v: mr.ops.attention(q, k, v, scale=0.0 * float("inf")), mr.UsageError, "scale"),
    (lambda q, k, v: mr.ops.attention(q, k, v, scale=0.0), mr.UsageError, "scale = 0.0"),
    (lambda q, k, v: mr.ops.attention(q, k, v, scale=1e-60), mr.UsageError, "scale = 1e-60"),
    (lambda q, k, v: mr.ops.attention(q, k, v, causal="no"), TypeError, "causal = 'no'"),
    (lambda q, k, v: mr.ops.attention(q, k, v, layout="x"), mr.UsageError, "layout"),
    (lambda q, k, v: mr.ops.attention(q, k, v, layout="bhsd"), mr.UsageError, "bhsd"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=[0, 5]), mr.UsageError, "int32 tensor"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=torch.tensor([0, 9])), mr.UsageError,
     "tokens"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=torch.tensor([0, -4, 5])), mr.UsageError,
     "rise"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=torch.tensor([0, 2**32 + 5])),
     mr.UsageError, "more than there are tokens"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens=torch.tensor([0, 3 - 2**32, 5])),
     mr.UsageError, "rise"),
    (lambda q, k, v: mr.ops.attention(q, k, v, cu_seqlens_k=torch.tensor([0, 5])), mr.UsageError,
     "together"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, k, q[0, 0]), mr.UsageError, "one shape"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, q.bfloat16(), q[0, 0]), mr.UsageError,
     "residual"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, q, None), TypeError, "weight is a tensor"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, q.numpy(), q[0, 0]), TypeError,
     "residual is a tensor"),
    (lambda q, k, v: mr.ops.layernorm_residual(q, q, q[0]), mr.UsageError, "one entry per column"),
    (lambda q, k, v: mr.ops.rmsnorm_residual(q, q, q[0, 0], "x"), TypeError, "eps"),
    (lambda q, k, v: mr.ops.rmsnorm_residual(q, q, q[0, 0], -1e-5), mr.UsageError, "eps = -1e-05"),
    (lambda q, k, v: mr.ops.rmsnorm_residual(q, q, q[0, 0], float("nan")), mr.UsageError,
     "eps = nan"),
    (lambda q, k, v: mr.ops.sample(q.long()), mr.UsageError, "int64"),
    (lambda q, k, v: mr.ops.sample(q, seed=2**63), mr.UsageError, "seed = 9223372036854775808"),
    (lambda q, k, v: mr.ops.sample(q, seed=torch.zeros(3)), mr.UsageError, "seed is a number"),
    (lambda q, k, v: mr.ops.sample(q, temperature=float("nan")), mr.UsageError, "temperature"),
    (lambda q, k, v: mr.ops.sample(q * float("nan")), mr.InputError, "not a number"),
    (lambda q, k, v: mr.ops.sample(torch.tensor(1.0)), mr.UsageError, "vocab"),
])
def test_what_cannot_be(call, error, said):
    with pytest.raises(error, match=said):
        call(*qkv(5, 5))


def test_threads():
    q, k, v = qkv(32, 32)
    wanted = run(q, k, v, torch.ones_like(q))
    found = []

    def work():
        for _ in range(20):
            made = run(q, k, v, torch.ones_like(q))
            found.append(all(torch.equal(made[name], wanted[name]) for name in ALL))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [True] * 80


def test_nothing_grows(device):
    q, k, v = (x.requires_grad_() for x in qkv(4, 4, device=device))
    x = drawn(4, 16, device=device).requires_grad_()
    w, rows = drawn(16, device=device), drawn(2, 30, device=device)

    def calls(count):
        for i in range(count):
            out = mr.ops.attention(q, k, v)
            y = mr.ops.layernorm_residual(x, x, w)
            if i % 10 == 0:
                torch.autograd.grad(out.sum() + y.sum(), (q, x))
            mr.ops.sample(rows, seed=1)
            try:
                mr.ops.attention(q, k, v, window=-1)
            except mr.UsageError:
                pass

    def held():
        gc.collect()
        bytes_ = torch.cuda.memory_allocated() if device == "cuda" else 0
        return ([sys.getrefcount(a) for a in (q, k, v, x, w, rows)], bytes_,
                sys.getallocatedblocks())

    mr.ops.set_threads(1)
    calls(200)
    before = held()
    calls(10000)
    after = held()
    assert after[:2] == before[:2] and after[2] - before[2] < 2000  # of 10,000 calls


def test_many_shapes_are_forgotten():
    from millrace import _ops_torch_attention as inside

    for tokens in range(1, 1500):
        x = torch.zeros(tokens, 1, 8)
        mr.ops.attention(x, x[:1], x[:1])
    assert len(inside._plans) <= 1024
