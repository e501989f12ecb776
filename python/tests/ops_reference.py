"""Attention by its definition, in f64, with gradients and with an error bound for each element of a
result computed with rounding."""
import numpy as np

EPSILON = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a unit at 1


def visible(queries, keys, causal=True, window=0, sinks=0, block=0, origin=0, before=False):
    """[queries, keys]: the last query is at the last key."""
    p = keys - queries + np.arange(queries)[:, None]
    j = np.arange(keys)[None, :]
    if block and before:
        shown = j // block < p // block
    elif block:
        shown = (j - origin) // block <= (p - origin) // block
    elif causal:
        shown = j <= p
    else:
        shown = np.ones((queries, keys), bool)
    if causal:
        shown = shown & (p >= 0)
    if window:
        shown = shown & ((p - j < window) | (j < sinks))
    return shown


def attention(q, k, v, dout=None, scale=None, dtype="float32", **mask):
    """q [tokens, heads, dim]; k, v [keys, kv_heads, dim]. Returns a dict of out, lse and, with
    dout, dq, dk and dv, and a dict of bounds. dtype: that of the computation; sums are f32."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (queries, heads, dim), (keys, kv_heads, _) = q.shape, k.shape
    group = heads // kv_heads
    scale = scale or dim**-0.5
    shown = visible(queries, keys, **mask)
    wide, kept = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = scale * np.einsum("ihd,jhd->hij", q, wide)
    large = scale * np.einsum("ihd,jhd->hij", abs(q), abs(wide))
    s = np.where(shown, s, -np.inf)
    with np.errstate(all="ignore"):
        top = s.max(-1, keepdims=True, initial=-np.inf)
        e = np.where(shown, np.exp(s - np.where(np.isinf(top), 0, top)), 0)
        lse = (np.log(e.sum(-1)) + np.where(np.isinf(top), 0, top)[..., 0])
        p = e / np.where(e.sum(-1, keepdims=True) == 0, 1, e.sum(-1, keepdims=True))
    unit, sums = EPSILON[dtype], EPSILON["float32"]
    # For a weight: its exponent has the error of a score, and it is rounded before it is
    # multiplied.
    loss = unit + (dim + keys + 20 + abs(s[np.isfinite(s)]).max(initial=0)) * sums * (
        2 + 2 * large.max(initial=0))
    # A result is rounded when it is stored, and out once more before the gradients.
    loss = 4 * loss + 2 * unit
    made = {"out": np.einsum("hij,jhd->ihd", p, kept), "lse": lse}
    bound = {"out": loss * np.einsum("hij,jhd->ihd", p, abs(kept)),
             "lse": np.full(lse.shape, loss) + 4 * sums * abs(np.where(np.isinf(lse), 0, lse))}
    if dout is None:
        return made, bound
    dout = np.asarray(dout, np.float64)

    def shared(x):  # heads of q that share one of k
        return x.reshape(keys, kv_heads, group, dim).sum(2)

    loss += queries * group * sums
    dp = np.einsum("ihd,jhd->hij", dout, kept)
    delta = (p * dp).sum(-1, keepdims=True)
    level = np.einsum("ihd,ihd->hi", abs(dout), np.einsum("hij,jhd->ihd", p, abs(kept)))
    size = p * (np.einsum("ihd,jhd->hij", abs(dout), abs(kept)) + level[..., None])
    ds = p * (dp - delta)
    made["dq"] = scale * np.einsum("hij,jhd->ihd", ds, wide)
    made["dk"] = scale * shared(np.einsum("hij,ihd->jhd", ds, q))
    made["dv"] = shared(np.einsum("hij,ihd->jhd", p, dout))
    bound["dq"] = loss * scale * np.einsum("hij,jhd->ihd", size, abs(wide))
    bound["dk"] = loss * scale * shared(np.einsum("hij,ihd->jhd", size, abs(q)))
    bound["dv"] = loss * shared(np.einsum("hij,ihd->jhd", p, abs(dout)))
    return made, bound


def assert_within(made, wanted, bound, name):
    made = np.asarray(made, np.float64)
    assert made.shape == wanted.shape, name
    same = made == wanted  # infinities, and zeros
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, abs(made - wanted))
    assert (error <= bound + 1e-37).all(), (name, (error / (bound + 1e-37)).max())


MASKS = {
    "causal": {},
    "full": {"causal": False},
    "window": {"window": 5},
    "window and sinks": {"window": 4, "sinks": 3},
    "full window": {"causal": False, "window": 6, "sinks": 2},
    "blocks": {"block": 4},
    "blocks from 3": {"block": 5, "origin": 3},
    "blocks before": {"block": 4, "before": True},
    "blocks and window": {"block": 4, "window": 7, "sinks": 1},
}
