#!/bin/sh
# usage: tidy.sh CLANG_TIDY JOBS [FILE...]: checks all our sources, or only the given ones.
set -eu
tidy=$1 jobs=$2
shift 2
command -v "$tidy" >/dev/null 2>&1 || { echo "tidy: $tidy is not installed" >&2; exit 1; }
# A separate build folder: clang-tidy cannot read another compiler's precompiled headers, and it
# needs a compile command for each file.
cmake --preset release -B build/tidy -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DMILLRACE_TESTS=OFF \
    -DMILLRACE_TOGETHER=OFF >/dev/null
# Kernel files are compiled once per instruction set; this machine may not support some flags.
skip='kernels|test|bench|fuzz'
grep -q '_cuda\.cpp' build/tidy/compile_commands.json || skip="$skip|cuda"  # not compiled here
[ $# -gt 0 ] || set -- $(git ls-files 'src/*.cpp' 'lab/*.cpp' | grep -vE "_($skip)\.cpp\$")
# The commands are g++'s, which knows warnings that clang does not.
printf '%s\n' "$@" |
    xargs -P "$jobs" -n 1 "$tidy" --quiet -p build/tidy --extra-arg=-Wno-unknown-warning-option
