#!/usr/bin/env bash
# Makes the bundled model: builds the storybook, writes the corpus, trains, measures.
#   tools/bundled_model/make.sh OUT [arguments for train.py]
# OUT receives eight files: config.json, model.safetensors, tokenizer.json, tokenizer_config.json,
# generation_config.json, metrics.json, samples.txt, loss.csv.
# Environment: STORIES (default 1000000), HELD_OUT (2000), SEED (1), JOBS (all cores),
# BUDGET (seconds for everything, 460), PYTHON (python3), CXX (g++), TMPDIR.
set -euo pipefail
began=$(date +%s)
out=${1:?usage: make.sh OUT [arguments for train.py]}
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
stories=${STORIES:-1000000} held_out=${HELD_OUT:-2000} seed=${SEED:-1} jobs=${JOBS:-$(nproc)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "[$(($(date +%s) - began)) s] $*"; }

say "building the storybook"
export root work
compile() {
    "${CXX:-g++}" -std=c++20 -O2 -I"$root/src" -c "$1" -o "$work/$(basename "$1" .cpp).o"
}
export -f compile
printf '%s\n' "$root"/src/train/grammar*.cpp "$root"/src/train/storybook*.cpp \
    "$here/storybook_main.cpp" | xargs -P "$jobs" -I{} bash -c 'compile {}'
"${CXX:-g++}" "$work"/*.o -o "$work/storybook"
entropy=$("$work/storybook" entropy)

say "writing $stories stories, $entropy nats each"
part=$(((stories + jobs - 1) / jobs))
pids=()
for ((i = 0; i < jobs; ++i)); do
    first=$((i * part))
    count=$((first + part <= stories ? part : stories - first))
    ((count > 0)) || break
    "$work/storybook" write "$seed" "$first" "$count" >"$work/part.$(printf %04d "$i")" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
cat "$work"/part.* >"$work/corpus.txt"
rm "$work"/part.*
# Held-out stories: the indices right behind the corpus.
"$work/storybook" write "$seed" "$stories" "$held_out" >"$work/held_out.txt"
"$work/storybook" nats "$seed" "$stories" "$held_out" >"$work/held_out_nats.txt"
say "$(wc -c <"$work/corpus.txt") bytes"

PYTHONUNBUFFERED=1 "${PYTHON:-python3}" "$here/train.py" --corpus "$work/corpus.txt" \
    --held-out "$work/held_out.txt" --held-out-nats "$work/held_out_nats.txt" \
    --entropy "$entropy" --out "$out" --deadline $((began + ${BUDGET:-460})) "$@"

# How many of the sampled stories could the grammar itself have written, word for word?
verdict=$("$work/storybook" check <"$out/samples.txt")
sed -i "1s/{/{\n  \"samples\": $verdict,/" "$out/metrics.json"
say "samples: $verdict"
ls -l "$out"
