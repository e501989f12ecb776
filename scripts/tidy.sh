#!/bin/sh
# usage: tidy.sh CLANG_TIDY BUILD_FOLDER JOBS [FILE...]: every source of ours, or those given.
set -eu
tidy=$1 build=$2 jobs=$3
shift 3
command -v "$tidy" >/dev/null 2>&1 || { echo "tidy: $tidy is not installed" >&2; exit 1; }
# Kernel files are compiled once per instruction set; some of those flags are not this machine's.
[ $# -gt 0 ] || set -- $(git ls-files 'src/*.cpp' | grep -v '_kernels\.cpp$')
printf '%s\n' "$@" | xargs -P "$jobs" -n 4 "$tidy" --quiet -p "$build"
