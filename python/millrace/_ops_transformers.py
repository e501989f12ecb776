"""Attention for the models of transformers: attn_implementation="millrace"."""
from __future__ import annotations

import importlib
from typing import Any, Optional

from . import ops
from ._ops_plan import wrong

torch: Any = importlib.import_module("torch")


def register(name: str) -> None:
    try:
        transformers: Any = importlib.import_module("transformers")
        masks: Any = importlib.import_module("transformers.masking_utils")
        attention, mask = transformers.AttentionInterface, transformers.AttentionMaskInterface
    except (ImportError, AttributeError):
        raise ImportError("mr.ops.register_transformers() wants transformers 4.53 or later"
                          ) from None
    plain = {masks.causal_mask_function: True}  # whether it is causal
    if hasattr(masks, "bidirectional_mask_function"):
        plain[masks.bidirectional_mask_function] = False

    def padding(*given: Any, **options: Any) -> Any:
        return _padding(plain, *given, **options)

    attention.register(name, forward)
    mask.register(name, padding)


def _padding(plain: dict[Any, bool], batch_size: int, *positions: Any,
             q_length: Optional[int] = None, kv_length: int = 0, q_offset: Any = 0,
             kv_offset: int = 0, mask_function: Any = None, attention_mask: Any = None,
             local_size: Optional[int] = None, cache_position: Any = None, **_: Any) -> Any:
    """Which keys count, [batch, keys], or None where all do. The rest is forward()'s."""
    if positions:  # positions of the queries, before transformers 5
        cache_position = positions[0]
    if cache_position is not None:
        q_offset, q_length = cache_position[0], cache_position.shape[0]
    if mask_function is not None and mask_function not in plain:
        _require_window(mask_function, batch_size, int(q_offset), int(q_length or 0), kv_offset,
                        kv_length, local_size)
    held = kv_length
    if q_length is not None and plain.get(mask_function, True):
        # The last query is at the last key; the rest of a static cache is empty.
        held = min(kv_length, int(q_offset) + q_length - kv_offset)
    if attention_mask is None:
        return None if held == kv_length else torch.ones(batch_size, held, dtype=torch.bool)
    kept = attention_mask[:, kv_offset:kv_offset + held].bool()
    if kept.shape[1] < held:
        raise wrong(f"attention_mask has {attention_mask.shape[1]} entries per row for "
                    f"{kv_offset + held} tokens, those in the cache included")
    if local_size is not None and local_size < held and _has_holes(kept):
        raise wrong("attention_mask has zeros between ones, and this model has a window, which "
                    'counts them; pad on the left, or use "sdpa"')
    return None if held == kv_length and kept.all() else kept


def _has_holes(kept: Any) -> bool:
    begins = kept[:, 0].long() + (kept[:, 1:] & ~kept[:, :-1]).sum(1)  # runs of ones
    return bool((begins > 1).any())


def _require_window(mask_function: Any, batch: int, q_offset: int, q_length: int, kv_offset: int,
                    kv_length: int, window: Optional[int]) -> None:
    """A mask that was put together: is it causal, with a window? Asks every query at its edges."""
    if window is not None and torch.compiler.is_compiling():
        return
    row = torch.arange(batch)[:, None].expand(batch, q_length)
    q = torch.arange(q_offset, q_offset + q_length).expand(batch, q_length)
    low = (q - (window or 1 << 30) + 1).clamp(min=kv_offset)
    try:
        for keys, shown in ((q + 1, False), (q, True), (low, True), (low - 1, False)):
            inside = (keys >= kv_offset) & (keys < kv_offset + kv_length) & (q >= 0)
            keys = keys.clamp(kv_offset, kv_offset + kv_length - 1)
            seen = torch.as_tensor(mask_function(row, torch.zeros_like(q), q, keys)).cpu()
            if (seen.expand_as(q)[inside] != shown).any():
                break
        else:
            return
    except (IndexError, RuntimeError):
        pass
    raise wrong('this model\'s mask is none that attn_implementation="millrace" knows (causal, all '
                'keys, a window, padding); use "sdpa"')


def forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any,
            scaling: Optional[float] = None, dropout: float = 0.0,
            sliding_window: Optional[int] = None, is_causal: Optional[bool] = None,
            **given: Any) -> tuple[Any, None]:
    """query [batch, heads, tokens, head_dim]; gives [batch, tokens, heads, head_dim]."""
    if dropout:
        raise wrong('attn_implementation="millrace" has no dropout; set attention_dropout=0')
    for name in ("softcap", "s_aux", "head_mask", "position_bias", "block_table"):
        if given.get(name) is not None:
            raise wrong(f'attn_implementation="millrace" has no {name}; use "eager"')
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options: dict[str, Any] = {"causal": bool(causal), "scale": scaling,
                               "window": sliding_window or 0}
    begins = given.get("cu_seq_lens_q")
    if attention_mask is not None:
        if attention_mask.dim() != 2:
            raise wrong('attn_implementation="millrace" takes a mask of padding [batch, keys], not '
                        f'{list(attention_mask.shape)}; use "sdpa"')
        kept = attention_mask.to(query.device, torch.bool)
        return _padded(query, key, value, kept, options), None
    if begins is not None and given.get("cu_seq_lens_k") is not None:
        flat = [x.reshape(-1, *x.shape[2:]) for x in (query, key, value)]
        out = ops.attention(flat[0], flat[1], flat[2], cu_seqlens_q=begins,
                            cu_seqlens_k=given["cu_seq_lens_k"],
                            max_seqlen_q=int(given.get("max_length_q") or 0),
                            max_seqlen_k=int(given.get("max_length_k") or 0), **options)
        return out.view(query.shape), None
    return ops.attention(query, key, value, **options), None


def _padded(q: Any, k: Any, v: Any, kept: Any, options: dict[str, Any]) -> Any:
    """Tokens that count as a packed batch; those that do not have 0 for a result."""
    keys = kept.shape[1]
    k, v = k[:, :keys], v[:, :keys]  # a static cache is longer than its content
    # Queries are the last tokens, or (all keys are visible) those of another text.
    asked = (kept[:, -q.shape[1]:] if options["causal"]
             else torch.ones(q.shape[:2], dtype=torch.bool, device=q.device))
    if asked.shape[1] < q.shape[1]:
        raise wrong(f"a mask of {keys} keys is for fewer tokens than the {q.shape[1]} queries")

    def bounds(which: Any) -> Any:
        return torch.nn.functional.pad(which.sum(1).cumsum(0), (1, 0)).to(torch.int32)

    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    made = ops.attention(q[asked], k[kept], v[kept], cu_seqlens_q=bounds(asked),
                         cu_seqlens_k=bounds(kept), max_seqlen_q=q.shape[1], max_seqlen_k=keys,
                         **options)
    return out.masked_scatter(asked[:, :, None, None], made)
