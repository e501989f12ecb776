"""torch.ops.millrace: the operations as torch's compiler knows them, with what they give for
tensors without memory (fake kernels) and their gradients."""
from __future__ import annotations

from typing import Any, Optional

from . import _ops_torch_attention as attending
from . import _ops_torch_rows as rows
from ._ops_plan import check_attention, mask_of
from ._ops_torch_base import check, f32, torch

# SymInt: a number that changes from call to call does not cause a recompilation.
_OPTIONS = ("Tensor? cu_q, Tensor? cu_k, SymInt max_q, SymInt max_k, bool causal, SymInt window, "
            "SymInt sinks, SymInt block, SymInt origin, bool before, float? scale")


def _attention(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
               *mask: Any) -> Any:
    """out as q, without gaps, and lse f32 [heads, (batch,) tokens]."""
    plan = attending.plan_of(q, k, v, cu_q, cu_k, max_q, max_k, mask)
    return attending.forward(plan, q, k, v, cu_q, cu_k)


def _known(*numbers: Any) -> bool:
    """Whether the compiler knows them all: asking a symbol would make it compile for one value."""
    return all(type(n) in (int, float, bool, type(None)) for n in numbers)


def _attention_fake(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
                    *mask: Any) -> Any:
    check("q k v", (q, k, v))
    bounds = None if cu_q is None else (cu_q.shape[0], cu_k.shape[0])
    if _known(*q.shape, *k.shape, *v.shape, *(bounds or ()), max_q, max_k):
        check_attention(q.shape, k.shape, v.shape, q.device.type == "cuda", bounds, max_q, max_k)
        if _known(*mask):
            mask_of(mask, q.shape[-1])
    *front, heads, _dim = q.shape
    return (q.new_empty(q.shape), q.new_empty((heads, *front), dtype=f32))


def _attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, cu_q: Any, cu_k: Any,
                        max_q: int, max_k: int, *mask: Any) -> Any:
    plan = attending.plan_of(q, k, v, cu_q, cu_k, max_q, max_k, mask)
    return attending.backward(plan, dout, q, k, v, out.contiguous(), lse.contiguous(), cu_q, cu_k)


def _attention_backward_fake(dout: Any, q: Any, k: Any, v: Any, *_: Any) -> Any:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    q, k, v, cu_q, cu_k, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _attention_gradients(ctx: Any, dout: Any, _: Any) -> Any:
    q, k, v, out, lse, cu_q, cu_k = ctx.saved_tensors
    rest = (None,) * (2 + len(ctx.options))
    if dout is None:
        return (None, None, None, *rest)
    made = torch.ops.millrace.attention_backward(dout, q, k, v, out, lse, cu_q, cu_k, *ctx.options)
    return (*made, *rest)


def _norm(x: Any, residual: Any, weight: Any, bias: Any, eps: float, layer: bool) -> Any:
    plan = rows.norm_plan(x, residual, weight, bias)
    return rows.norm_forward(plan, x, residual, weight, bias, eps, layer, False)[0]


def _norm_sum(x: Any, residual: Any, weight: Any, bias: Any, eps: float, layer: bool) -> Any:
    plan = rows.norm_plan(x, residual, weight, bias)
    return rows.norm_forward(plan, x, residual, weight, bias, eps, layer, True)


def _norm_backward(dy: Optional[Any], ds: Optional[Any], s: Any, weight: Any, eps: float,
                   layer: bool, bias: bool) -> Any:
    dx, dweight, dbias = rows.norm_backward(dy, ds, s, weight, eps, layer, bias)  # f32 except dx
    return dx, dweight.clone(), dbias.clone()  # ops must not return views of one memory


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    x, _residual, weight, bias, eps, layer = inputs
    ctx.save_for_backward(output[1], weight)
    ctx.given = eps, layer, x.dtype, None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)


def _norm_gradients(ctx: Any, dy: Any, ds: Any) -> Any:
    s, weight = ctx.saved_tensors
    eps, layer, x_type, bias_type = ctx.given
    dx, dweight, dbias = torch.ops.millrace.norm_residual_backward(dy, ds, s, weight, eps, layer,
                                                                   bias_type is not None)
    return (dx.to(x_type), dx, dweight.to(weight.dtype),
            None if bias_type is None else dbias.to(bias_type), None, None)


def _norm_fake(x: Any, residual: Any, weight: Any, bias: Any, *_: Any) -> Any:
    return _norm_sum_fake(x, residual, weight, bias)[0]


def _norm_sum_fake(x: Any, residual: Any, weight: Any, bias: Any, *_: Any) -> Any:
    given = (x, residual, weight) if bias is None else (x, residual, weight, bias)
    if _known(*(n for each in given for n in each.shape)):
        rows.check_norm(x, residual, weight, bias)
    return x.new_empty(x.shape), residual.new_empty(x.shape)


def _sample(logits: Any, seeds: Any, positions: Any, temperature: float, top_k: int, top_p: float,
            min_p: float, seed: int, position: int) -> Any:
    return rows.sample_rows(logits, seeds, positions, temperature, top_k, top_p, min_p, seed,
                            position)


def _sample_fake(logits: Any, *_: Any) -> Any:
    if _known(*logits.shape):
        rows.check_logits(logits)
    shape = logits.shape[:-1]
    return (logits.new_empty(shape, dtype=torch.int32), logits.new_empty(shape, dtype=f32),
            logits.new_empty(shape, dtype=f32))


def _op(name: str, schema: str, body: Any, fake: Any) -> Any:
    made = torch.library.custom_op(f"millrace::{name}", body, mutates_args=(), schema=schema)
    made.register_fake(fake)
    return made


def register() -> None:
    attention = _op("attention", f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
                    _attention, _attention_fake)
    attention.register_autograd(_attention_gradients, setup_context=_save_attention)
    _op("attention_backward",
        f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}) "
        "-> (Tensor, Tensor, Tensor)", _attention_backward, _attention_backward_fake)
    norm = "(Tensor x, Tensor residual, Tensor weight, Tensor? bias, float eps, bool layer) -> "
    _op("norm_residual", norm + "Tensor", _norm, _norm_fake)
    kept = _op("norm_residual_sum", norm + "(Tensor, Tensor)", _norm_sum, _norm_sum_fake)
    kept.register_autograd(_norm_gradients, setup_context=_save_norm)
    _op("norm_residual_backward",
        "(Tensor? dy, Tensor? ds, Tensor s, Tensor weight, float eps, bool layer, bool bias) "
        "-> (Tensor, Tensor, Tensor)", _norm_backward,
        lambda dy, ds, s, weight, eps, layer, bias: (
            s.new_empty(s.shape), weight.new_empty(weight.shape, dtype=f32),
            weight.new_empty((weight.shape[0] if bias else 0,), dtype=f32)))
    _op("sample",
        "(Tensor logits, Tensor? seeds, Tensor? positions, float temperature, SymInt top_k, "
        "float top_p, float min_p, SymInt seed, SymInt position) -> (Tensor, Tensor, Tensor)",
        _sample, _sample_fake)
