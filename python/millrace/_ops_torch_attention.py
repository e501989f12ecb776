"""Attention on torch's tensors, in eager mode (_ops_torch.py says when that is)."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from . import _core
from ._ops_plan import Layout, Mask, Plan, Remembered, attention_plan, wrong
from ._ops_torch_base import (PLAIN, by_library, check, compiling, dense, empty, f32, forward_ad,
                              grad_enabled, modes, place_of, quick_empty, readable, refuse_second,
                              refuse_tangents, run, torch, transforms, wide)

if TYPE_CHECKING:
    Function = object
else:
    from torch.autograd import Function

_plans = Remembered()


_api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def _quick_plans() -> Optional[_core.Plans]:
    """Those of plain batches, found from C++, where this torch tells it of its tensors."""
    try:
        return None if _api is None else _core.new_plans(_api, PLAIN)
    except (TypeError, RuntimeError, ValueError):
        return None


_quick = _quick_plans()
_find: Any = (lambda *_: None) if _quick is None else _quick.find


class TorchPlan(Plan):
    __slots__ = ("cuda", "packed", "wide", "direct", "out_shape", "out_stride", "kv_shape",
                 "kv_stride", "lse_stride", "quick")

    cuda: bool
    packed: bool
    wide: bool  # f16 and bf16 on the CPU: computed in f32
    direct: bool  # q, k and v are read in place
    out_shape: tuple[int, ...]
    out_stride: tuple[int, ...]
    kv_shape: tuple[int, ...]
    kv_stride: tuple[int, ...]
    lse_stride: tuple[int, ...]
    quick: Any  # the whole call in C++, if nothing else is needed; or None


def plan_of(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
            mask: Mask) -> TorchPlan:
    key: Any = None
    found: Optional[TorchPlan] = None
    try:
        key = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype,
               v.dtype, q.device, k.device, v.device, max_q, max_k, mask,
               None if cu_q is None else (cu_q.shape[0], cu_k.shape[0]))
        found = _plans.get(key)
    except (AttributeError, TypeError, IndexError):
        key = None  # not tensors: the checks report the error
    if found is None:
        found = _new_plan(q, k, v, cu_q, cu_k, max_q, max_k, mask)
        if key is not None:
            _plans.keep(key, found)
    return found


def _new_plan(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
              mask: Mask) -> TorchPlan:
    dtype = check("q k v", (q, k, v))
    cuda = place_of("q", q)
    widened = not cuda and dtype != "f32"
    layouts = [Layout(x.shape, dense(x.shape) if widened else x.stride()) for x in (q, k, v)]
    made = attention_plan(layouts[0], layouts[1], layouts[2], dtype, cuda, mask,
                          None if cu_q is None else (cu_q.shape[0], cu_k.shape[0]), max_q, max_k)
    plan = TorchPlan(made.core, made.fits, made.lse_shape, made.backward_dim)
    plan.cuda, plan.packed, plan.wide = cuda, cu_q is not None, widened
    plan.direct = all(made.fits) and not widened
    plan.out_shape, plan.kv_shape = tuple(q.shape), tuple(k.shape)
    plan.out_stride, plan.kv_stride = dense(plan.out_shape), dense(plan.kv_shape)
    plan.lse_stride = dense(plan.lse_shape)
    plan.quick = None
    make = quick_empty(cuda)
    if _quick is not None and plan.direct and not plan.packed and make is not None:
        plan.quick = _core.QuickAttention(
            _api, made.core, make, (plan.out_shape, plan.out_stride, q.dtype),
            (plan.lse_shape, plan.lse_stride, f32)).forward
    return plan


def bounds_of(name: str, cu: Any, device: Any) -> Any:
    """Bounds of a packed batch as the kernels read them."""
    if not isinstance(cu, torch.Tensor) or cu.dim() != 1 or cu.dtype not in (torch.int32,
                                                                             torch.int64):
        raise wrong(f"{name} is an int32 tensor [sequences + 1]")
    if cu.device != device:
        raise wrong(f"{name} lies on {cu.device}, q on {device}")
    if cu.dtype == torch.int64 and device.type == "cpu":  # a GPU cuts bounds to the tensors
        cu = cu.clamp(-(1 << 31), (1 << 31) - 1)  # avoids wrapping; no valid number of tokens
    return cu.to(torch.int32).contiguous()


def _ready(plan: TorchPlan, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """q, k and v as the kernels can read them."""
    if plan.wide:
        return wide(q), wide(k), wide(v)
    return tuple(readable(x if fits else x.contiguous()) for x, fits in zip((q, k, v), plan.fits))


def forward(plan: TorchPlan, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any) -> tuple[Any, Any]:
    """out as q, without gaps, and lse [heads, (batch,) tokens]."""
    made: Optional[tuple[Any, Any]] = None if plan.quick is None else plan.quick(q, k, v)
    return made if made is not None else _forward(plan, q, k, v, cu_q, cu_k)


def _forward(plan: TorchPlan, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any) -> tuple[Any, Any]:
    """Where there is more to do."""
    dtype = q.dtype
    if not plan.direct:
        q, k, v = _ready(plan, q, k, v)
    at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if (at_q | at_k | at_v) & 15 and plan.cuda:
        q, k, v = _ready(plan, q, k, v)
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    out = empty(plan.cuda, plan.out_shape, plan.out_stride, q.dtype)
    lse = empty(plan.cuda, plan.lse_shape, plan.lse_stride, f32)
    begins = ends = 0
    if plan.packed:
        out.zero_()  # rows of tokens that belong to no sequence are not written
        lse.zero_()
        begins, ends = cu_q.data_ptr(), cu_k.data_ptr()
    run(plan.cuda, plan.core.forward, at_q, at_k, at_v, out.data_ptr(), lse.data_ptr(), begins,
        ends)
    return (out.to(dtype) if plan.wide else out), lse


def backward(plan: TorchPlan, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, cu_q: Any,
             cu_k: Any) -> tuple[Any, Any, Any]:
    require_backward(plan, q)
    dtype = q.dtype
    if not plan.direct or (plan.cuda and (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15):
        q, k, v = _ready(plan, q, k, v)
    if plan.wide:
        out, dout = wide(out), wide(dout)
    else:
        dout = readable(dout.contiguous())
    dq = empty(plan.cuda, plan.out_shape, plan.out_stride, q.dtype)
    dk = empty(plan.cuda, plan.kv_shape, plan.kv_stride, q.dtype)
    dv = empty(plan.cuda, plan.kv_shape, plan.kv_stride, q.dtype)
    begins = ends = 0
    if plan.packed:
        for gradient in (dq, dk, dv):
            gradient.zero_()
        begins, ends = cu_q.data_ptr(), cu_k.data_ptr()
    room = empty(plan.cuda, (plan.scratch_bytes,), (1,), torch.uint8)
    run(plan.cuda, plan.core.backward, dout.data_ptr(), dq.data_ptr(), dk.data_ptr(), dv.data_ptr(),
        q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr(), begins, ends,
        room.data_ptr())
    if plan.wide:
        return dq.to(dtype), dk.to(dtype), dv.to(dtype)
    return dq, dk, dv


def require_backward(plan: TorchPlan, q: Any) -> None:
    if not plan.backward_dim:
        raise wrong(f"head_dim = {q.shape[-1]}: gradients on a GPU take up to 128; use "
                    f"torch.no_grad(), or compute them on the CPU")


class Attention(Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, plan: TorchPlan) -> Any:
        out, lse = forward(plan, q, k, v, None, None)
        ctx.save_for_backward(q, k, v, out)
        ctx.rest = plan, lse  # never visible to the caller, so it cannot be changed
        return out

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        refuse_second()
        plan, lse = ctx.rest
        q, k, v, out = ctx.saved_tensors
        return (*backward(plan, dout, q, k, v, out, lse, None, None), None)


class AttentionAndMore(Function):
    """Of packed batches, and with lse as a second result."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, plan: TorchPlan, cu_q: Any, cu_k: Any) -> Any:
        out, lse = forward(plan, q, k, v, cu_q, cu_k)
        ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_k)
        ctx.plan = plan
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, _: Any) -> Any:
        refuse_second()
        return (*backward(ctx.plan, dout, *ctx.saved_tensors), None, None, None)


def attention(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, mask: Mask,
              layout: str, return_lse: bool) -> Any:
    if layout != "bshd":
        return _heads_first(q, k, v, cu_q, cu_k, max_q, max_k, mask, layout, return_lse)
    if cu_q is not None or cu_k is not None:
        if cu_q is None or cu_k is None:
            raise wrong("cu_seqlens_q and cu_seqlens_k come together")
        cu_k = (bounds_of("cu_seqlens_k", cu_k, q.device) if cu_k is not cu_q else None)
        cu_q = bounds_of("cu_seqlens_q", cu_q, q.device)
        cu_k = cu_q if cu_k is None else cu_k
    plan = None
    if not compiling() and not modes() and not transforms():
        if forward_ad._current_level >= 0:
            refuse_tangents(q, k, v)
        if cu_q is None:
            plan = _find(q, k, v, max_q, max_k, mask)
        if plan is None:
            plan = _searched(q, k, v, cu_q, cu_k, max_q, max_k, mask)
    if plan is None:
        out, lse = _by_library(q, k, v, cu_q, cu_k, max_q, max_k, mask)
    elif grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        if not plan.backward_dim:
            require_backward(plan, q)
        if cu_q is None and not return_lse:
            return Attention.apply(q, k, v, plan)  # type: ignore[attr-defined]
        out, lse = AttentionAndMore.apply(  # type: ignore[attr-defined]
            q, k, v, plan, cu_q, cu_k)
    else:
        out, lse = forward(plan, q, k, v, cu_q, cu_k)
    if not return_lse:
        return out
    return out, lse.transpose(0, 1) if lse.dim() == 3 else lse


def _searched(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
              mask: Mask) -> Optional[TorchPlan]:
    """The plan; None where these are no tensors with memory of their own."""
    for x in (q, k, v):
        if type(x) not in PLAIN:
            return None
    if q.is_meta:
        return None
    plan = plan_of(q, k, v, cu_q, cu_k, max_q, max_k, mask)
    if cu_q is None and _quick is not None:
        _quick.keep(q, k, v, max_q, max_k, mask, plan)
    return plan


def _by_library(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
                mask: Mask) -> Any:
    if not compiling():
        check("q k v", (q, k, v))
    return by_library(torch.ops.millrace.attention, q, k, v, cu_q, cu_k, max_q, max_k, *mask)


def _heads_first(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, mask: Mask,
                 layout: str, return_lse: bool) -> Any:
    if layout != "bhsd":
        raise wrong(f'layout = {layout!r}: must be "bshd" or "bhsd"')
    for x in (q, k, v):
        if not isinstance(x, torch.Tensor) or x.dim() != 4:
            raise wrong('layout = "bhsd": q, k and v are tensors [batch, heads, tokens, head_dim]')
    batch, heads, tokens, _dim = q.shape
    # If heads are contiguous, and each has its own keys, every head is a sequence.
    if (k.shape[:2] == v.shape[:2] == q.shape[:2] and batch * heads < 65536
            and q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        views = [x.view(batch * heads, x.shape[2], 1, x.shape[3]) for x in (q, k, v)]
        out = attention(views[0], views[1], views[2], cu_q, cu_k, max_q, max_k, mask, "bshd",
                        return_lse)
        if not return_lse:
            return out.view(q.shape)
        return out[0].view(q.shape), out[1].reshape(batch, heads, tokens)
    out = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), cu_q, cu_k, max_q,
                    max_k, mask, "bshd", return_lse)
    return (out[0].transpose(1, 2), out[1]) if return_lse else out.transpose(1, 2)
