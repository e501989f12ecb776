#!/usr/bin/env python3
"""Decode with PyTorch and transformers, batch 1: what Millrace is compared with.

  bench/peers/torch_decode.py [--parts ceilings,eager,compiled] [--models ...] [--budget SECONDS]
                              [--shape neox:... --type f16]

One JSON object per line: the ceilings of this machine, then tokens per second of each model with
random weights, eager and with torch.compile (reduce-overhead: CUDA graphs) over a static cache. A
part that fails reports its error and the others run. Compiling takes most of the time; parts that
would start after --budget seconds are skipped and say so.
"""
import torch_models as tm  # first: it reports missing packages in one line

import torch
import transformers


def decode(args, part, name, model, step):
    """Fills a static cache with the prompt, then step(token, position) over and over."""
    device = args.device
    cache = transformers.StaticCache(config=model.config,
                                     max_cache_len=args.prompt + args.warmup + args.tokens)
    vocab = model.config.vocab_size
    prompt = torch.randint(vocab, (1, args.prompt), device=device)
    # The cache is made at its first use, which must not be inside the compiled part.
    model(**tm.forward_arguments(model, prompt, torch.arange(args.prompt, device=device), cache))
    token = torch.randint(vocab, (1, 1), device=device)
    position = torch.full((1,), args.prompt, device=device)

    def steps(count):
        for _ in range(count):
            if device == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            token.copy_(step(cache, token, position))
            position.add_(1)

    first = tm.seconds(device, lambda: steps(args.warmup))
    took = tm.seconds(device, lambda: steps(args.tokens))
    weights = sum(p.nbytes for p in model.parameters())
    tm.emit(part=part, model=name, dtype=tm.MODELS[name][1], prompt=args.prompt,
            tokens=args.tokens, tok_s=args.tokens / took, ms_per_token=1e3 * took / args.tokens,
            weight_gb_s=weights * args.tokens / took / 1e9, warmup_s=first)


def make_step(model):
    def step(cache, token, position):
        out = model(**tm.forward_arguments(model, token, position, cache))
        return out.logits[:, -1].argmax(-1, keepdim=True)

    return step


def eager(args, name, model):
    decode(args, "eager", name, model, make_step(model))


def compiled(args, name, model):
    torch._dynamo.reset()
    step = torch.compile(make_step(model), mode="reduce-overhead", dynamic=False)
    decode(args, "compiled", name, model, step)


def more(parser):
    parser.add_argument("--prompt", type=int, default=128, help="tokens before (default: 128)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens timed (default: 64)")
    parser.add_argument("--warmup", type=int, default=5, help="... and not (default: 5)")


if __name__ == "__main__":
    arguments = tm.parse(__doc__.splitlines()[0], ["ceilings", "eager", "compiled"], more)
    tm.run(arguments, {"eager": eager, "compiled": compiled})
