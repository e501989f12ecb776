#!/bin/sh
# usage: tidy.sh CLANG_TIDY JOBS [FILE...]: every source of ours, or those given.
set -eu
tidy=$1 jobs=$2
shift 2
command -v "$tidy" >/dev/null 2>&1 || { echo "tidy: $tidy is not installed" >&2; exit 1; }
# Configured on its own: a precompiled header of another compiler is of no use to it, and each file has
# to have a command.
cmake --preset release -B build/tidy -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DMILLRACE_TESTS=OFF \
    -DMILLRACE_TOGETHER=OFF >/dev/null
# Kernel files are compiled once per instruction set; some of those flags are not this machine's.
skip='kernels|test|bench|fuzz'
grep -q '_cuda\.cpp' build/tidy/compile_commands.json || skip="$skip|cuda"  # not in this build
[ $# -gt 0 ] || set -- $(git ls-files 'src/*.cpp' 'bench/ops/*.cpp' | grep -vE "_($skip)\.cpp\$")
printf '%s\n' "$@" | xargs -P "$jobs" -n 4 "$tidy" --quiet -p build/tidy
