"""Operations on numpy's arrays, and on what gives itself to numpy by DLPack: on the CPU, f32.

float32 is read where it lies; float16 is computed with in f32 and rounded at the end."""
from __future__ import annotations

import importlib
import random
from typing import Any, Optional, Sequence

import numpy as np

from . import _core
from ._ops_plan import Layout, Mask, attention_plan, draws, epsilon, number, real, wrong


class _ElsewhereError(Exception):
    """The tensors lie on a GPU."""


def _array(name: str, x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"{name} is a tensor of torch, an array of numpy or something with DLPack, "
                        f"not {type(x).__name__}")
    if x.__dlpack_device__()[0] != 1:
        raise _ElsewhereError
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise wrong(f"{name}: numpy cannot read this {type(x).__name__} by DLPack ({error}); give "
                    f"float32 or float16, or a tensor of torch (which has bfloat16, too)") from None


def _through_torch(call: str, arrays: Sequence[Any], rest: Sequence[Any]) -> Any:
    """Memory of a GPU, of another library than torch."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise _core.UsageError("tensors that lie on a GPU want torch, which is not installed: its "
                               "memory is what results are made of") from None
    from . import _ops_torch
    given = [torch.from_dlpack(x) if hasattr(x, "__dlpack__") else x for x in arrays]
    return getattr(_ops_torch, call)(*given, *rest)


def _float(name: str, x: Any) -> Any:
    """As f32; the array itself where it is."""
    if x.dtype == np.float32:
        return x if x.flags.aligned else x.copy()
    if x.dtype == np.float16:
        return x.astype(np.float32)
    raise wrong(f"{name} is {x.dtype}; operations take float32 or float16 (and bfloat16 of torch)")


def _same(names: str, arrays: Sequence[Any]) -> None:
    if len({x.dtype for x in arrays}) > 1:
        raise wrong(f"{names} have one type, not " + ", ".join(str(x.dtype) for x in arrays))


def _layout(x: Any) -> Layout:
    return Layout(x.shape, tuple(s // 4 for s in x.strides) if all(
        s % 4 == 0 for s in x.strides) else (0,) * x.ndim)


def _at(x: Optional[Any]) -> int:
    return 0 if x is None else int(x.ctypes.data)


def _rows(name: str, x: Any, entries: Optional[int], dtype: Any) -> Any:
    """A row of whole numbers, of so many entries."""
    x = np.asarray(x)
    if x.ndim != 1 or x.dtype.kind not in "iu":
        raise wrong(f"{name} is one row of whole numbers, not {x.dtype} {list(x.shape)}")
    if entries is not None and len(x) != entries:
        raise wrong(f"{name} has {len(x)} entries for {entries} rows")
    if len(x) and not np.iinfo(dtype).min <= int(x.min()) <= int(x.max()) <= np.iinfo(dtype).max:
        raise wrong(f"{name} goes from {x.min()} to {x.max()}; entries are {np.dtype(dtype)}")
    return np.ascontiguousarray(x, dtype)


def attention(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, mask: Mask,
              layout: str, return_lse: bool) -> Any:
    try:
        q, k, v = _array("q", q), _array("k", k), _array("v", v)
    except _ElsewhereError:
        return _through_torch("attention", (q, k, v, cu_q, cu_k),
                              (max_q, max_k, mask, layout, return_lse))
    if layout == "bhsd":
        if not q.ndim == k.ndim == v.ndim == 4:
            raise wrong('layout = "bhsd": q, k and v are [batch, heads, tokens, head_dim]')
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    elif layout != "bshd":
        raise wrong(f'layout = {layout!r}: must be "bshd" or "bhsd"')
    _same("q, k and v", (q, k, v))
    dtype = q.dtype
    q, k, v = _float("q", q), _float("k", k), _float("v", v)
    if (cu_q is None) != (cu_k is None):
        raise wrong("cu_seqlens_q and cu_seqlens_k come together")
    if cu_q is not None:
        cu_q, cu_k = (_rows(name, x, None, np.int32)
                      for name, x in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)))
    plan = attention_plan(_layout(q), _layout(k), _layout(v), "f32", False, mask,
                          None if cu_q is None else (len(cu_q), len(cu_k)), max_q, max_k)
    q, k, v = (x if fits else np.ascontiguousarray(x) for x, fits in zip((q, k, v), plan.fits))
    # Rows of tokens that belong to no sequence are not written.
    out = (np.empty if cu_q is None else np.zeros)(q.shape, np.float32)
    lse = (np.empty if cu_q is None else np.zeros)(plan.lse_shape, np.float32)
    plan.core.forward(_at(q), _at(k), _at(v), _at(out), _at(lse), _at(cu_q), _at(cu_k), 0)
    made = out if dtype == np.float32 else out.astype(dtype)
    if layout == "bhsd":
        made = made.swapaxes(1, 2)
    if not return_lse:
        return made
    return made, lse.swapaxes(0, 1) if lse.ndim == 3 else lse


def norm_residual(x: Any, residual: Any, weight: Any, bias: Any, eps: float, layer: bool,
                  return_sum: bool) -> Any:
    given = (x, residual, weight, bias)
    try:
        x, residual, weight = _array("x", x), _array("residual", residual), _array("weight", weight)
        bias = None if bias is None else _array("bias", bias)
    except _ElsewhereError:
        return _through_torch("norm_residual", given, (eps, layer, return_sum))
    if x.shape != residual.shape or x.ndim < 1 or x.shape[-1] < 1:
        raise wrong(f"x and residual have one shape, [..., columns], not {list(x.shape)} and "
                    f"{list(residual.shape)}")
    for name, row in (("weight", weight), ("bias", bias)):
        if row is not None and row.shape != x.shape[-1:]:
            raise wrong(f"{name} has the shape {list(x.shape[-1:])}, one entry per column, not "
                        f"{list(row.shape)}")
    if residual.dtype not in (x.dtype, np.float32):
        raise wrong(f"residual is {residual.dtype}, x is {x.dtype}; it has x's type, or float32")
    types = x.dtype, residual.dtype
    arrays: list[Any] = [None if a is None else np.ascontiguousarray(_float(name, a)) for name, a in
              (("x", x), ("residual", residual), ("weight", weight), ("bias", bias))]
    if return_sum and types[1] != np.float32:  # y is the norm of the rounded s
        arrays[0] = (arrays[0] + arrays[1]).astype(types[1]).astype(np.float32)
        arrays[1] = np.zeros_like(arrays[0])
    out, total = np.empty(x.shape, np.float32), np.empty(x.shape, np.float32)
    cols = x.shape[-1]
    _core.norm_residual(False, layer, x.size // cols, cols, epsilon(eps), "f32", "f32", "f32",
                        _at(arrays[0]), _at(arrays[1]), _at(arrays[2]), _at(arrays[3]), _at(out),
                        _at(total), 0)
    out = out.astype(types[0], copy=False)
    return (out, total.astype(types[1], copy=False)) if return_sum else out


def sample(logits: Any, temperature: float, top_k: int, top_p: float, min_p: float, seed: Any,
           position: Any) -> Any:
    try:
        x = _array("logits", logits)
    except _ElsewhereError:
        return _through_torch("sample", (logits,),
                              (temperature, top_k, top_p, min_p, seed, position))
    if x.ndim < 1 or x.shape[-1] < 1:
        raise wrong(f"logits are [..., vocab], not {list(x.shape)}")
    x = np.ascontiguousarray(_float("logits", x))
    shape, vocab = x.shape[:-1], x.shape[-1]
    rows = x.size // vocab
    if seed is None:
        seed = random.SystemRandom().getrandbits(62)
    seeds = None if np.ndim(seed) == 0 else _rows("seed", seed, rows, np.int64)
    places = None if np.ndim(position) == 0 else _rows("position", position, rows, np.int64)
    ids = np.empty(shape, np.int32)
    p, conf = np.empty(shape, np.float32), np.empty(shape, np.float32)
    draws(False, rows, vocab, real("temperature", temperature),
          number("top_k", top_k, 0, 2**31 - 1), real("top_p", top_p), real("min_p", min_p),
          0 if seeds is not None else number("seed", seed, 0, 2**63 - 1),
          0 if places is not None else number("position", position, 0, 2**63 - 1),
          _at(seeds), _at(places), _at(x), _at(ids), _at(p), _at(conf), 0, 0)
    return ids, p, conf
