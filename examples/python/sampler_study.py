"""What the sampler, the number of passes and the strategy are worth when a model fills in tokens.

The first rung draws on the CPU, from logits that are copied there; the second lets the engine draw.
Both have the same tokens. Then fewer passes settle more tokens each, by schedule or by confidence.

    python sampler_study.py --max-tokens 64
    python sampler_study.py random:sdar-4b:bf16 --block 16       # with a GPU
"""
import argparse

import millrace as mr


def rungs(block, thresholds):
    """(name, options), from the slowest on."""
    whole = {"remask": "static", "block": block}
    yield "sampler on the CPU", {**whole, "use_gpu_sampler": False}
    yield "the engine's sampler", whole
    for tokens in (2, 4, 8):
        if tokens <= block and block % tokens == 0:
            yield f"{tokens} tokens per pass", {**whole, "steps": block // tokens}
    for threshold in thresholds:
        yield f"threshold {threshold}", {"remask": "dynamic", "block": block,
                                         "threshold": threshold}
    yield "entropy", {"remask": "entropy", "block": block}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="storyteller-diffusion",
                        help="a diffusion model; the bundled one if none is given")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--block", type=int, default=4, help="tokens that are filled in together")
    parser.add_argument("--thresholds", type=float, nargs="*", default=[0.9, 0.7, 0.5])
    parser.add_argument("--reps", type=int, default=3, help="runs of each; the best one counts")
    given = parser.parse_args()

    asked = {"max_tokens": given.max_tokens, "ignore_eos": True, "seed": 1, "top_k": 50}
    texts = {}
    with mr.Model(given.model) as model:
        # random:... has no tokenizer, so use ids.
        prompt = given.prompt if not given.model.startswith("random:") else list(range(1, 33))
        print(f"{model.info.source}, on the {model.info.device}\n"
              f"{'rung':24}{'passes':>8}{'tokens per pass':>17}{'tok/s':>10}{'speed-up':>10}")
        for name, options in rungs(given.block, given.thresholds):
            runs = [model.generate(prompt, **asked, **options) for _ in range(given.reps)]
            best = max(runs, key=lambda text: text.tokens_per_second)
            texts[name] = best
            first = texts["sampler on the CPU"].tokens_per_second
            print(f"{name:24}{best.passes:8}{len(best.ids) / best.passes:17.2f}"
                  f"{best.tokens_per_second:10.1f}{best.tokens_per_second / first:9.2f}x")
    same = texts["sampler on the CPU"].ids == texts["the engine's sampler"].ids
    print("both samplers draw the same tokens" if same else "TOKENS DIFFER")


if __name__ == "__main__":
    main()
