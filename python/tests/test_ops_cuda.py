"""mr.ops on a GPU: streams, graphs, large shapes, memory. The rest is in test_ops_torch.py."""
import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

import millrace as mr  # noqa: E402


def drawn(*shape, dtype=torch.bfloat16, seed=0):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.to("cuda", dtype)


def qkv(batch, tokens, heads, kv_heads, dim, dtype=torch.bfloat16):
    return (drawn(batch, tokens, heads, dim, dtype=dtype),
            drawn(batch, tokens, kv_heads, dim, dtype=dtype, seed=1),
            drawn(batch, tokens, kv_heads, dim, dtype=dtype, seed=2))


def attention_run(q, k, v, dout, **options):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = mr.ops.attention(*leaves, **options)
    return out, *torch.autograd.grad(out, leaves, dout)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(2, 1024, 8, 2, 64), (1, 2048, 4, 4, 128), (3, 777, 4, 2, 96)],
                         ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_large_shapes_against_torch_in_f64(shape, dtype, causal):
    q, k, v = qkv(*shape, dtype=dtype)
    dout = drawn(*q.shape, dtype=dtype, seed=5)
    exact = [x.double().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=causal,
                                                              enable_gqa=True)
    slopes = torch.autograd.grad(wanted, exact, dout.double().transpose(1, 2))
    unit = torch.finfo(dtype).eps
    for made, right in zip(attention_run(q, k, v, dout, causal=causal), (wanted, *slopes)):
        right = right.transpose(1, 2)
        error = (made.double() - right).norm() / right.norm()
        # Rounding of operands and results does not add up: for the norm a few units remain.
        assert error < 2 * unit + 2e-6, float(error / unit)
        assert made.isfinite().all()


def test_long_heads_have_no_gradients():
    q, k, v = qkv(1, 64, 2, 2, 256)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    assert (mr.ops.attention(q, k, v) - wanted).abs().max() < 0.05
    with pytest.raises(mr.UsageError, match="up to 128"):
        mr.ops.attention(q.requires_grad_(), k, v)


def test_the_current_stream():
    """A call waits for earlier work on its stream, and for nothing else."""
    q, k, v = qkv(1, 512, 4, 4, 64)
    weight, rows = drawn(256, dtype=torch.float32), drawn(4, 5000, dtype=torch.float32)
    wanted = attention_run(q, k, v, q)
    x = q.view(512, 256)
    normed, drawn_ids = mr.ops.layernorm_residual(x, x, weight), mr.ops.sample(rows, seed=1)[0]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    late = [torch.zeros_like(a) for a in (q, k, v, rows)]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # so that a call on another stream would read zeros
        for to, of in zip(late, (q, k, v, rows)):
            to.copy_(of)
        made = attention_run(*late[:3], late[0])
        y = mr.ops.layernorm_residual(late[0].view(512, 256), late[0].view(512, 256), weight)
        ids = mr.ops.sample(late[3], seed=1)[0]
        assert not side.query(), "a call waited for the device"
    side.synchronize()
    for a, b in zip((*made, y, ids), (*wanted, normed, drawn_ids)):
        assert torch.equal(a, b)


def captured(function):
    """A graph of function(), and its results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = function()
    return graph, made


@pytest.mark.parametrize("tokens", [100, 3000])
def test_attention_in_a_graph(tokens):
    q, k, v = qkv(2, tokens, 8, 4, 64)
    dout = drawn(*q.shape, seed=5)
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def step():
        out = mr.ops.attention(*leaves, window=64, sinks=4)
        return out, *torch.autograd.grad(out, leaves, dout)

    graph, made = captured(step)
    for seed in (10, 20):
        with torch.no_grad():
            for x in (*leaves, dout):
                x.copy_(drawn(*x.shape, seed=seed))
        graph.replay()
        wanted = attention_run(q, k, v, dout, window=64, sinks=4)
        for a, b in zip(made, wanted):
            assert torch.equal(a, b)


def test_packed_lengths_in_a_graph():
    q, k, v = (x[0] for x in qkv(1, 500, 4, 2, 64))
    bounds = torch.tensor([0, 200, 500], dtype=torch.int32, device="cuda")
    graph, out = captured(lambda: mr.ops.attention(q, k, v, cu_seqlens=bounds, max_seqlen=500))
    for middle in (77, 401):
        bounds[1] = middle  # lengths are read when the graph runs
        graph.replay()
        assert torch.equal(out[:middle], mr.ops.attention(q[:middle], k[:middle], v[:middle]))
        assert torch.equal(out[middle:], mr.ops.attention(q[middle:], k[middle:], v[middle:]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(3, 2560), (2048, 2560), (4096, 1000)], ids=str)
def test_norms_in_a_graph(shape, dtype):
    x, residual = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype, seed=1)
    weight, bias = drawn(shape[-1], dtype=dtype), drawn(shape[-1], dtype=dtype, seed=1)
    graph, y = captured(lambda: mr.ops.layernorm_residual(x, residual, weight, bias))
    for seed in (10, 20):
        for a in (x, residual, weight, bias):  # weights are also read when the graph runs
            a.copy_(drawn(*a.shape, dtype=dtype, seed=seed))
        graph.replay()
        assert torch.equal(y, mr.ops.layernorm_residual(x, residual, weight, bias))
        exact = torch.nn.functional.layer_norm(x.double() + residual, shape[-1:], weight.double(),
                                               bias.double())
        unit = torch.finfo(dtype).eps
        assert (y - exact).norm() < (unit + 2e-6) * exact.norm()


def test_sampling_in_a_graph():
    rows = 3 * drawn(32, 151936, dtype=torch.float32)
    position = torch.zeros(32, dtype=torch.int64, device="cuda")
    seeds = torch.arange(32, device="cuda") + 5

    def step():
        made = mr.ops.sample(rows, 0.8, 50, 0.9, seed=seeds, position=position)
        position.add_(1)
        return made

    graph, (ids, p, conf) = captured(step)
    for _ in range(3):
        at = int(position[0])
        graph.replay()
        wanted = mr.ops.sample(rows.cpu().numpy(), 0.8, 50, 0.9, seed=5, position=at)
        assert np.array_equal(ids.cpu(), wanted[0])
        assert np.allclose(p.cpu(), wanted[1], rtol=1e-5)
        assert np.allclose(conf.cpu(), wanted[2], rtol=1e-5)


def test_nothing_waits():
    q, k, v = qkv(1, 128, 4, 4, 64)
    x, w = drawn(64, 256), drawn(256)
    rows = drawn(4, 500, dtype=torch.float32)
    bounds = torch.tensor([0, 60, 128], dtype=torch.int32, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        attention_run(q, k, v, q)
        mr.ops.attention(q[0], k[0], v[0], cu_seqlens=bounds)
        leaves = [a.clone().requires_grad_() for a in (x, x, w, w)]
        mr.ops.layernorm_residual(*leaves).sum().backward()
        mr.ops.sample(rows, 0.8, 50, 0.9, seed=3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_row_without_a_token_is_no_reason_to_stop():
    rows = drawn(3, 500, dtype=torch.float32)
    rows[1, 7] = float("nan")
    rows[2] = -float("inf")
    ids, p, conf = mr.ops.sample(rows, seed=1)
    assert ids.tolist()[1:] == [0, 0] and p.tolist()[1:] == [0, 0] and 0 < p[0] <= 1


def test_tensors_of_two_devices():
    q, k, v = qkv(1, 16, 2, 2, 64)
    with pytest.raises(mr.UsageError, match="k lies on cpu"):
        mr.ops.attention(q, k.cpu(), v)
    with pytest.raises(mr.UsageError, match="weight lies on cpu"):
        mr.ops.layernorm_residual(q, q, drawn(64).cpu())
    with pytest.raises(mr.UsageError, match="cu_seqlens"):
        mr.ops.attention(q[0], k[0], v[0], cu_seqlens=torch.tensor([0, 16]))
    if torch.cuda.device_count() > 1:
        with pytest.raises(mr.DeviceError, match="one GPU per process"):
            mr.ops.attention(*(x.to("cuda:1") for x in (q, k, v)))


def test_what_else_speaks_dlpack():
    class Exported:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **given):
            return self.x.__dlpack__(**given)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    q, k, v = qkv(1, 16, 2, 2, 64)
    out = mr.ops.attention(*(Exported(x) for x in (q, k, v)))
    assert torch.equal(out, mr.ops.attention(q, k, v))


def test_memory_is_given_back():
    def step():
        q, k, v = (x.requires_grad_() for x in qkv(2, 512, 8, 8, 64))
        mr.ops.attention(q, k, v).sum().backward()
        x = drawn(512, 1024).requires_grad_()
        mr.ops.layernorm_residual(x, x, drawn(1024)).sum().backward()
        mr.ops.sample(drawn(4, 50000, dtype=torch.float32), seed=1)

    step()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        step()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
