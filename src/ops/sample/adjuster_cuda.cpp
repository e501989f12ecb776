#include <algorithm>
#include <cstring>

#include "core/cuda/spin.h"
#include "core/error.h"
#include "ops/sample/adjust_cuda.h"

namespace mr::cuda {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
std::size_t words_of(std::int64_t vocab) { return size((vocab + 31) / 32); }
// Rows of a draw, followed by as many masks.
std::size_t draw_bytes(int rows, std::int64_t vocab) {
    return size(rows) * (sizeof(AdjustRow) + words_of(vocab) * sizeof(std::uint32_t));
}

}  // namespace

std::size_t Adjuster::device_bytes(int slots, int rows, std::int64_t vocab) {
    const std::size_t all = size(slots);
    return DeviceArena::padded(draw_bytes(rows, vocab)) +
           DeviceArena::padded(all * ops::kMostBiases * sizeof(ops::LogitBias)) +
           DeviceArena::padded(all * size(vocab) * sizeof(std::uint16_t)) +
           DeviceArena::padded(all * size(vocab) * sizeof(float)) +
           DeviceArena::padded(all * sizeof(RowBest));
}

Adjuster::Adjuster(const Stream& stream, int slots, int rows, std::int64_t vocab)
    : stream_(stream),
      most_rows_(rows),
      vocab_(vocab),
      memory_("adjusted draws", device_bytes(slots, rows, vocab)),
      staging_(2 * draw_bytes(rows, vocab)),
      notes_(size(slots) * kNotes * sizeof(DrawNote)),
      texts_(size(slots)) {
    const std::size_t all = size(slots);
    auto* const draw = memory_.array<std::byte>(draw_bytes(rows, vocab));
    state_.rows = reinterpret_cast<AdjustRow*>(draw);
    state_.bias = memory_.array<ops::LogitBias>(all * ops::kMostBiases);
    state_.counts = memory_.array<std::uint16_t>(all * size(vocab));
    state_.raw = memory_.array<float>(all * size(vocab));
    state_.best = memory_.array<RowBest>(all);
    state_.notes = reinterpret_cast<DrawNote*>(notes_.on_device());
    state_.words = static_cast<int>(words_of(vocab));
    std::memset(notes_.data(), 0, notes_.size());
}

void Adjuster::open(int slot, const ops::Adjustments& adjust, bool filtered, int logprobs,
                    Ledger* ledger) {
    MR_CHECK(slot >= 0 && size(slot) < texts_.size(), "the slot is one of the adjuster's");
    MR_CHECK(logprobs <= ops::kMostLogprobs, "there are at most kMostLogprobs of them");
    Text& text = texts_[size(slot)];
    // Numbers continue from the slot's last text, so that its late notes are not mistaken for this
    // text's.
    const std::uint32_t number = text.row.number;
    text = {};
    text.first = text.row.number = number;
    text.row.slot = slot;
    text.row.mask = -1;
    text.row.biases = static_cast<std::int32_t>(adjust.bias.size());
    text.row.logprobs = logprobs;
    text.row.presence = adjust.presence;
    text.row.frequency = adjust.frequency;
    text.row.adjusts = filtered || adjust;
    if (!adjust.bias.empty()) {
        stream_.to_device(state_.bias + size(slot) * ops::kMostBiases, adjust.bias.data(),
                          adjust.bias.size() * sizeof(ops::LogitBias), ledger);
    }
    if (adjust.counts()) {
        stream_.fill(state_.counts + size(slot) * size(vocab_), 0,
                     size(vocab_) * sizeof(std::uint16_t));
    }
}

void Adjuster::set_rows(std::span<const Row> rows, Ledger* ledger) {
    MR_CHECK(rows.size() <= size(most_rows_), "the adjuster was made for that many rows");
    half_ = 1 - half_;
    sent_[half_].synchronize();
    std::byte* const from = staging_.data() + half_ * (staging_.size() / 2);
    auto* to = reinterpret_cast<AdjustRow*>(from);
    auto* masks = reinterpret_cast<std::uint32_t*>(to + rows.size());
    const std::size_t words = size(state_.words);
    std::int32_t masked = 0, noted = 0;
    for (const Row& row : rows) {
        AdjustRow& one = *to++;
        one = {};
        one.slot = one.mask = -1;
        if (row.slot < 0) continue;
        Text& text = texts_[size(row.slot)];
        ++text.row.number;
        one = text.row;
        noted += one.logprobs >= 0;
        if (!row.filter) continue;
        const std::span<const std::uint32_t> mask = row.filter->mask();
        MR_CHECK(mask.size() >= words, "a mask has a bit for every token");
        std::copy_n(mask.begin(), words, masks);
        masks += words;
        one.mask = masked++;
    }
    const auto bytes = size(reinterpret_cast<std::byte*>(masks) - from);
    stream_.to_device(state_.rows, from, bytes, ledger);
    stream_.record(sent_[half_]);
    state_.masks = reinterpret_cast<std::uint32_t*>(state_.rows + rows.size());
    if (ledger) ledger->add_device_to_host(size(noted) * sizeof(DrawNote));
}

ops::DrawnLogprobs Adjuster::wait(int slot, std::uint64_t number) const {
    const auto wanted = texts_[size(slot)].first + static_cast<std::uint32_t>(number + 1);
    const auto* const note = reinterpret_cast<const DrawNote*>(notes_.data()) + slot * kNotes +
                             wanted % std::uint32_t{kNotes};
    spin_until(stream_, [&] { return __atomic_load_n(&note->number, __ATOMIC_ACQUIRE) == wanted; });
    ops::DrawnLogprobs out;
    out.logprob = note->logprob;
    for (std::size_t i = 0; i < size(note->count); ++i) {
        out.top.push_back({note->ids[i], note->logprobs[i]});
    }
    return out;
}

}  // namespace mr::cuda
