#!/usr/bin/env bash
# Runs tests of test_gpu under compute-sanitizer: `make sanitize-gpu`, or
#   scripts/sanitize_gpu.sh build/release/test_gpu
#   FILTER='FlashTest.EveryMask*' TOOL=racecheck scripts/sanitize_gpu.sh build/release/test_gpu
#   FILTER='GpuStep.*' TOOL=initcheck scripts/sanitize_gpu.sh build/release/test_gpu
# Exit code 77 if there is no compute-sanitizer or no GPU (1 with MILLRACE_REQUIRE_GPU=1).
set -euo pipefail
program=${1:?"usage: $0 build/release/test_gpu"}
tool=${TOOL:-memcheck}

# Every kind of kernel, at small sizes. Left out: tests of deliberate faults, of speed, of a million
# draws, of models of gigabytes, and tests that repeat another one many times.
tests=(
    'DeviceTest.*' 'ActivationTest.*' 'CheckTest.*' 'EmbeddingTest.*' 'LossTest.*' 'RopeTest.*'
    'QkvFinishTest.*' 'NormTest.*' 'SampleTest.*' 'FusedLinear.*' 'Plain*' 'SmallLinear.AddActivate*'
    'SmallLinear.ManyTokens*' 'GemmTest.*' 'GemmAgainstF64.*' 'AttentionGpu.*' 'FlashTest.*'
    'FlashBackwardTest.*' 'FlashCallsTest.*' 'FlashApiTest.*' 'FlashUnfusedTest.*' 'GpuRecorded.*'
    'GpuStep.SequencesOf*' 'GpuStep.BatchesHave*' 'GpuStep.HasTheBitsOfItsPartsWithManyKeys'
    'GpuStep.HasTheBitsOfItsPartsWithAParallelResidualAndHeadsOf80' 'AdamWTest.*'
    'ActivationBackwardTest.*' 'NormBackwardTest.MatchesF64' 'LossBackwardTest.*' 'RopeTrainTest.*' 'EmbeddingBackwardTest.*'
    'LinearTrainTest.MatchesF64' 'GpuTraining.Batches*' 'StreamsTest.TheHost*'
)
but=(
    '*AMillionDraws*' '*HundredRuns*' '*TheSameBitsEveryTime*' '*ManyMoreRows*'
    '*LongSequence*'
)
# racecheck is some hundred times slower than the kernels: only attention's, on small inputs.
if [ "$tool" = racecheck ]; then
    tests=(
        'AttentionGpu.EveryKernelOnAFewKeys' 'FlashBackwardTest.EveryPathOnAFewTokens'
        'FlashTest.GroupsOfHeads' 'FlashTest.PartsOfAFusedProjection' 'FlashUnfusedTest.*'
    )
fi
default=$(IFS=:; echo "${tests[*]}:-${but[*]}")
filter=${FILTER:-$default}

sanitizer=${COMPUTE_SANITIZER:-}
for place in "$sanitizer" compute-sanitizer /usr/local/cuda/bin/compute-sanitizer; do
    [ -n "$place" ] && command -v "$place" > /dev/null && { sanitizer=$place; break; }
    sanitizer=
done
cannot() {
    echo "$1"
    [ "${MILLRACE_REQUIRE_GPU:-}" = 1 ] && exit 1
    exit 77
}
[ -n "$sanitizer" ] ||
    cannot "compute-sanitizer is not here: it is part of the CUDA toolkit (set COMPUTE_SANITIZER)"
MILLRACE_REQUIRE_GPU=1 "$program" --gtest_brief=1 --gtest_filter='DeviceTest.CopiesAreCounted' ||
    cannot "the GPU cannot be used: see above"
# racecheck understands block and warp barriers, and cp.async. For mbarriers and named barriers it
# reports races where there are none: kernels that use these are excluded by name.
left_out=()
if [ "$tool" = racecheck ]; then
    option=--kernel-name-exclude
    help=$("$sanitizer" --help 2>&1) || true
    case $help in *"$option"*) ;; *) option=--kernel-regex-exclude ;; esac
    for kernel in ForwardShape flash_backward_kernel stream_kernel step_kernel norm_bulk \
        mid_kernel half_kernel; do
        left_out+=("$option" "kernel_substring=$kernel")
    done
    left_out+=(--racecheck-report analysis)
fi
# Failed CUDA calls are not reported: the program checks them all, and some tests provoke them.
exec "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9 \
    ${left_out[@]+"${left_out[@]}"} \
    "$program" --gtest_brief=1 \
    --gtest_filter="$filter"
