#!/usr/bin/env python3
"""Prefill with PyTorch and transformers, one prompt: what Millrace is compared with.

  bench/peers/torch_prefill.py [--parts ceilings,eager,compiled] [--models ...] [--prompt 2048]

One JSON object per line: the ceilings of this machine, then tokens per second of a prompt on each
model with random weights; the keys and values are kept and only the last token's logits are made,
as before decoding. `compiled` is torch.compile over the same; it is not run unless asked for.
"""
import torch
import transformers

import torch_models as tm


def prefill(args, part, name, model, forward):
    device = args.device
    ids = torch.randint(model.config.vocab_size, (1, args.prompt), device=device)
    positions = torch.arange(args.prompt, device=device)

    def once():
        cache = transformers.DynamicCache(config=model.config)
        forward(**tm.forward_arguments(model, ids, positions, cache, last_only=True))

    t = tm.median_seconds(device, once, args.reps)
    # Only GEMMs with weights: embeddings are looked up, the head sees one token.
    skipped = {id(e.weight) for e in (model.get_input_embeddings(), model.get_output_embeddings())}
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2 and id(p) not in skipped)
    tm.emit(part=part, model=name, dtype=tm.MODELS[name][1], prompt=args.prompt,
            tok_s=args.prompt / t, ms=1e3 * t, linear_tflop_s=2 * weights * args.prompt / t / 1e12)


def eager(args, name, model):
    prefill(args, "eager", name, model, model)


def compiled(args, name, model):
    torch._dynamo.reset()
    prefill(args, "compiled", name, model, torch.compile(model, dynamic=False))


def more(parser):
    parser.add_argument("--prompt", type=int, default=2048, help="tokens (default: 2048)")
    parser.add_argument("--reps", type=int, default=7, help="repetitions (default: 7)")
    parser.set_defaults(parts="ceilings,eager")


if __name__ == "__main__":
    arguments = tm.parse(__doc__.splitlines()[0], ["ceilings", "eager", "compiled"], more)
    tm.run(arguments, {"eager": eager, "compiled": compiled})
