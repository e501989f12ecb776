"""mr.ops on torch's tensors: gradients that could be silently wrong, and their types."""
import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402
from torch_cases import device, drawn  # noqa: E402, F401


def qkv(device):
    return [drawn(7, 2, 16, seed=i, device=device) for i in range(3)]


def calls(device):
    """f(x) with a tensor result, for every op that has gradients."""
    _, k, v = qkv(device)
    w = drawn(16, device=device)
    cu = torch.tensor([0, 3, 7], dtype=torch.int32, device=device)
    yield lambda x: mr.ops.attention(x, k, v)
    yield lambda x: mr.ops.attention(x, k, v, cu_seqlens=cu)
    yield lambda x: mr.ops.attention(x, k, v, return_lse=True)[0]
    yield lambda x: mr.ops.layernorm_residual(x, k, w)
    yield lambda x: mr.ops.rmsnorm_residual(x, v, w, return_sum=True)[1]
    yield lambda x: mr.ops.rmsnorm_residual(k, v, x[0, 0])


def test_second_derivatives_are_refused(device):
    """As for a gradient penalty, whose own gradient would miss the part through the op."""
    for call in calls(device):
        x = qkv(device)[0].requires_grad_()
        out = call(x)
        with pytest.raises(NotImplementedError, match="no second derivatives"):
            torch.autograd.grad(out.sum(), x, create_graph=True)  # that of out is a constant
        torch.autograd.grad(call(x).sum(), x)


def test_what_was_changed_in_place_is_an_error(device):
    q, k, v = qkv(device)
    q.requires_grad_()
    for batch in ((), (1,)):
        out, lse = mr.ops.attention(*(x.view(*batch, 7, 2, 16) for x in (q, k, v)), return_lse=True)
        lse.exp_()
        with pytest.raises(RuntimeError, match="inplace"):
            out.sum().backward()
    cu = torch.tensor([0, 3, 7], dtype=torch.int32, device=device)
    out = mr.ops.attention(q, k, v, cu_seqlens=cu)
    cu[1] = 5
    with pytest.raises(RuntimeError, match="inplace"):
        out.sum().backward()


def test_forward_mode_and_transforms_are_refused(device):
    import torch.autograd.forward_ad as forward_ad

    for call in calls(device):
        x = qkv(device)[0]
        with forward_ad.dual_level():
            call(x)  # without a tangent it works
            with pytest.raises(NotImplementedError, match="forward-mode"):
                call(forward_ad.make_dual(x, torch.ones_like(x)))
        with pytest.raises(NotImplementedError, match="torch.func.grad"):
            torch.func.grad(lambda a: call(a).square().sum())(x)  # noqa: B023
    q, k, v = qkv(device)
    several = torch.stack([q, 2 * q])
    made = torch.vmap(lambda x: mr.ops.attention(x, k, v))(several)
    assert torch.equal(made[1], mr.ops.attention(several[1], k, v))


def test_negative_views(device):
    """Tensors with a lazy negation: the imaginary part of a conjugate."""
    z = torch.view_as_complex(drawn(7, 2, 16, 2, device=device))
    x = z.conj().imag
    plain = -z.imag.contiguous()
    assert x.is_neg() and not plain.is_neg()
    q, k, v = qkv(device)
    w = drawn(16, device=device)
    assert torch.equal(mr.ops.attention(x, k, v), mr.ops.attention(plain, k, v))
    assert torch.equal(mr.ops.rmsnorm_residual(x, k, w), mr.ops.rmsnorm_residual(plain, k, w))
    assert torch.equal(mr.ops.sample(x, seed=1)[0], mr.ops.sample(plain, seed=1)[0])
    q.requires_grad_()
    first, = torch.autograd.grad(mr.ops.attention(q, k, v), q, x)
    assert torch.equal(first, torch.autograd.grad(mr.ops.attention(q, k, v), q, plain)[0])


def test_gradients_have_the_types_of_what_they_are_for(device):
    """Sums over the rows are f32, and each is rounded only to its own type."""
    x = drawn(5, 24, device=device)
    weight = torch.ones(24, dtype=torch.float16, device=device).requires_grad_()
    bias = torch.zeros(24, device=device).requires_grad_()

    def gradients(call):
        y = call(x, x, weight, bias)
        return torch.autograd.grad(y, (weight, bias), torch.full_like(y, 1.2345678))

    compiled = torch.compile(lambda *a: mr.ops.layernorm_residual(*a), backend="aot_eager",
                             fullgraph=True)
    for call in (mr.ops.layernorm_residual, compiled):
        dweight, dbias = gradients(call)
        assert dweight.dtype == torch.float16 and dbias.dtype == torch.float32
        assert (dbias - 5 * 1.2345678).abs().max() <= 8 * 2.0**-22


def test_a_norm_is_that_of_the_rounded_sum(device):
    for dtype in (torch.float16, torch.bfloat16):
        x, weight = drawn(4, 64, device=device, dtype=dtype), drawn(64, device=device, dtype=dtype)
        residual = 100 * drawn(4, 64, seed=1, device=device, dtype=dtype)
        y, s = mr.ops.layernorm_residual(x, residual, weight, return_sum=True)
        again = mr.ops.layernorm_residual(s, torch.zeros_like(s), weight)
        unit = torch.finfo(dtype).eps  # another sum of squares, and one rounding
        assert ((y - again).abs() <= unit * again.abs()).all()
        assert not torch.equal(y, mr.ops.layernorm_residual(x, residual, weight))  # the exact sum


@pytest.mark.parametrize("call, said", [
    (lambda q: mr.ops.attention(q, q[..., :8], q), "one shape"),
    (lambda q: mr.ops.attention(q, q[:, :, :1].half(), q), "one type"),
    (lambda q: mr.ops.attention(q[..., :4], q[..., :4], q[..., :4]), "multiple of 8"),
    (lambda q: mr.ops.attention(q, q, q, window=-1), "window"),
    (lambda q: mr.ops.layernorm_residual(q, q[:1], q[0, 0]), "one shape"),
    (lambda q: mr.ops.rmsnorm_residual(q, q, q[0, 0, :3]), "one entry per column"),
    (lambda q: mr.ops.sample(q[..., :0], seed=1), "vocab"),
])
def test_shapes_of_tensors_without_memory(call, said):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with pytest.raises(mr.UsageError, match=said):
        call(torch.empty(5, 2, 16, device="meta"))
    with FakeTensorMode(), pytest.raises(mr.UsageError, match=said):
        call(torch.empty(5, 2, 16))
