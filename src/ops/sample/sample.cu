#include <algorithm>
#include <cstdint>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/sample/sample_cuda.h"
#include "ops/sample/sample_row.cuh"

namespace mr::cuda {
namespace {

using namespace sampling;

// Advances the row and publishes the draw: to the next step, to device memory and to the host.
// `before` is a copy of the row before the draw.
__device__ void publish(const SampleState& state, int r, const SampleRow& before, u64 step,
                        const Drawn& drawn) {
    SampleRow& row = state.rows[r];
    if (drawn.flags != kSampleInactive) {
        row.position = before.position + 1;
        if (drawn.flags == 0 && before.window > 0) {
            state.recent[static_cast<std::int64_t>(r) * state.most_recent + before.recent_next] =
                drawn.id;
            row.recent_next = (before.recent_next + 1) % before.window;
            row.recent_used = min(before.recent_used + 1, before.window);
        }
        if (state.next_ids) state.next_ids[r] = drawn.id;
    }
    if (state.probability) state.probability[r] = drawn.probability;
    if (state.confidence) state.confidence[r] = drawn.confidence;
    if (state.flags) state.flags[r] = drawn.flags;
    if (!state.steps) return;
    state.steps[r] = step + 1;
    if (!state.ring) return;
    const auto slots = static_cast<u32>(state.ring_slots);
    volatile SampleSlot* slot =
        state.ring + static_cast<u64>(r) * slots + static_cast<u32>(step % slots);
    slot->id = drawn.id;
    slot->probability = drawn.probability;
    slot->confidence = drawn.confidence;
    __threadfence_system();  // a host that sees the tag also sees the rest
    slot->tag = static_cast<u32>(step + 1) << 4 | drawn.flags;
}

// A team of blocks per row. Two blocks fit on a multiprocessor, clusters or not: 32 rows of 8
// blocks run at once on 132 of them.
template <bool kCluster, bool kGreedy>
__global__ void __launch_bounds__(kThreads, 2)
    sample_rows(const float* logits, int vocab, SampleState state, Stamp* stamp) {
    extern __shared__ __align__(16) float memory[];
    __shared__ Work work;
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const int row = static_cast<int>(blockIdx.x) / Team<kCluster>::size();
    RowDraw<kCluster> draw(work, memory, logits + static_cast<std::int64_t>(row) * vocab, vocab);
    const Drawn drawn = draw.template draw<kGreedy>(state, row);
    if (Team<kCluster>::rank() == 0 && thread() == 0) {
        publish(state, row, work.row, work.step, drawn);
    }
}

// The most dynamic shared memory that a block can have; the device is asked once. 0: it has no
// clusters.
template <bool kCluster, bool kGreedy>
std::size_t most_slice_bytes() {
    static const std::size_t bytes = [] {
        const auto kernel = sample_rows<kCluster, kGreedy>;
        cudaFuncAttributes attributes{};
        MR_CUDA_CALL(cudaFuncGetAttributes(&attributes, kernel));
        if (kCluster && this_gpu().sm < 90) return std::size_t{0};
        const std::size_t room = this_gpu().shared_per_block - attributes.sharedSizeBytes;
        MR_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(room)));
        if (kCluster) {
            MR_CUDA_CALL(
                cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
        }
        return room;
    }();
    return bytes;
}

template <bool kGreedy>
void launch_rows(const Context& ctx, int rows, int team, const float* logits, int vocab,
                 const SampleState& state, Stamp* stamp) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(rows * team));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = slice_bytes(vocab, team);
    config.stream = ctx.cuda->raw();
    cudaLaunchAttribute attributes[2]{};
    if (team > 1) {
        cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {static_cast<unsigned>(team), 1, 1};
    }
    if (launches_dependent(ctx)) {
        cudaLaunchAttribute& dependent = attributes[config.numAttrs++];
        dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        dependent.val.programmaticStreamSerializationAllowed = 1;
    }
    config.attrs = attributes;
    const auto kernel = team > 1 ? sample_rows<true, kGreedy> : sample_rows<false, kGreedy>;
    MR_CUDA_CALL(cudaLaunchKernelEx(&config, kernel, logits, vocab, state, stamp));
}

}  // namespace

bool sample_team_fits(std::int64_t vocab, int team) {
    const bool power_of_two = team > 0 && (team & (team - 1)) == 0;
    if (!power_of_two || team > Team<true>::kMost) return false;
    const std::size_t most =
        team == 1 ? std::min(most_slice_bytes<false, false>(), most_slice_bytes<false, true>())
                  : std::min(most_slice_bytes<true, false>(), most_slice_bytes<true, true>());
    if (slice_bytes(vocab, team) > most) return false;
    if (team <= 8) return true;
    // CUDA guarantees clusters of up to 8 blocks; larger ones have to be queried.
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(team));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = slice_bytes(vocab, team);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(team), 1, 1};
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    const cudaError_t status =
        cudaOccupancyMaxActiveClusters(&clusters, sample_rows<true, false>, &config);
    if (status != cudaSuccess) cudaGetLastError();  // this device has no such clusters
    return status == cudaSuccess && clusters > 0;
}

void sample(const Context& ctx, Tensor logits, const SampleState& state, SampleKind kind,
            int team) {
    MR_CHECK(logits.dtype == DType::f32 && logits.shape.rank == 2, "logits are f32 [rows, vocab]");
    const std::int64_t rows = logits.shape[0], vocab = logits.shape[1];
    MR_CHECK(rows > 0 && rows <= 1 << 20, "there are rows, at most 2^20");
    MR_CHECK(vocab > 0 && vocab <= 1 << 19, "the vocabulary has at most 2^19 tokens");
    MR_CHECK(state.rows != nullptr, "every row has its parameters");
    MR_CHECK(!state.ring || (state.steps && state.ring_slots > 0), "a ring has slots and steps");
    MR_CHECK(!state.recent == (state.most_recent == 0), "rings of recent tokens have places");
    if (team == 0) team = usual_team(vocab);
    MR_CHECK(sample_team_fits(vocab, team), "the device has teams of that size");
    // Compare, subtract, exponential, add: 4 operations per logit, as on the CPU. Only the device
    // knows how much of the rings is read.
    const OpRecord work{1, logits.bytes() + static_cast<std::uint64_t>(rows) * sizeof(SampleRow),
                        static_cast<std::uint64_t>(rows) * sizeof(SampleSlot),
                        4 * static_cast<std::uint64_t>(rows * vocab), 0};
    const bool greedy = kind == SampleKind::greedy;
    Stamp* stamp = account(ctx, OpKind::sample, greedy ? "greedy" : "sample", work);
    const auto launch_kind = greedy ? launch_rows<true> : launch_rows<false>;
    launch_kind(ctx, static_cast<int>(rows), team, logits.f32(), static_cast<int>(vocab), state,
                stamp);
}

void check_sample_flags(std::uint32_t flags) {
    if (flags & kSampleNan) ops::nan_in_logits();
    if (flags & kSampleNone) ops::no_token_in_logits();
    MR_CHECK(!(flags & kSampleInactive), "the row was set");
    MR_CHECK(!(flags & kSampleKind), "the greedy kernel is given greedy rows");
}

}  // namespace mr::cuda
