"""Operations on tensors of others: attention, norms with a residual, sampling.

torch's tensors stay where they are and on torch's current stream, with gradients, `torch.compile`
and CUDA graphs. numpy's arrays, and what speaks DLPack, are computed with on the CPU; what speaks
DLPack and lies on a GPU goes through torch.

    >>> import numpy as np
    >>> import millrace as mr
    >>> q, k, v = (np.ones((4, 2, 8), np.float32) for _ in range(3))   # [tokens, heads, head_dim]
    >>> mr.ops.attention(q, k, v).shape
    (4, 2, 8)
"""
from __future__ import annotations

import sys
from typing import Any, Literal, Optional, TypeVar, overload

from . import _core
from ._ops_plan import number

__all__ = ["attention", "layernorm_residual", "register_transformers", "rmsnorm_residual", "sample",
           "set_threads"]

Array = TypeVar("Array")


class _None:
    """What is no one's tensor."""


# torch's tensors, once a call has seen one: an import in every call would take longer than the
# rest.
_tensors: Any = _None
_torch: Any = None


def _way(x: Any) -> Any:
    """The module that computes with such tensors. torch is imported by who has its tensors."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        from . import _ops_numpy
        return _ops_numpy
    from . import _ops_torch
    if not torch.compiler.is_compiling():
        _remember(torch.Tensor, _ops_torch)
    return _ops_torch


def _remember(tensors: Any, way: Any) -> None:
    global _tensors, _torch
    _tensors, _torch = tensors, way


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: int = ...,
              sinks: int = ..., block: int = ..., origin: int = ..., before: bool = ...,
              scale: Optional[float] = ..., cu_seqlens: Any = ..., cu_seqlens_q: Any = ...,
              cu_seqlens_k: Any = ..., max_seqlen: int = ..., max_seqlen_q: int = ...,
              max_seqlen_k: int = ..., layout: str = ...,
              return_lse: Literal[False] = ...) -> Array: ...
@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: int = ...,
              sinks: int = ..., block: int = ..., origin: int = ..., before: bool = ...,
              scale: Optional[float] = ..., cu_seqlens: Any = ..., cu_seqlens_q: Any = ...,
              cu_seqlens_k: Any = ..., max_seqlen: int = ..., max_seqlen_q: int = ...,
              max_seqlen_k: int = ..., layout: str = ...,
              return_lse: Literal[True]) -> tuple[Array, Array]: ...
def attention(q: Any, k: Any, v: Any, *, causal: bool = True, window: int = 0, sinks: int = 0,
              block: int = 0, origin: int = 0, before: bool = False, scale: Optional[float] = None,
              cu_seqlens: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
              max_seqlen: int = 0, max_seqlen_q: int = 0, max_seqlen_k: int = 0,
              layout: str = "bshd", return_lse: bool = False) -> Any:
    """softmax(scale * q @ k.T) @ v over the keys that the mask shows; exact, without the matrix.

    q [batch, tokens, heads, head_dim]; k, v [batch, keys, kv_heads, head_dim]; heads is a multiple
    of kv_heads. `layout="bhsd"`: [batch, heads, tokens, head_dim], as torch's own attention has it.
    Without a batch, [tokens, heads, head_dim], they are one sequence, or a packed batch: sequence i
    has queries [cu_seqlens_q[i], cu_seqlens_q[i + 1]) and keys of cu_seqlens_k; cu_seqlens is both.
    The last query of a sequence stands at its last key. max_seqlen_q, max_seqlen_k (max_seqlen:
    both): no sequence is longer; a GPU is faster where it knows.

    Masks: causal, key <= query; causal=False, all keys. window > 0: only keys with
    query - key < window, and the first `sinks` keys. block > 0: causal by blocks of so many
    positions, counted from origin; all of a block see each other. before=True: ... see the blocks
    before their own alone. scale: 1 / sqrt(head_dim) where it is left out.

    head_dim is a multiple of 8 up to 256; gradients on a GPU up to 128. Without a key a row is 0.
    return_lse: also the logarithm of the sum of exponentials, f32 [batch, heads, tokens] ([heads,
    tokens] without a batch); it has no gradient.

        >>> import numpy as np
        >>> q = np.random.default_rng(0).standard_normal((1, 6, 4, 16), np.float32)
        >>> k = q[:, :, :2]                                     # two heads of q share one of k
        >>> out, lse = attention(q, k, k, window=3, sinks=1, return_lse=True)
        >>> out.shape, lse.shape
        ((1, 6, 4, 16), (1, 4, 6))
    """
    if cu_seqlens is not None:
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            raise _core.UsageError("cu_seqlens is cu_seqlens_q and cu_seqlens_k; give one or both")
        cu_seqlens_q = cu_seqlens_k = cu_seqlens
    return (_torch if isinstance(q, _tensors) else _way(q)).attention(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q or max_seqlen, max_seqlen_k or max_seqlen,
        (causal, window, sinks, block, origin, before, scale), layout, return_lse)


@overload
def layernorm_residual(x: Array, residual: Array, weight: Array, bias: Optional[Array] = ...,
                       eps: float = ..., *, return_sum: Literal[False] = ...) -> Array: ...
@overload
def layernorm_residual(x: Array, residual: Array, weight: Array, bias: Optional[Array] = ...,
                       eps: float = ..., *, return_sum: Literal[True]) -> tuple[Array, Array]: ...
def layernorm_residual(x: Any, residual: Any, weight: Any, bias: Any = None, eps: float = 1e-5, *,
                       return_sum: bool = False) -> Any:
    """layernorm(x + residual) * weight + bias over the last dimension, in one pass.

    return_sum: gives (y, s), where s = x + residual is the residual of the next layer. It has
    gradients by x, residual, weight and bias, through both. x and y have one type, residual and s
    that or float32; sums are f32. If s is kept (return_sum, or gradients), y is the norm of s as it
    was rounded, else of the exact sum.

        >>> import numpy as np
        >>> x = np.array([[1, 2, 3, 4]], np.float32)
        >>> y, s = layernorm_residual(x, x, np.ones(4, np.float32), return_sum=True)
        >>> s.tolist(), [round(float(i), 3) for i in y[0]]
        ([[2.0, 4.0, 6.0, 8.0]], [-1.342, -0.447, 0.447, 1.342])
    """
    way = _torch if isinstance(x, _tensors) else _way(x)
    return way.norm_residual(x, residual, weight, bias, eps, True, return_sum)


@overload
def rmsnorm_residual(x: Array, residual: Array, weight: Array, eps: float = ..., *,
                     return_sum: Literal[False] = ...) -> Array: ...
@overload
def rmsnorm_residual(x: Array, residual: Array, weight: Array, eps: float = ..., *,
                     return_sum: Literal[True]) -> tuple[Array, Array]: ...
def rmsnorm_residual(x: Any, residual: Any, weight: Any, eps: float = 1e-5, *,
                     return_sum: bool = False) -> Any:
    """rmsnorm(x + residual) * weight over the last dimension; all else as layernorm_residual."""
    way = _torch if isinstance(x, _tensors) else _way(x)
    return way.norm_residual(x, residual, weight, None, eps, False, return_sum)


def sample(logits: Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
           min_p: float = 0.0, seed: Any = None, position: Any = 0
           ) -> tuple[Array, Array, Array]:
    """Draws a token from every row of logits [..., vocab]: (ids int32, p, conf), all [...].

    temperature: 0 is greedy. top_k: draws from the k most probable tokens (0: all); top_p: from the
    most probable with this total probability (1: all); min_p: drops tokens below this share of the
    best one's probability (0: none). p: the probability of the draw among what was left; conf: on
    the softmax of the logits as they are.
    Row i draws with Philox at (seed + i, position): same seed, same ids, on the CPU and on the GPU.
    seed, position: a number below 2^63, or an int64 tensor with one for each row, beside the
    logits. Without a seed one is drawn (torch: by its generator of the CPU; torch.compile wants
    one).
    A row with a NaN, or without a possible token, is an InputError on the CPU; a GPU is not waited
    for, and gives id 0 with p 0.

        >>> import numpy as np
        >>> ids, p, conf = sample(np.array([[0, 3, 1], [9, 0, 0]], np.float32), temperature=0)
        >>> ids.tolist(), p.tolist()
        ([1, 0], [1.0, 1.0])
    """
    made: tuple[Array, Array, Array] = _way(logits).sample(
        logits, temperature, top_k, top_p, min_p, seed, position)
    return made


def set_threads(threads: int) -> None:
    """How many threads operations on the CPU have; 0: all cores of the process."""
    _core.set_ops_threads(number("threads", threads, 0, 4096))


def register_transformers(name: str = "millrace") -> None:
    """Makes `attn_implementation="millrace"` known to transformers."""
    try:
        from ._ops_transformers import register
    except ImportError:
        raise ImportError("mr.ops.register_transformers() wants torch 2.4 or later, and "
                          "transformers 4.53 or later; torch cannot be imported") from None
    register(name)
