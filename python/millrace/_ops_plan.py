"""What operations have in common, whosever tensors they are given: the checks, and plans of shapes.

Checking takes longer than starting a kernel. So it is done once for a shape, and kept."""
from __future__ import annotations

import operator
import struct
from typing import Any, Optional, Sequence

from . import _core

MOST = 1 << 30  # windows, blocks, tokens
TYPES = "float32, float16 or bfloat16"

# causal, window, sinks, block, origin, before, scale (None: the default)
Mask = tuple[Any, Any, Any, Any, Any, Any, Any]


def wrong(what: str) -> _core.UsageError:
    return _core.UsageError(what)


def number(name: str, value: Any, least: int, most: int = MOST) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} = {value!r}: is a number, not a bool")
    try:
        out = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} = {value!r}: is a whole number, not {type(value).__name__}"
                        ) from None
    if not least <= out <= most:
        raise wrong(f"{name} = {out}: must be from {least} to {most}")
    return out


def real(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} = {value!r}: is a number, not {type(value).__name__}") from None


def flag(name: str, value: Any) -> None:
    if value is True or value is False or type(value).__name__ in ("bool", "bool_"):  # numpy's
        return
    try:
        known = operator.index(value) in (0, 1)
    except TypeError:
        known = False
    if not known:
        raise TypeError(f"{name} = {value!r}: is True or False")


def epsilon(value: Any) -> float:
    out = real("eps", value)
    if not 0 <= out < 2.0**127:  # kernels take an f32
        raise wrong(f"eps = {out}: must be 0 or more, and finite")
    return out


def _scale(value: Any, head_dim: int) -> float:
    if value is None:
        return float(head_dim**-0.5)
    given = real("scale", value)
    try:
        out = float(struct.unpack("f", struct.pack("f", given))[0])
    except OverflowError:
        out = float("inf")
    if not 0 < out < float("inf"):
        raise wrong(f"scale = {given}: must be positive and finite as a float32")
    return out


class Remembered(dict[Any, Any]):
    """What was made of a key; forgets everything rather than grow without end."""

    def keep(self, key: Any, value: Any) -> None:
        if len(self) >= 1024:
            self.clear()
        self[key] = value


def draws(*given: Any) -> None:
    """_core.sample, whose error speaks of the weights of a model."""
    try:
        _core.sample(*given)
    except _core.InputError as error:
        said = str(error).partition(";")[0]
        raise _core.InputError(f"{said}; look for the operation that made it, or give such rows "
                               f"other logits") from None


class Layout:
    """A tensor as it lies: shape, and the elements from one index to the next."""

    __slots__ = ("shape", "stride")

    def __init__(self, shape: Sequence[int], stride: Sequence[int]) -> None:
        self.shape, self.stride = tuple(shape), tuple(stride)

    def token_stride(self, unit: int) -> int:
        """Elements from token to token, where kernels can read [..., tokens, heads, head_dim] as it
        lies; 0 where it has to be copied. unit: what the stride must be a multiple of."""
        *front, tokens, heads, dim = self.shape
        *outer, step, head, element = self.stride
        dense = heads * dim
        if tokens == 1:
            step = outer[0] if front and front[0] > 1 else dense
        elif front and front[0] > 1 and outer[0] != tokens * step:
            return 0
        if element != 1 or (heads > 1 and head != dim) or step < dense or step % unit:
            return 0
        return step


class Plan:
    """Attention of one shape. `fits`: which of q, k and v are read where they lie; the others are
    wanted without gaps."""

    __slots__ = ("core", "fits", "lse_shape", "scratch_bytes", "backward_dim")

    def __init__(self, core: _core.AttentionPlan, fits: tuple[bool, bool, bool],
                 lse_shape: tuple[int, ...], backward_dim: bool) -> None:
        self.core, self.fits, self.lse_shape = core, fits, lse_shape
        self.backward_dim = backward_dim
        self.scratch_bytes = core.backward_scratch_bytes() if backward_dim else 0


def mask_of(mask: Mask, head_dim: int) -> tuple[str, int, int, int, int, float]:
    """kind, block, window, sinks, origin and scale as the kernels take them."""
    causal, window, sinks, block, origin, before, scale = mask
    flag("causal", causal)
    flag("before", before)
    window, sinks = number("window", window, 0), number("sinks", sinks, 0)
    block, origin = number("block", block, 0), number("origin", origin, -MOST)
    if sinks and not window:
        raise wrong(f"sinks = {sinks}: are the first keys that a window leaves visible; "
                    f"give a window, too")
    if block and not causal:
        raise wrong(f"block = {block}: a mask of blocks is causal; leave causal=False out")
    if before and not block:
        raise wrong("before = True: is about blocks; give block, too")
    if origin and (before or not block):
        raise wrong(f"origin = {origin}: is where blocks are counted from, of masks with a block "
                    f"and without before")
    kind = ("block_before" if before else "block_causal" if block
            else "causal" if causal else "full")
    return kind, max(block, 1), window, sinks, origin, _scale(scale, head_dim)


def check_attention(q: Sequence[int], k: Sequence[int], v: Sequence[int], cuda: bool,
                    bounds: Optional[tuple[int, int]], max_q: int, max_k: int) -> int:
    """Throws what is wrong with the shapes; gives the number of sequences. bounds: how many entries
    cu_seqlens_q and cu_seqlens_k have, of a packed batch."""
    rank = len(q)
    if rank not in (3, 4) or len(k) != rank or len(v) != rank:
        raise wrong(f"q, k and v are [batch, tokens, heads, head_dim], or [tokens, heads, "
                    f"head_dim] all three, not {list(q)}, {list(k)} and {list(v)}")
    if tuple(k) != tuple(v):
        raise wrong(f"k and v have one shape, not {list(k)} and {list(v)}")
    *batch, queries, heads, dim = q
    *k_batch, keys, kv_heads, k_dim = k
    if dim != k_dim:
        raise wrong(f"q, k and v have one head_dim, not {dim} and {k_dim}")
    if dim % 8 or not 8 <= dim <= 256:
        raise wrong(f"head_dim = {dim}: must be a multiple of 8, up to 256")
    if batch != k_batch:
        raise wrong(f"q has a batch of {batch[0]}, k and v one of {k_batch[0]}")
    if not kv_heads or not heads or heads % kv_heads:
        raise wrong(f"q has {heads} heads, which is no multiple of the {kv_heads} of k and v")
    if heads > 65535:
        raise wrong(f"q has {heads} heads; there are at most 65535")
    count = batch[0] if batch else 1
    if max(count * queries, count * keys) >= MOST:
        raise wrong("q, k and v have less than 2^30 tokens each")
    if count > 65535 and cuda:
        raise wrong(f"a batch of {count}: a GPU takes at most 65535 sequences")
    if bounds is not None:
        if batch:
            raise wrong("with cu_seqlens q, k and v are [tokens, heads, head_dim]: sequences lie "
                        "one after another")
        if bounds[0] != bounds[1] or bounds[0] < 1:
            raise wrong(f"cu_seqlens_q and cu_seqlens_k have one entry more than there are "
                        f"sequences, not {bounds[0]} and {bounds[1]}")
        if bounds[0] > 65536 and cuda:
            raise wrong("a GPU takes at most 65535 sequences")
        count = bounds[0] - 1
    elif max_q or max_k:
        raise wrong("max_seqlen is for packed batches; give cu_seqlens, too")
    return count


def attention_plan(q: Layout, k: Layout, v: Layout, dtype: str, cuda: bool, mask: Mask,
                   bounds: Optional[tuple[int, int]], max_q: int, max_k: int) -> Plan:
    count = check_attention(q.shape, k.shape, v.shape, cuda, bounds, max_q, max_k)
    *batch, queries, heads, dim = q.shape
    keys, kv_heads = k.shape[-3:-1]
    kind, block, window, sinks, origin, scale = mask_of(mask, dim)
    unit = (4 if dtype == "f32" else 8) if cuda else 1
    steps = [each.token_stride(unit) for each in (q, k, v)]
    fits = (steps[0] > 0, steps[1] > 0, steps[2] > 0)
    steps = [step or each.shape[-2] * dim for step, each in zip(steps, (q, k, v))]
    core = _core.attention_plan(
        dtype=dtype if cuda else "f32", cuda=cuda, packed=bounds is not None, sequences=count,
        queries=queries, keys=keys, max_queries=number("max_seqlen_q", max_q, 0) or queries,
        max_keys=number("max_seqlen_k", max_k, 0) or keys, heads=heads, kv_heads=kv_heads,
        head_dim=dim, q_stride=steps[0], k_stride=steps[1], v_stride=steps[2], mask=kind,
        block=block, window=window, sinks=sinks, origin=origin, scale=scale)
    return Plan(core, fits, (heads, *batch, queries), not cuda or dim <= 128)
