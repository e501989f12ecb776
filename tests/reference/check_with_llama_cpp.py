#!/usr/bin/env python3
"""Load a GGUF with llama.cpp and print or compare its logits. A tool to be run by hand.

    pip install llama-cpp-python safetensors numpy
    check_with_llama_cpp.py MODEL.gguf --expected tests/reference/llama2/expected.safetensors
    check_with_llama_cpp.py MODEL.gguf --ids 1,263,267 [--top 5 | --json]

With --expected it feeds the recorded ids, prints how far llama.cpp's logits are from the recorded
ones, and exits 1 where the worst is beyond --tolerance. With --ids it prints the logits. The KV cache
is f32 and flash attention is off, so that what differs is llama.cpp's arithmetic on the weights.
"""

import argparse
import json
import sys

import numpy as np


def llama_logits(path, ids, threads):
    import llama_cpp

    model = llama_cpp.Llama(path, n_ctx=max(64, len(ids)), n_batch=max(64, len(ids)),
                            n_threads=threads, n_threads_batch=threads, logits_all=True,
                            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
                            flash_attn=False, n_gpu_layers=0, verbose=False)
    model.eval(ids)
    return np.array(model.scores[: len(ids)], dtype=np.float32)  # [S, vocab]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--expected", help="expected.safetensors of a reference folder")
    what.add_argument("--ids", help="token ids, separated by commas")
    parser.add_argument("--tolerance", type=float, default=1e-3,
                        help="largest allowed |difference| (default 1e-3, meant for f32 weights)")
    parser.add_argument("--top", type=int, default=5, help="largest logits to print per position")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    want = None
    if arguments.expected:
        from safetensors.numpy import load_file

        expected = load_file(arguments.expected)
        ids, want = expected["input_ids"].tolist(), expected["logits"]
    else:
        ids = [int(part) for part in arguments.ids.split(",")]

    try:
        got = llama_logits(arguments.model, ids, arguments.threads)
    except (ValueError, RuntimeError) as error:
        sys.exit(f"{arguments.model}: llama.cpp does not load or run it: {error}")

    if want is None:
        if arguments.json:
            print(json.dumps({"ids": ids, "logits": got.tolist()}))
            return
        for position, row in enumerate(got):
            best = np.argsort(-row, kind="stable")[: arguments.top]
            print(position, ids[position], "  ".join(f"{i}:{row[i]:.5f}" for i in best))
        return

    if got.shape != want.shape:
        sys.exit(f"{arguments.model}: logits are {got.shape}, expected {want.shape}")
    difference = np.abs(got.astype(np.float64) - want)
    worst = float(difference.max())
    result = {"tokens": len(ids), "max_abs_difference": worst,
              "rms_difference": float(np.sqrt((difference**2).mean())),
              "max_abs_logit": float(np.abs(want).max()),
              "same_argmax": float((got.argmax(-1) == want.argmax(-1)).mean()),
              "worst_position": int(difference.max(-1).argmax()),
              "ok": bool(worst <= arguments.tolerance)}
    if arguments.json:
        print(json.dumps(result))
    else:
        print(", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in result.items()))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
