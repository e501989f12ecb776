#!/usr/bin/env bash
# Makes the bundled model on a machine with a GPU: stories, tokenizer, training, both quantised
# files, the distance to the storybook's entropy, and a count of coherent stories.
#   tools/bundled_model.sh OUT [MILLRACE]        (results: docs/bundled-model.md)
set -euo pipefail
out=${1:?usage: bundled_model.sh OUT [MILLRACE]}
millrace=$(realpath "${2:-build/release/millrace}")
mkdir -p "$out"
cd "$out"

distance() {  # MODEL: how far it is from the held-out stories' exact probability
    "$millrace" eval "$1" --text held_out.txt --split '<|endoftext|>' --ends --json > eval.json
    "$millrace-lab" story distance held_out.txt eval.json
}

"$millrace-lab" story write --stories 1000000 --seed 1 --out stories.txt --force
"$millrace-lab" story write --stories 2000 --seed 2 --out held_out.txt --force
"$millrace" tokenizer train --data stories.txt --vocab 4096 --out tok --force
"$millrace" data pack --data stories.txt --tokenizer tok --out data --val-docs 2000 --force
"$millrace" train --device cuda --model llama --dim 256 --layers 8 --heads 8 --kv-heads 4 \
    --hidden 704 --data data --out run --steps 14000 --batch 64 --seq 512 \
    --lr 1.5e-3 --min-lr 1e-5 --warmup 400 --weight-decay 0.05 \
    --eval-every 1000 --save-every 0 --sample-every 0
distance run
for type in q8_0 q4_0; do
    "$millrace" convert run "storyteller-$type.gguf" --type "$type" --force
    distance "storyteller-$type.gguf"
    "$millrace" run "storyteller-$type.gguf" --temp 1 --top-k 0 --top-p 1 --min-p 0 -n 500 \
        --count 400 --seed 1 > "samples-$type.txt"
    "$millrace-lab" story check "samples-$type.txt" --show 5
done
