#!/usr/bin/env bash
# Makes the bundled diffusion model on a machine with a GPU: it starts from the bundled storyteller,
# is trained in two runs, then quantised and evaluated.
#   tools/bundled_diffusion.sh OUT [MILLRACE]        (results: docs/bundled-model.md)
set -euo pipefail
out=${1:?usage: bundled_diffusion.sh OUT [MILLRACE]}
millrace=$(realpath "${2:-build/release/millrace}")
mkdir -p "$out"
cd "$out"

"$millrace-lab" story write --stories 2000 --seed 2 --out held_out.txt --force
train() {  # INIT, the run's folder, stories, their seed, steps, warmup
    "$millrace-lab" story write --stories "$3" --seed "$4" --out stories.txt --force
    "$millrace" data pack --data stories.txt --tokenizer tok.gguf --out "data-$3" --val-docs 2000 \
        --force
    "$millrace" train --device cuda --objective diffusion --block 4 --init "$1" --data "data-$3" \
        --out "$2" --steps "$5" --batch 64 --seq 512 --lr 1e-3 --min-lr 1e-5 --warmup "$6" \
        --weight-decay 0.05 --eval-every 1000 --save-every 0 --sample-every 0
}
"$millrace" convert storyteller tok.gguf --type q8_0 --force
train storyteller first 1000000 1 3200 200
"$millrace" convert first first.gguf --type q8_0 --force
# In runs/: a folder of this name right here would shadow the bundled model.
train first.gguf runs/storyteller-diffusion 2000000 3 12200 100
"$millrace" convert runs/storyteller-diffusion storyteller-diffusion.gguf --type q8_0 \
    --force
for threshold in 0.3 0.5 0.7 0.8 0.9 0.99; do
    "$millrace" eval storyteller-diffusion.gguf --text held_out.txt --split '<|endoftext|>' \
        --limit 300 --threshold "$threshold" --json > eval.json
    "$millrace-lab" story distance held_out.txt eval.json
    "$millrace" run storyteller-diffusion.gguf --temp 1 --top-k 0 --top-p 1 --min-p 0 -n 500 \
        --count 200 --seed 1 --threshold "$threshold" > "samples-$threshold.txt"
    "$millrace-lab" story check "samples-$threshold.txt" --show 5
done
