"""The package beside the program: what a call from Python costs. Prints a table, or --json.

    MILLRACE_BIN=build/release/millrace python bench/peers/python_model.py --device cuda
"""
import argparse
import json
import os
import statistics
import subprocess
import time

import millrace as mr


def program(*words):
    done = subprocess.run([os.environ["MILLRACE_BIN"], *map(str, words), "--json"], check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def one_text(asked):
    """tokens/s behind the first token, by the engine's clock and by the caller's: the program has the
    same engine and prompt."""
    words = ("run", asked.model, "-p", "Once upon a time", "-n", asked.tokens, "--ignore-eos", "--seed", 1,
             "--device", asked.device)
    theirs = statistics.median(program(*words)["tok_s"] for _ in range(asked.reps))
    with mr.Model(asked.model, device=asked.device) as model:
        def generate(count):
            begin = time.perf_counter()
            made = model.generate("Once upon a time", max_tokens=count, ignore_eos=True, seed=1)
            return time.perf_counter() - begin, made
        generate(asked.tokens)
        rows = []
        for _ in range(asked.reps):
            first, _ = generate(1)
            whole, made = generate(asked.tokens)
            rows.append(((asked.tokens - 1) / (whole - first), made.tokens_per_second))
    callers, engines = (statistics.median(column) for column in zip(*rows))
    return {"what": "generate", "program_tok_s": theirs, "python_tok_s": callers, "engine_tok_s": engines,
            "share": callers / theirs}


def many_texts(asked):
    """Output tokens/s of all prompts at once, from the call to its end, prompts included."""
    count = asked.sequences
    table = program("bench", "batch", asked.batch_model, "--sequences", count, "--prompt", 128, "-n", 128,
                    "--device", asked.device)
    theirs = table["rows"][0]["output_tok_s"]
    with mr.Model(asked.batch_model, device=asked.device, max_sequences=count, ctx=512) as model:
        vocab = model.info.vocab
        prompts = [[(7919 * (128 * i + j) + 13 * i) % (vocab - 1) + 1 for j in range(128)]
                   for i in range(count)]
        def run():
            begin = time.perf_counter()
            texts = model.generate_batch(prompts, max_tokens=128, ignore_eos=True, seed=1)
            seconds = time.perf_counter() - begin
            assert all(len(text.ids) == 128 for text in texts)
            return 128 * count / seconds
        run()
        ours = statistics.median(run() for _ in range(asked.reps))
    return {"what": f"generate_batch, {count}", "program_tok_s": theirs, "python_tok_s": ours,
            "share": ours / theirs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:stories-110m:f16")
    parser.add_argument("--batch-model", default="random:stories-110m:f16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [one_text(asked), many_texts(asked)]
    if asked.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['what']:20} program {row['program_tok_s']:10.1f}  python {row['python_tok_s']:10.1f}"
              f"  share {100 * row['share']:.1f}%")


if __name__ == "__main__":
    main()
