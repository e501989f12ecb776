#!/bin/sh
# Runs an example that needs a GPU: example.sh PROGRAM [ARGUMENT ...]. Exit code 77, which ctest takes
# for skipped, where there is none; with MILLRACE_REQUIRE_GPU=1 that is the program's own failure.
said=$("$@" 2>&1)
code=$?
printf '%s\n' "$said"
case $said in
*"no CUDA-capable device"* | *"driver version is insufficient"*)
    [ "$MILLRACE_REQUIRE_GPU" = 1 ] || exit 77 ;;
esac
exit $code
