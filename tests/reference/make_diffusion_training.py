#!/usr/bin/env python3
"""Records gradients of the diffusion objective for some of the models of make_reference.py.

    python3 tests/reference/make_diffusion_training.py [--only NAME ...]

Writes diffusion.safetensors into the folders that are there, all computed in f64:
    ids     i64 [2, 16]: two sequences, in blocks of 4
    masked  i64 [2, 16]: 1 where the noisy sequence has the mask, the last token of the vocabulary
    weights f32 [2, 16]: 4 / the masked tokens of the block
    losses  f32 [2, 16]: weight * cross-entropy of masked tokens, with a logit of -infinity for the
            mask itself; 0 elsewhere. Their sum / 32 is the loss
    grad_norm and NAME: of that loss's gradients, as in train.safetensors
The input is [noisy | clean] with the positions of 16 tokens twice: noisy tokens see their own noisy
block and clean blocks before it, clean ones see clean blocks up to their own.
"""

import argparse
import pathlib
import zlib

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from make_reference import SAMPLED, VARIANTS, Float64

FAMILIES = ["llama2", "qwen3"]
SEQUENCES, SEQ, BLOCK = 2, 16, 4


def allowed():
    """[2 SEQ, 2 SEQ]: whether row i sees row j."""
    at = torch.arange(2 * SEQ)
    block, clean = at % SEQ // BLOCK, at >= SEQ
    same = block[:, None] == block[None, :]
    before = block[:, None] > block[None, :]
    noisy_row = ~clean[:, None]
    return (noisy_row & ((~clean[None, :] & same) | (clean[None, :] & before))) | (
        clean[:, None] & clean[None, :] & (same | before))


def record(name, folder):
    model_class, config, _ = VARIANTS[name]
    config._attn_implementation = "eager"
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 2)
    mask = config.vocab_size - 1
    ids = torch.from_numpy(rng.integers(0, mask, (SEQUENCES, SEQ)))
    masked = torch.zeros(SEQUENCES, SEQ, dtype=torch.int64)
    weights = torch.zeros(SEQUENCES, SEQ, dtype=torch.float64)
    for s in range(SEQUENCES):
        for b in range(SEQ // BLOCK):
            count = 1 + (s * SEQ // BLOCK + 3 * b) % BLOCK
            places = b * BLOCK + rng.permutation(BLOCK)[:count]
            masked[s, places] = 1
            weights[s, b * BLOCK:(b + 1) * BLOCK] = BLOCK / count
    out = {"ids": ids.to(torch.int64), "masked": masked, "weights": weights}
    state = {k: v.detach().double() for k, v in AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32).state_dict().items()}
    torch.set_default_dtype(torch.float64)
    try:
        with Float64():
            model = model_class(config)
            model.eval()
            model.load_state_dict(state, strict=False)
            noisy = torch.where(masked == 1, torch.tensor(mask), ids)
            bias = torch.zeros(2 * SEQ, 2 * SEQ).masked_fill(~allowed(), float("-inf"))
            places = torch.arange(SEQ).repeat(2).expand(SEQUENCES, -1)
            logits = model(torch.cat([noisy, ids], 1), position_ids=places,
                           attention_mask=bias.expand(SEQUENCES, 1, -1, -1)).logits[:, :SEQ]
            logits = logits.index_fill(2, torch.tensor([mask]), float("-inf"))
            losses = torch.nn.functional.cross_entropy(
                logits.reshape(-1, config.vocab_size), ids.reshape(-1), reduction="none")
            losses = torch.where(masked == 1, losses.reshape(SEQUENCES, SEQ) * weights, 0.0)
            (losses.sum() / (SEQUENCES * SEQ)).backward()
            parameters = dict(model.named_parameters())
            for key, p in parameters.items():
                flat = p.grad.reshape(-1)
                assert flat.dtype == torch.float64 and flat.isfinite().all()
                sampled = flat[::-(-len(flat) // SAMPLED)]
                out[key] = torch.cat([flat.norm().reshape(1), sampled])
            out["grad_norm"] = torch.sqrt(
                sum((p.grad ** 2).sum() for p in parameters.values())).reshape(1)
    finally:
        torch.set_default_dtype(torch.float32)
    out["losses"] = losses.detach()
    whole = ("ids", "masked")
    out = {k: v if k in whole else v.to(torch.float32).contiguous() for k, v in out.items()}
    save_file(out, folder / "diffusion.safetensors")
    print(f"{name}: loss {losses.sum().item() / 32:.4f}, |gradient| {out['grad_norm'].item():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=FAMILIES)
    args = parser.parse_args()
    for name in args.only:
        record(name, pathlib.Path(__file__).parent / name)


if __name__ == "__main__":
    main()
