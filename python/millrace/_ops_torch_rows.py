"""Norms with a residual, and sampling, on torch's tensors in eager mode."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from . import _core
from ._ops_plan import Remembered, draws, epsilon, number, real, wrong
from ._ops_torch_base import (NAMES, PLAIN, by_library, check, compiling, dense, empty, f32,
                              forward_ad, grad_enabled, modes, place_of, refuse_second,
                              refuse_tangents, run, torch, transforms, wide)

if TYPE_CHECKING:
    Function = object
else:
    from torch.autograd import Function

_norms = Remembered()


# ---- norms --------------------------------------------------------------------------------------


def check_norm(x: Any, residual: Any, weight: Any, bias: Any) -> None:
    """Throws what is wrong with the types and shapes."""
    rows = (weight,) if bias is None else (weight, bias)
    check("x residual weight bias", (x, residual, *rows), one_type=False)
    if x.shape != residual.shape or x.dim() < 1 or x.shape[-1] < 1:
        raise wrong(f"x and residual have one shape, [..., columns], not {list(x.shape)} and "
                    f"{list(residual.shape)}")
    if residual.dtype not in (x.dtype, f32):
        raise wrong(f"residual is {residual.dtype}, x is {x.dtype}; it has x's type, or float32")
    for name, row in zip(("weight", "bias"), rows):
        if row.shape != x.shape[-1:]:
            raise wrong(f"{name} has the shape {list(x.shape[-1:])}, one entry per column, not "
                        f"{list(row.shape)}")


class NormPlan:
    """A norm of one shape."""

    __slots__ = ("cuda", "rows", "cols", "x_type", "residual_type", "plain", "weights_fit", "shape",
                 "stride")

    def __init__(self, x: Any, residual: Any, weight: Any, bias: Any) -> None:
        rows = (weight,) if bias is None else (weight, bias)
        check_norm(x, residual, weight, bias)
        self.x_type, self.residual_type = NAMES[x.dtype], NAMES[residual.dtype]
        self.cuda = place_of("x", x)
        self.cols = x.shape[-1]
        self.rows = x.numel() // self.cols
        if max(self.rows, self.cols) >= 1 << 31:
            raise wrong("a norm has less than 2^31 rows and columns")
        self.plain = all(a.is_contiguous() for a in (x, residual, *rows)) and (
            self.cuda or x.dtype == residual.dtype == f32)
        # f32, or the type of the rows if the kernel reads that.
        self.weights_fit = all(a.dtype == f32 for a in rows) or (
            self.cuda and all(a.dtype == x.dtype == residual.dtype for a in rows)
            and _core.norm_takes_weights(self.x_type, self.rows, self.cols))
        self.shape, self.stride = tuple(x.shape), dense(x.shape)


def norm_plan(x: Any, residual: Any, weight: Any, bias: Any) -> NormPlan:
    try:
        key = (x.shape, residual.shape, weight.shape, x.stride(), residual.stride(),
               weight.stride(), x.dtype, residual.dtype, weight.dtype, x.device, residual.device,
               weight.device,
               None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device))
    except (AttributeError, TypeError):
        return NormPlan(x, residual, weight, bias)  # it reports the error
    found: Optional[NormPlan] = _norms.get(key)
    if found is None:
        found = NormPlan(x, residual, weight, bias)
        _norms.keep(key, found)
    return found


def norm_forward(plan: NormPlan, x: Any, residual: Any, weight: Any, bias: Any, eps: float,
                 layer: bool, keep: bool) -> tuple[Any, Any]:
    """y, and s where it is kept or had to be made, else None."""
    types = x.dtype, residual.dtype
    if not plan.plain:
        make = torch.Tensor.contiguous if plan.cuda else wide
        x, residual = make(x), make(residual)
        if keep and not plan.cuda and types[1] != f32:  # y is the norm of the rounded s
            x = (x + residual).to(types[1]).to(f32)
            residual = torch.zeros_like(x)
        weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    at = (x.data_ptr(), residual.data_ptr(), weight.data_ptr(),
          0 if bias is None else bias.data_ptr())
    if not plan.weights_fit or (weight.dtype != f32 and (at[0] | at[1] | at[2] | at[3]) & 15):
        weight, bias = weight.to(f32), None if bias is None else bias.to(f32)
        at = (at[0], at[1], weight.data_ptr(), 0 if bias is None else bias.data_ptr())
    y = empty(plan.cuda, plan.shape, plan.stride, x.dtype)
    s = None
    if keep or not plan.cuda:
        s = empty(plan.cuda, plan.shape, plan.stride, residual.dtype)
    run(plan.cuda, _core.norm_residual, plan.cuda, layer, plan.rows, plan.cols, eps,
        NAMES[x.dtype], NAMES[residual.dtype], NAMES[weight.dtype], *at, y.data_ptr(),
        0 if s is None else s.data_ptr())
    if not plan.cuda and not plan.plain:
        y, s = y.to(types[0]), None if s is None else s.to(types[1])
    return y, s


def norm_backward(dy: Optional[Any], ds: Optional[Any], s: Any, weight: Any, eps: float,
                  layer: bool, bias: bool) -> tuple[Any, Any, Any]:
    """The gradients by s as s is, by weight and bias in f32 (without bias: of no entries)."""
    cuda = place_of("s", s)
    cols = s.shape[-1]
    if dy is None:
        dy = torch.zeros_like(s, memory_format=torch.contiguous_format)
    if cuda:
        dy, rows = dy.contiguous(), s.contiguous()
        if rows.dtype not in (f32, dy.dtype):
            rows = wide(rows)
    else:
        dy, rows = wide(dy), wide(s)
    added = None if ds is None else ds.to(rows.dtype).contiguous()
    dx = empty(cuda, tuple(s.shape), dense(s.shape), rows.dtype)
    sums = torch.zeros(2 * cols, dtype=f32, device=s.device)  # dweight, dbias
    scales = wide(weight)
    room = empty(cuda, (_core.norm_backward_scratch(cols) if cuda else 0,), (1,), torch.uint8)
    at = sums.data_ptr()
    run(cuda, _core.norm_residual_backward, cuda, layer, s.numel() // cols, cols, eps,
        NAMES[dy.dtype], NAMES[rows.dtype], dy.data_ptr(),
        0 if added is None else added.data_ptr(), rows.data_ptr(), scales.data_ptr(),
        dx.data_ptr(), at, at + 4 * cols if bias else 0, room.data_ptr())
    return dx.to(s.dtype), sums[:cols], sums[cols:] if bias else sums[:0]


class NormResidual(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, residual: Any, weight: Any, bias: Any, eps: float, layer: bool,
                plan: NormPlan) -> Any:
        y, s = norm_forward(plan, x, residual, weight, bias, eps, layer, True)
        ctx.save_for_backward(s, weight)
        ctx.given = eps, layer, x.dtype, None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return y, s

    @staticmethod
    def backward(ctx: Any, dy: Any, ds: Any) -> Any:
        refuse_second()
        s, weight = ctx.saved_tensors
        eps, layer, x_type, bias_type = ctx.given
        dx, dweight, dbias = norm_backward(dy, ds, s, weight, eps, layer, bias_type is not None)
        return (dx.to(x_type), dx, dweight.to(weight.dtype),
                None if bias_type is None else dbias.to(bias_type), None, None, None)


def norm_residual(x: Any, residual: Any, weight: Any, bias: Any, eps: float, layer: bool,
                  return_sum: bool) -> Any:
    if type(eps) is not float or not 0 <= eps < 1:
        eps = epsilon(eps)
    grad = grad_enabled() and (x.requires_grad or getattr(residual, "requires_grad", False)
                               or getattr(weight, "requires_grad", False)
                               or getattr(bias, "requires_grad", False))
    if (compiling() or modes() or transforms() or type(x) not in PLAIN
            or type(residual) not in PLAIN or x.is_meta):
        if not compiling():
            check_norm(x, residual, weight, bias)
        op = torch.ops.millrace
        if grad or return_sum:
            y, s = by_library(op.norm_residual_sum, x, residual, weight, bias, eps, layer)
        else:
            y = by_library(op.norm_residual, x, residual, weight, bias, eps, layer)
    else:
        if forward_ad._current_level >= 0:
            refuse_tangents(x, residual, weight, bias)
        plan = norm_plan(x, residual, weight, bias)
        if grad:
            y, s = NormResidual.apply(  # type: ignore[attr-defined]
                x, residual, weight, bias, eps, layer, plan)
        else:
            y, s = norm_forward(plan, x, residual, weight, bias, eps, layer, return_sum)
    return (y, s) if return_sum else y


# ---- sampling -----------------------------------------------------------------------------------


def sample(logits: Any, temperature: float, top_k: int, top_p: float, min_p: float, seed: Any,
           position: Any) -> Any:
    if seed is None:
        seed = torch.randint(1 << 62, (1,)).item()
    seeds = seed if isinstance(seed, torch.Tensor) and seed.dim() else None
    places = position if isinstance(position, torch.Tensor) and position.dim() else None
    first = 0 if seeds is not None else seed
    place = 0 if places is not None else position
    if (compiling() or modes() or transforms() or type(logits) not in PLAIN or logits.is_meta):
        made: Any = torch.ops.millrace.sample(logits, seeds, places, temperature, top_k, top_p,
                                              min_p, first, place)
        return made
    return sample_rows(logits, seeds, places, temperature, top_k, top_p, min_p, first, place)


def _numbers(name: str, x: Any, rows: int, logits: Any) -> Any:
    if x is None:
        return None
    if x.dim() != 1 or x.dtype != torch.int64 or x.device != logits.device or len(x) != rows:
        raise wrong(f"{name} is a number, or an int64 tensor of {rows} entries, one per row, "
                    f"beside the logits, not {x.dtype} {list(x.shape)} on {x.device}")
    return x.contiguous()


def check_logits(logits: Any) -> None:
    check("logits", (logits,))
    if logits.dim() < 1 or logits.shape[-1] < 1:
        raise wrong(f"logits are [..., vocab], not {list(logits.shape)}")


def sample_rows(logits: Any, seeds: Any, places: Any, temperature: float, top_k: int, top_p: float,
                min_p: float, seed: int, position: int) -> tuple[Any, Any, Any]:
    check_logits(logits)
    cuda = place_of("logits", logits)
    shape, vocab = tuple(logits.shape[:-1]), logits.shape[-1]
    rows = logits.numel() // vocab
    if cuda and (vocab > 1 << 19 or rows > 1 << 20):
        raise wrong(f"{rows} rows of {vocab} logits: a GPU takes at most 2^20 rows of 2^19")
    seeds, places = (_numbers(name, x, rows, logits)
                     for name, x in (("seed", seeds), ("position", places)))
    x = wide(logits)
    stride = dense(shape)
    ids = empty(cuda, shape, stride, torch.int32)
    p, conf = empty(cuda, shape, stride, f32), empty(cuda, shape, stride, f32)
    state = empty(cuda, (_core.sample_state_bytes(rows) if cuda else 0,), (1,), torch.uint8)
    run(cuda, draws, cuda, rows, vocab, real("temperature", temperature),
        number("top_k", top_k, 0, 2**31 - 1), real("top_p", top_p), real("min_p", min_p),
        number("seed", seed, 0, 2**63 - 1), number("position", position, 0, 2**63 - 1),
        0 if seeds is None else seeds.data_ptr(), 0 if places is None else places.data_ptr(),
        x.data_ptr(), ids.data_ptr(), p.data_ptr(), conf.data_ptr(), state.data_ptr())
    return ids, p, conf
