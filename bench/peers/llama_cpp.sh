#!/usr/bin/env bash
# Millrace against llama.cpp on one GGUF file: decode and prefill, both engines in turn, so that
# other load on the machine affects both.
#
#   bench/peers/llama_cpp.sh LLAMA_BENCH MILLRACE MODEL.gguf [--threads N] [--rounds N]
#                            [--prompt N] [--generate N] [--only decode|prefill] [--json]
#
# LLAMA_BENCH is llama.cpp's llama-bench, MILLRACE the millrace binary. Every round runs each engine
# once per test, the order swapped from round to round. Each run is one figure in tok/s: for
# llama-bench the mean of its three repetitions after a warm-up, for millrace the `tok_s` of its
# JSON. The ratio is millrace / llama.cpp: of the bests, of the medians, and the median of the
# ratios inside a round.
set -euo pipefail

usage() { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
die() { echo "llama_cpp.sh: $*" >&2; exit 1; }

paths=() threads="$(nproc)" rounds=5 prompt=128 generate=32 only="" json=0
while (($#)); do
    case "$1" in
        --threads | --rounds | --prompt | --generate | --only)
            (($# >= 2)) || usage
            printf -v "${1#--}" '%s' "$2"
            shift
            ;;
        --json) json=1 ;;
        -*) usage ;;
        *) paths+=("$1") ;;
    esac
    shift
done
((${#paths[@]} == 3)) || usage
for n in "$threads" "$rounds" "$prompt" "$generate"; do [[ "$n" =~ ^[1-9][0-9]*$ ]] || usage; done
[[ "$only" =~ ^(|decode|prefill)$ ]] || usage
llama_bench="${paths[0]}" millrace="${paths[1]}" model="${paths[2]}"
[[ -x "$llama_bench" ]] || die "$llama_bench: no such program; build llama.cpp's llama-bench"
[[ -x "$millrace" ]] || die "$millrace: no such program; build millrace first"
[[ -r "$model" ]] || die "$model: cannot be read"
command -v python3 >/dev/null || die "python3 is needed to read the results"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# run_one ENGINE TEST ROUND: leaves the engine's JSON in $work/ENGINE.TEST.ROUND
run_one() {
    local out="$work/$1.$2.$3" command
    case "$1.$2" in
        llama.decode) command=("$llama_bench" -m "$model" -t "$threads" -p 0 -n "$generate" -r 3 -o json) ;;
        llama.prefill) command=("$llama_bench" -m "$model" -t "$threads" -p "$prompt" -n 0 -r 3 -o json) ;;
        millrace.decode) command=("$millrace" bench decode "$model" --threads "$threads" --prompt 1 -n "$generate" --json) ;;
        millrace.prefill) command=("$millrace" bench prefill "$model" --threads "$threads" --prompt "$prompt" --json) ;;
    esac
    echo "round $3: ${command[*]}" >&2
    "${command[@]}" >"$out" 2>"$work/err" || { cat "$work/err" >&2; die "failed: ${command[*]}"; }
}

for ((round = 1; round <= rounds; ++round)); do
    for test in decode prefill; do
        [[ -z "$only" || "$only" == "$test" ]] || continue
        if ((round % 2)); then order="llama millrace"; else order="millrace llama"; fi
        for engine in $order; do run_one "$engine" "$test" "$round"; done
    done
done

python3 - "$work" "$json" "$model" "$threads" "$rounds" "$prompt" "$generate" <<'PY'
import json, os, statistics, sys

work, as_json, model, threads, rounds, prompt, generate = sys.argv[1:]
rounds = int(rounds)

def rate(engine, test, round_):
    with open(f"{work}/{engine}.{test}.{round_}") as file:
        result = json.load(file)
    return float(result[0]["avg_ts"] if engine == "llama" else result["tok_s"])

report = {"model": os.path.basename(model), "threads": int(threads), "rounds": rounds,
          "prompt": int(prompt), "generate": int(generate), "tests": {}}
for test in ("decode", "prefill"):
    if not os.path.exists(f"{work}/llama.{test}.1"):
        continue
    with open(f"{work}/llama.{test}.1") as file:
        first = json.load(file)[0]
    report["llama_cpp"] = {"commit": first.get("build_commit"), "build": first.get("build_number"),
                           "model_type": first.get("model_type")}
    runs = {e: [rate(e, test, r + 1) for r in range(rounds)] for e in ("llama", "millrace")}
    ratios = [m / l for m, l in zip(runs["millrace"], runs["llama"])]
    entry = {"llama_cpp_tok_s": runs["llama"], "millrace_tok_s": runs["millrace"]}
    for name, pick in (("best", max), ("median", statistics.median)):
        ours, theirs = pick(runs["millrace"]), pick(runs["llama"])
        entry[name] = {"llama_cpp": theirs, "millrace": ours, "ratio": ours / theirs}
    entry["median_ratio_in_round"] = statistics.median(ratios)
    entry["ratio_in_round_min_max"] = [min(ratios), max(ratios)]
    report["tests"][test] = entry

if as_json == "1":
    print(json.dumps(report, indent=2))
else:
    peer = report["llama_cpp"]
    print(f"{report['model']} ({peer['model_type']}), {threads} threads, {rounds} rounds in turn, "
          f"llama.cpp commit {peer['commit']}\n")
    print("| test | of | llama.cpp tok/s | millrace tok/s | ratio |")
    print("|---|---|---:|---:|---:|")
    for test, entry in report["tests"].items():
        label = f"decode {generate}" if test == "decode" else f"prefill {prompt}"
        for name in ("best", "median"):
            e = entry[name]
            print(f"| {label} | {name} | {e['llama_cpp']:.2f} | {e['millrace']:.2f} "
                  f"| {e['ratio']:.2f} |")
        low, high = entry["ratio_in_round_min_max"]
        print(f"| {label} | ratio inside a round, median (min, max) | | "
              f"| {entry['median_ratio_in_round']:.2f} ({low:.2f}, {high:.2f}) |")
PY
