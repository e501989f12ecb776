"""Attention on torch's tensors, in eager mode (_ops_torch.py says when that is)."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ._ops_plan import Layout, Mask, Plan, Remembered, attention_plan, wrong
from ._ops_torch_base import (check, compiling, eager, empty, f32, grad_enabled, place_of, readable,
                              run, torch, wide)

if TYPE_CHECKING:
    Function = object
else:
    from torch.autograd import Function

_plans = Remembered()


class TorchPlan(Plan):
    __slots__ = ("cuda", "packed", "wide", "ready")

    cuda: bool
    packed: bool
    wide: bool  # f16 and bf16 on the CPU: computed in f32
    ready: bool  # q, k and v are read where they lie


def plan_of(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
            mask: Mask) -> TorchPlan:
    try:
        key = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype,
               v.dtype, q.device, k.device, v.device, max_q, max_k, mask,
               None if cu_q is None else (cu_q.shape[0], cu_k.shape[0]))
        found: Optional[TorchPlan] = _plans.get(key)
    except (AttributeError, TypeError, IndexError):
        key = found = None  # not tensors: the checks say what is wrong
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
    layouts = [Layout(x.shape, empty(x.shape, device="meta").stride() if widened else x.stride())
               for x in (q, k, v)]
    made = attention_plan(layouts[0], layouts[1], layouts[2], dtype, cuda, mask,
                          None if cu_q is None else (cu_q.shape[0], cu_k.shape[0]), max_q, max_k)
    plan = TorchPlan(made.core, made.fits, made.lse_shape, made.backward_dim)
    plan.cuda, plan.packed, plan.wide = cuda, cu_q is not None, widened
    plan.ready = all(made.fits)
    return plan


def bounds_of(name: str, cu: Any, device: Any) -> Any:
    """Bounds of a packed batch as the kernels read them."""
    if not isinstance(cu, torch.Tensor) or cu.dim() != 1 or cu.dtype not in (torch.int32,
                                                                             torch.int64):
        raise wrong(f"{name} is an int32 tensor [sequences + 1]")
    if cu.device != device:
        raise wrong(f"{name} lies on {cu.device}, q on {device}")
    return cu.to(torch.int32).contiguous()


def forward(plan: TorchPlan, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any) -> tuple[Any, Any]:
    """out as q, without gaps, and lse [heads, (batch,) tokens]. q, k and v fit the plan."""
    dtype = q.dtype
    if plan.wide:
        q, k, v = wide(q), wide(k), wide(v)
    if plan.packed:  # tokens that belong to no sequence are not written
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.zeros(plan.lse_shape, dtype=f32, device=q.device)
        at_q, at_k = cu_q.data_ptr(), cu_k.data_ptr()
    else:
        device = q.device
        out = empty(q.shape, dtype=q.dtype, device=device)
        lse = empty(plan.lse_shape, dtype=f32, device=device)
        at_q = at_k = 0
    run(plan.cuda, plan.core.forward, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(),
        lse.data_ptr(), at_q, at_k)
    return (out.to(dtype) if plan.wide else out), lse


def backward(plan: TorchPlan, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, cu_q: Any,
             cu_k: Any) -> tuple[Any, Any, Any]:
    if not plan.backward_dim:
        raise wrong(f"head_dim = {q.shape[-1]}: gradients on a GPU take up to 128; compute them on the "
                    f"CPU, or cut the head")
    dtype = q.dtype
    if plan.wide:
        q, k, v, out, dout = wide(q), wide(k), wide(v), wide(out), wide(dout)
    else:
        dout = readable(dout.contiguous())
    make = torch.zeros if plan.packed else empty
    dq, dk, dv = (make(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    scratch = 0
    if plan.scratch_bytes:
        room = empty(plan.scratch_bytes, dtype=torch.uint8, device=q.device)
        scratch = room.data_ptr()
    run(plan.cuda, plan.core.backward, dout.data_ptr(), dq.data_ptr(), dk.data_ptr(), dv.data_ptr(),
        q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr(),
        cu_q.data_ptr() if plan.packed else 0, cu_k.data_ptr() if plan.packed else 0, scratch)
    if plan.wide:
        return dq.to(dtype), dk.to(dtype), dv.to(dtype)
    return dq, dk, dv


def fitting(plan: TorchPlan, q: Any, k: Any, v: Any) -> tuple[bool, Any, Any, Any]:
    """q, k and v as kernels can read them, and whether they are the same tensors."""
    if plan.ready:
        if not plan.cuda or not (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15:
            return True, q, k, v
        return False, readable(q), readable(k), readable(v)
    fixed = [x if fits else x.contiguous() for x, fits in zip((q, k, v), plan.fits)]
    return False, readable(fixed[0]), readable(fixed[1]), readable(fixed[2])


class Attention(Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, plan: TorchPlan) -> Any:
        out, lse = forward(plan, q, k, v, cu_q, cu_k)
        if plan.packed:
            ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_k)
        else:
            ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, _: Any) -> Any:
        if dout is None:
            return None, None, None, None, None, None
        if dout.requires_grad and grad_enabled():
            raise NotImplementedError("attention has no second derivatives")
        q, k, v, out, lse, *bounds = ctx.saved_tensors
        cu_q, cu_k = bounds or (None, None)
        return (*backward(ctx.plan, dout, q, k, v, out, lse, cu_q, cu_k), None, None, None)


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
    if compiling() or not eager(q, k, v):
        out, lse = _by_library(q, k, v, cu_q, cu_k, max_q, max_k, mask)
    else:
        plan = plan_of(q, k, v, cu_q, cu_k, max_q, max_k, mask)
        same, q, k, v = fitting(plan, q, k, v)
        if not same:
            plan = plan_of(q, k, v, cu_q, cu_k, max_q, max_k, mask)
        if grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            _require_backward(plan, q)
            out, lse = Attention.apply(q, k, v, cu_q, cu_k, plan)  # type: ignore[attr-defined]
        else:
            out, lse = forward(plan, q, k, v, cu_q, cu_k)
    if not return_lse:
        return out
    return out, lse.transpose(0, 1) if lse.dim() == 3 else lse


def _require_backward(plan: TorchPlan, q: Any) -> None:
    if not plan.backward_dim:
        raise wrong(f"head_dim = {q.shape[-1]}: gradients on a GPU take up to 128; use torch.no_grad(), "
                    f"or compute them on the CPU")


def _by_library(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
                mask: Mask) -> Any:
    causal, window, sinks, block, origin, before, scale = mask
    return torch.ops.millrace.attention(q, k, v, cu_q, cu_k, max_q, max_k, causal, window, sinks,
                                        block, origin, before, 0.0 if scale is None else scale)


def _heads_first(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, mask: Mask,
                 layout: str, return_lse: bool) -> Any:
    if layout != "bhsd":
        raise wrong(f'layout = {layout!r}: must be "bshd" or "bhsd"')
    for x in (q, k, v):
        if not isinstance(x, torch.Tensor) or x.dim() != 4:
            raise wrong('layout = "bhsd": q, k and v are tensors [batch, heads, tokens, head_dim]')
    batch, heads, tokens, dim = q.shape
    # Where heads lie one after another, and every one has keys of its own, each is a sequence.
    if (k.shape[:2] == v.shape[:2] == q.shape[:2] and batch * heads < 65536
            and q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        views = [x.view(batch * heads, x.shape[2], 1, x.shape[3]) for x in (q, k, v)]
        out, lse = attention(*views, cu_q, cu_k, max_q, max_k, mask, "bshd", True)
        out, lse = out.view(q.shape), lse.view(batch, heads, tokens)
    else:
        out, lse = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), cu_q, cu_k, max_q,
                             max_k, mask, "bshd", True)
        out = out.transpose(1, 2)
    return (out, lse) if return_lse else out
