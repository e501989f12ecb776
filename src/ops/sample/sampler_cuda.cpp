#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "core/cuda/check.h"
#include "core/cuda/spin.h"
#include "core/error.h"
#include "ops/sample/sample_cuda.h"

namespace mr::cuda {
namespace {

constexpr std::uint32_t kNumberBits = 28;
constexpr std::uint32_t kNumberMask = (1u << kNumberBits) - 1;

// Tokens in the pinned staging memory for recent tokens, for any window.
constexpr std::size_t kTokensStaged = 16384;

std::size_t size(int n) { return static_cast<std::size_t>(n); }

// Slots of the pinned staging memory for rows. An upload waits for the previous upload from its
// slot, which comes after all steps queued by then. A text that joins or leaves takes one slot, so
// that all of a full batch may leave and others join before any upload waits.
std::size_t places(int max_rows) { return std::max<std::size_t>(64, 2 * size(max_rows)); }

}  // namespace

std::size_t Sampler::device_bytes(int max_rows, int most_recent) {
    const std::size_t rows = size(max_rows);
    return DeviceArena::padded(rows * sizeof(SampleRow)) +
           DeviceArena::padded(rows * size(most_recent) * sizeof(std::int32_t)) +
           DeviceArena::padded(rows * sizeof(std::uint64_t)) +
           DeviceArena::padded(rows * sizeof(std::int32_t)) +
           2 * DeviceArena::padded(rows * sizeof(float)) +
           DeviceArena::padded(rows * sizeof(std::uint32_t));
}

Sampler::Sampler(const Stream& stream, int max_rows, int most_recent, int ring_slots)
    : stream_(stream),
      memory_("sampler", device_bytes(max_rows, most_recent)),
      ring_(size(max_rows) * size(ring_slots) * sizeof(SampleSlot)),
      staging_(places(max_rows) * sizeof(SampleRow)),
      tokens_(kTokensStaged * sizeof(std::int32_t)),
      steps_(size(max_rows), 0),
      set_(size(max_rows)),
      uploaded_(places(max_rows)) {
    MR_CHECK(max_rows > 0 && ring_slots > 0, "there are rows and slots");
    const std::size_t rows = size(max_rows);
    state_.rows = memory_.array<SampleRow>(rows);
    if (most_recent > 0) {
        state_.recent = memory_.array<std::int32_t>(rows * size(most_recent));
        state_.most_recent = most_recent;
    }
    state_.steps = memory_.array<std::uint64_t>(rows);
    state_.next_ids = memory_.array<std::int32_t>(rows);
    state_.probability = memory_.array<float>(rows);
    state_.confidence = memory_.array<float>(rows);
    state_.flags = memory_.array<std::uint32_t>(rows);
    state_.ring = reinterpret_cast<SampleSlot*>(ring_.on_device());
    state_.ring_slots = ring_slots;
    std::memset(ring_.data(), 0, ring_.size());
    stream_.fill(memory_.data(), 0, memory_.size());
    // Queries the kernels' attributes now, because a query is not allowed during a capture.
    sample_team_fits(1, 1);
    sample_team_fits(1, 8);
}

std::int32_t* Sampler::ring_of(int row) const {
    return state_.recent + size(row) * size(state_.most_recent);
}

void Sampler::set_row(int row, const ops::SampleParams& params, std::int64_t position,
                      std::span<const std::int32_t> recent, int window, Ledger* ledger) {
    ops::check_sample_params(params);
    MR_CHECK(row >= 0 && row < max_rows(), "the row is one of the sampler's");
    MR_CHECK(window >= 0 && window <= most_recent(), "the window is at most most_recent() tokens");
    if (params.repeat_penalty == 1.0f) window = 0;  // without a penalty recent tokens are not used
    SampleRow& to = set_[size(row)];
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
    to.recent_used = static_cast<std::int32_t>(last.size());
    to.recent_next = window > 0 ? to.recent_used % window : 0;
    upload_recent(row, last, ledger);
    upload(row, ledger);
}

void Sampler::clear_row(int row, Ledger* ledger) {
    MR_CHECK(row >= 0 && row < max_rows(), "the row is one of the sampler's");
    set_[size(row)] = {};
    upload(row, ledger);
}

void Sampler::copy_row(int to, int from) {
    MR_CHECK(to >= 0 && to < max_rows() && from >= 0 && from < max_rows(),
             "the rows are two of the sampler's");
    if (to == from) return;
    set_[size(to)] = set_[size(from)];
    stream_.on_device(state_.rows + to, state_.rows + from, sizeof(SampleRow));
    stream_.on_device(state_.next_ids + to, state_.next_ids + from, sizeof(std::int32_t));
    if (const int window = set_[size(from)].window; window > 0) {
        stream_.on_device(ring_of(to), ring_of(from), size(window) * sizeof(std::int32_t));
    }
}

void Sampler::upload(int row, Ledger* ledger) {
    Event& uploaded = uploaded_[place_];
    uploaded.synchronize();
    SampleRow* const staged = reinterpret_cast<SampleRow*>(staging_.data()) + place_;
    *staged = set_[size(row)];
    stream_.to_device(state_.rows + row, staged, sizeof(SampleRow), ledger);
    stream_.record(uploaded);
    place_ = (place_ + 1) % uploaded_.size();
}

void Sampler::upload_recent(int row, std::span<const std::int32_t> tokens, Ledger* ledger) {
    auto* const staging = reinterpret_cast<std::int32_t*>(tokens_.data());
    for (std::size_t sent = 0; sent < tokens.size();) {
        if (tokens_used_ == kTokensStaged) {
            tokens_read_.synchronize();
            tokens_used_ = 0;
        }
        const std::size_t count = std::min(tokens.size() - sent, kTokensStaged - tokens_used_);
        std::copy_n(tokens.data() + sent, count, staging + tokens_used_);
        stream_.to_device(ring_of(row) + sent, staging + tokens_used_, count * sizeof *staging,
                          ledger);
        stream_.record(tokens_read_);
        tokens_used_ += count;
        sent += count;
    }
}

SampleKind Sampler::kind(int first, int rows) const {
    MR_CHECK(first >= 0 && first + rows <= max_rows(), "the sampler was made for that many rows");
    const SampleRow* const row = set_.data() + first;
    const bool greedy = std::all_of(
        row, row + rows, [](const SampleRow& one) { return !one.active || one.temperature == 0; });
    return greedy ? SampleKind::greedy : SampleKind::any;
}

SampleState Sampler::state_from(int first) const {
    SampleState state = state_;
    state.rows += first;
    state.recent += static_cast<std::ptrdiff_t>(first) * state.most_recent;
    state.steps += first;
    state.ring += static_cast<std::ptrdiff_t>(first) * state.ring_slots;
    state.next_ids += first;
    state.probability += first;
    state.confidence += first;
    state.flags += first;
    return state;
}

void Sampler::sample(const Context& ctx, Tensor logits, int first) {
    const auto rows = static_cast<int>(logits.shape[0]);
    MR_CHECK(logits.shape.rank == 2 && first + rows <= max_rows(),
             "the sampler was made for that many rows");
    MR_CHECK(ctx.cuda == &stream_, "the sampler works on the stream it was made for");
    cuda::sample(ctx, logits, state_from(first), kind(first, rows));
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
    std::optional<Result> result;
    spin_until(stream_, [&] { return (result = poll(row, step)).has_value(); });
    check_sample_flags(result->flags);
    return result->sampled;
}

}  // namespace mr::cuda
