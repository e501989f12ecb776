"""Many texts at once: what continuous batching is worth, and that it changes no text.

    python batch.py --count 64 --max-tokens 100
"""
import argparse
import time

import millrace as mr

BEGINNINGS = ["Once upon a time", "One day", "The little dog", "Long ago, in a forest,"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file or a folder; else the storyteller")
    parser.add_argument("--count", type=int, default=32, help="texts")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--together", type=int, default=16, help="texts in the engine at a time")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    prompts = [BEGINNINGS[i % len(BEGINNINGS)] for i in range(given.count)]
    asked = {"max_tokens": given.max_tokens, "ignore_eos": True}
    with mr.Model(given.model, max_sequences=given.together) as model:
        model.generate(prompts[0], **asked)  # warm-up: the first run finds cold caches
        begin = time.perf_counter()
        alone = [model.generate(prompt, seed=given.seed + i, **asked)
                 for i, prompt in enumerate(prompts)]
        one_by_one = time.perf_counter() - begin
        begin = time.perf_counter()
        texts = model.generate_batch(prompts, seed=given.seed, progress=True, **asked)
        together = time.perf_counter() - begin

    tokens = sum(len(text.ids) for text in texts)
    print(prompts[0] + texts[0])
    print(f"{tokens} tokens of {len(texts)} texts: one by one {tokens / one_by_one:.0f} tok/s, "
          f"together {tokens / together:.0f} tok/s ({one_by_one / together:.2f}x)")
    print("each text is as if alone" if texts == alone else "TEXTS DIFFER")


if __name__ == "__main__":
    main()
