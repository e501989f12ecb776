#!/usr/bin/env bash
# Compiles every kernel, those of tests too, for each generation of GPUs that the project names, with
# warnings as errors: `make cuda-archs`. It needs no GPU, and nvcc 12.8 or later, which knows 12.0.
#   usage: cuda_archs.sh JOBS [ARCHS]      ARCHS: "75;80;89;90a;120"
set -euo pipefail
jobs=${1:?"usage: $0 JOBS [ARCHS]"}
archs=${2:-"75;80;89;90a;120"}
folder=build/cuda-archs
cmake --preset release -B "$folder" -DMILLRACE_CUDA=ON -DMILLRACE_CUDA_ARCH="$archs" \
    -DMILLRACE_CUDA_OPTIMIZE=ON -DMILLRACE_WERROR=ON -DMILLRACE_MPI=OFF > "$folder.log" 2>&1 || {
    tail -n 20 "$folder.log" >&2
    exit 1
}
mapfile -t objects < <(ninja -C "$folder" -t targets all | sed -n 's/\(.*\.cu\.o\): CUDA_COMPILER.*/\1/p')
[ "${#objects[@]}" -gt 0 ] || { echo "cuda_archs.sh: $folder has no kernels" >&2; exit 1; }
ninja -C "$folder" -j "$jobs" "${objects[@]}"
echo "${#objects[@]} files of kernels compile for $archs"
