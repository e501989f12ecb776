#!/usr/bin/env python3
"""The table of docs/parallel.md: what `millrace plan` says of training runs that others published.

Each program's runs are predicted twice: by the shares of the peak that our own kernels reach, and
with --pace set so that the program's smallest run comes out as published, which leaves the scaling
to be predicted. No constant is chosen by row.

    bench/plan/published.py path/to/millrace
"""
import json
import subprocess
import sys

# Common to all of these runs: gradients are added in bf16.
FAST = ("--reduce", "fast")

# Program, then its runs: a name, the arguments of `plan`, the figure, what it measures. Batches and
# layouts as in the sources. Assumed: Megatron's layout, the batch of llm.c's 1558M, and
# recomputation, which each program does in its own ways.
PUBLISHED = [
    ("llm.c", [
        ("124M, 8 H100", "random:gpt2 --gpus 8 --batch 512 --data 8 --micro-batches 1 --zero 1 "
         "--recompute light", 3.74e6, "tok_s"),
        ("1558M, 8 H100", "random:gpt2-xl --gpus 8 --batch 1024 --data 8 --micro-batches 8 "
         "--zero 1 --recompute light", 374e3, "tok_s")]),
    ("llm.c", [
        ("124M, 8 A100", "random:gpt2 --device a100 --gpus 8 --batch 512 --data 8 "
         "--micro-batches 1 --zero 1 --recompute light", 1.75e6, "tok_s")]),
    ("llmq", [
        ("0.5B, 1 H100", "random:qwen2.5-0.5b --gpus 1 --seq 1024 --batch 512 --micro-batches 16 "
         "--recompute none --masters bf16", 149e3, "tok_s"),
        ("0.5B, 8 H100", "random:qwen2.5-0.5b --gpus 8 --seq 1024 --batch 512 --data 8 "
         "--micro-batches 2 --zero 1 --recompute none --masters bf16", 1.18e6, "tok_s"),
        ("1.5B, 1 H100", "random:qwen2.5-1.5b --gpus 1 --seq 1024 --batch 512 --micro-batches 32 "
         "--recompute none --masters bf16", 58.9e3, "tok_s"),
        ("1.5B, 8 H100", "random:qwen2.5-1.5b --gpus 8 --seq 1024 --batch 512 --data 8 "
         "--micro-batches 4 --zero 1 --recompute none --masters bf16", 457e3, "tok_s")]),
    ("llmq", [
        ("0.5B, 1 RTX 4090", "random:qwen2.5-0.5b --device rtx-4090 --gpus 1 --seq 1024 "
         "--batch 512 --micro-batches 64 --recompute none --masters bf16", 40e3, "tok_s"),
        ("0.5B, 4 RTX 4090", "random:qwen2.5-0.5b --device rtx-4090 --gpus 4 --node 4 --seq 1024 "
         "--batch 512 --data 4 --micro-batches 16 --zero 1 --recompute none --masters bf16",
         154e3, "tok_s")]),
    ("torchtitan", [
        ("8B, 8 H100, a GPU", "random:llama-3-8b --gpus 8 --batch 16 --data 8 --zero 3 "
         "--micro-batches 1 --recompute full", 5762, "tok_s_per_gpu"),
        ("8B, 128 H100, a GPU", "random:llama-3-8b --gpus 128 --batch 256 --data 128 --zero 3 "
         "--micro-batches 1 --recompute full", 5605, "tok_s_per_gpu")]),
    ("Megatron", [
        ("175B, 96 H100, MFU", "random:gpt3-175b --gpus 96 --tensor 8 --pipeline 12 --data 1 "
         "--micro-batches 1152 --interleave 8 --batch 1152 --recompute none", 0.47, "mfu"),
        ("175B, 4,608 H100, MFU", "random:gpt3-175b --gpus 4608 --tensor 8 --pipeline 12 "
         "--data 48 --zero 1 --micro-batches 24 --interleave 8 --batch 1152 --recompute none",
         0.42, "mfu")]),
]


def plan(binary, arguments, pace=1.0):
    """The layout that `plan` gives, as its JSON has it."""
    command = [binary, "plan", *arguments.split(), *FAST, "--json"]
    if pace != 1.0:
        command += ["--pace", f"{pace:.6f}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["layouts"][0]


def predictions(binary):
    """Of every run: program, name, published, predicted, its band, the pace, predicted with it."""
    for program, runs in PUBLISHED:
        pace = 1.0
        for number, (name, arguments, published, key) in enumerate(runs):
            plain = plan(binary, arguments)
            if number == 0:
                for _ in range(4):  # communication does not scale with the pace
                    pace *= plan(binary, arguments, pace)[key] / published
            step = plain["step_seconds"]
            band = (plain[key] * step / plain["step_seconds_high"],
                    plain[key] * step / plain["step_seconds_low"])
            yield (program, name, published, plain[key], band, pace,
                   plan(binary, arguments, pace)[key], number == 0)


def shown(value):
    return f"{100 * value:.1f}%" if value < 1 else f"{value:,.0f}"


def main():
    print("| run | published | predicted | off | band | pace | predicted with it | off |")
    print("|---|---:|---:|---:|---|---:|---:|---:|")
    for program, name, published, plain, band, pace, paced, first in predictions(sys.argv[1]):
        print(f"| {program} {name} | {shown(published)} | {shown(plain)} "
              f"| {round(100 * (plain / published - 1)):+d}% | {shown(band[0])} to {shown(band[1])} "
              f"| {pace:.2f} | " +
              ("set by it | |" if first
               else f"{shown(paced)} | {100 * (paced / published - 1):+.1f}% |"))


if __name__ == "__main__":
    main()
