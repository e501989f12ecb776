#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/cuda/check.h"
#include "core/error.h"
#include "ops/sample/sample_cuda.h"

namespace mr::cuda {
namespace {

constexpr std::uint32_t kNumberBits = 28;
constexpr std::uint32_t kNumberMask = (1u << kNumberBits) - 1;

std::size_t size(int n) { return static_cast<std::size_t>(n); }

}  // namespace

std::size_t Sampler::device_bytes(int max_rows) {
    const std::size_t rows = size(max_rows);
    return DeviceArena::padded(rows * sizeof(SampleRow)) +
           DeviceArena::padded(rows * sizeof(std::uint64_t)) +
           DeviceArena::padded(rows * sizeof(std::int32_t)) +
           2 * DeviceArena::padded(rows * sizeof(float)) +
           DeviceArena::padded(rows * sizeof(std::uint32_t));
}

Sampler::Sampler(const Stream& stream, int max_rows, int ring_slots)
    : stream_(stream),
      memory_("sampler", device_bytes(max_rows)),
      ring_(size(max_rows) * size(ring_slots) * sizeof(SampleSlot)),
      staging_(size(max_rows) * sizeof(SampleRow)),
      steps_(size(max_rows), 0),
      draws_(size(max_rows), Draws::nothing),
      uploaded_(size(max_rows)) {
    MR_CHECK(max_rows > 0 && ring_slots > 0, "there are rows and slots");
    const std::size_t rows = size(max_rows);
    state_.rows = memory_.array<SampleRow>(rows);
    state_.steps = memory_.array<std::uint64_t>(rows);
    state_.next_ids = memory_.array<std::int32_t>(rows);
    state_.probability = memory_.array<float>(rows);
    state_.confidence = memory_.array<float>(rows);
    state_.flags = memory_.array<std::uint32_t>(rows);
    state_.ring = reinterpret_cast<SampleSlot*>(ring_.on_device());
    state_.ring_slots = ring_slots;
    std::memset(ring_.data(), 0, ring_.size());
    std::memset(staging_.data(), 0, staging_.size());
    stream_.fill(memory_.data(), 0, memory_.size());
    sample_team_fits(1, 8);  // what is asked of the kernels once is not asked while capturing
}

void Sampler::set_row(int row, const ops::SampleParams& params, std::int64_t position,
                      std::span<const std::int32_t> recent, Ledger* ledger, int window) {
    ops::check_sample_params(params);
    MR_CHECK(row >= 0 && row < max_rows(), "the row is one of the sampler's");
    MR_CHECK(window >= 0 && window <= kMostRecent, "the window is at most kMostRecent tokens");
    uploaded_[size(row)].synchronize();
    SampleRow& to = reinterpret_cast<SampleRow*>(staging_.data())[row];
    to = {};
    to.temperature = params.temperature;
    to.top_p = params.top_p;
    to.min_p = params.min_p;
    to.repeat_penalty = params.repeat_penalty;
    to.top_k = params.top_k;
    to.active = 1;
    to.seed = params.seed;
    to.position = position;
    to.window = window;
    const std::span<const std::int32_t> last = recent.last(std::min(recent.size(), size(window)));
    std::copy(last.begin(), last.end(), to.recent);
    to.recent_used = static_cast<std::int32_t>(last.size());
    to.recent_next = window > 0 ? to.recent_used % window : 0;
    draws_[size(row)] = params.temperature == 0 ? Draws::greedy : Draws::any;
    upload(row, ledger);
}

void Sampler::clear_row(int row, Ledger* ledger) {
    MR_CHECK(row >= 0 && row < max_rows(), "the row is one of the sampler's");
    uploaded_[size(row)].synchronize();
    reinterpret_cast<SampleRow*>(staging_.data())[row] = {};
    draws_[size(row)] = Draws::nothing;
    upload(row, ledger);
}

void Sampler::move_row(int to, int from) {
    MR_CHECK(to >= 0 && to <= from && from < max_rows(), "rows are of the sampler's");
    draws_[size(to)] = draws_[size(from)];
    draws_[size(from)] = Draws::nothing;
}

void Sampler::upload(int row, Ledger* ledger) {
    const SampleRow* from = reinterpret_cast<const SampleRow*>(staging_.data()) + row;
    stream_.to_device(state_.rows + row, from, sizeof(SampleRow), ledger);
    stream_.record(uploaded_[size(row)]);
}

SampleKind Sampler::kind(int first, int rows) const {
    MR_CHECK(first >= 0 && first + rows <= max_rows(), "the sampler was made for that many rows");
    const auto begin = draws_.begin() + first;
    return std::find(begin, begin + rows, Draws::any) == begin + rows ? SampleKind::greedy
                                                                      : SampleKind::any;
}

void Sampler::sample(const Context& ctx, Tensor logits, int first) {
    const auto rows = static_cast<int>(logits.shape[0]);
    MR_CHECK(logits.shape.rank == 2 && first + rows <= max_rows(),
             "the sampler was made for that many rows");
    MR_CHECK(ctx.cuda == &stream_, "the sampler works on the stream it was made for");
    SampleState state = state_;
    state.rows += first;
    state.steps += first;
    state.ring += static_cast<std::ptrdiff_t>(first) * state.ring_slots;
    state.next_ids += first;
    state.probability += first;
    state.confidence += first;
    state.flags += first;
    cuda::sample(ctx, logits, state, kind(first, rows));
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    MR_CUDA_CALL(cudaStreamIsCapturing(stream_.raw(), &capturing));
    if (capturing == cudaStreamCaptureStatusNone) replayed(rows, ctx.ledger, first);
}

void Sampler::replayed(int rows, Ledger* ledger, int first) {
    MR_CHECK(rows > 0 && first >= 0 && first + rows <= max_rows(),
             "the sampler was made for that many rows");
    for (int row = first; row < first + rows; ++row) ++steps_[size(row)];
    if (ledger) ledger->add_device_to_host(size(rows) * sizeof(SampleSlot));
}

std::optional<Sampler::Result> Sampler::poll(int row, std::uint64_t step) const {
    MR_CHECK(row >= 0 && row < max_rows(), "the row is one of the sampler's");
    const std::size_t slots = size(state_.ring_slots);
    const SampleSlot* slot =
        reinterpret_cast<const SampleSlot*>(ring_.data()) + size(row) * slots + step % slots;
    const std::uint32_t tag = __atomic_load_n(&slot->tag, __ATOMIC_ACQUIRE);
    const std::uint32_t want = static_cast<std::uint32_t>(step + 1) & kNumberMask;
    const std::uint32_t ahead = ((tag >> 4) - want) & kNumberMask;
    if (ahead != 0) {
        MR_CHECK(ahead > kNumberMask / 2, "a draw is read before the ring comes round to it");
        return std::nullopt;
    }
    Result result;
    const volatile SampleSlot* fields = slot;
    result.sampled = {fields->id, fields->probability, fields->confidence};
    result.flags = tag & 15u;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    MR_CHECK(__atomic_load_n(&slot->tag, __ATOMIC_RELAXED) == tag,
             "a draw is read before the ring comes round to it");
    return result;
}

ops::Sampled Sampler::wait(int row, std::uint64_t step) const {
    MR_CHECK(row >= 0 && row < max_rows() && step < steps(row), "the draw has been launched");
    constexpr int kSpins = 1024;  // some microseconds: a token is never far
    for (std::uint64_t spins = 1;; ++spins) {
        if (const std::optional<Result> result = poll(row, step)) {
            check_sample_flags(result->flags);
            return result->sampled;
        }
        if (spins % kSpins == 0) std::this_thread::yield();
        if (spins % (kSpins * 64) != 0) continue;
        // Is anybody still working on it? A failed device never writes.
        const cudaError_t status = cudaStreamQuery(stream_.raw());
        if (status == cudaErrorNotReady) continue;
        MR_CUDA_CALL(status);
        MR_CHECK(poll(row, step).has_value(), "a launch that is over has written its draw");
    }
}

}  // namespace mr::cuda
