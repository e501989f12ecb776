#!/usr/bin/env bash
# Runs a program that was built with ThreadSanitizer:
#   scripts/tsan.sh build/release/test_tsan --gtest_filter='ThreadPool.*'
# If the kernel randomises addresses more than the sanitizer's runtime expects, the runtime refuses
# to start, always or now and then. The program is then run again without randomisation.
# Exit code 66 if there was a race, 77 if it starts neither way.
set -uo pipefail
: "${1:?"usage: $0 PROGRAM [ARGUMENTS]"}"
export TSAN_OPTIONS="exitcode=66 second_deadlock_stack=1 ${TSAN_OPTIONS:-}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

"$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
refused='ThreadSanitizer: unexpected memory mapping'
[ "$status" -ne 0 ] && grep -q "$refused" "$log" || exit "$status"

fixed=(setarch "$(uname -m)" -R)
if "${fixed[@]}" true; then
    echo "Again, without address space randomisation:"
    "${fixed[@]}" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    grep -q "$refused" "$log" || exit "$status"
fi
echo "ThreadSanitizer does not start here (sysctl vm.mmap_rnd_bits=28 may help)"
exit 77
