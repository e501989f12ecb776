#include "decode/loop.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace mr::decode {

DecodeLoop::DecodeLoop(model::Engine& engine, Tensor logits, const std::vector<DecodeRow>& rows)
    : engine_(engine), logits_(logits), rows_(rows), first_(rows.size()), drawn_(rows.size()) {
    MR_CHECK(logits.rows() == static_cast<std::int64_t>(rows.size()), "every row has its logits");
    most_ = rows.empty() ? 0 : rows.front().most;
    slots_.reserve(rows.size());  // the items point into it
    for (const DecodeRow& row : rows) {
        const std::int64_t length = engine_.cache().length(row.seq);
        // A stream reuses its own pages in a ring.
        const bool streams = static_cast<bool>(engine_.cache().stream(row.seq));
        const std::int64_t positions =
            streams ? model::Engine::kMostPositions : engine_.most_positions();
        if (!streams) {
            engine_.cache().reserve(row.seq, std::min(positions, length + row.most - 1));
        }
        slots_.push_back(engine_.open_slot(row.seq, {row.params, row.recent, row.window}));
        items_.push_back({.seq = row.seq, .feed = slots_.back(), .draw = {&slots_.back(), 1}});
        most_ = std::min({most_, row.most, positions - length + 1});
    }
    engine_.draw(logits_, slots_);
}

DecodeLoop::~DecodeLoop() {
    for (const model::Slot slot : slots_) engine_.close_slot(slot);
}

void DecodeLoop::step() {
    logits_ = engine_.submit(items_);
    ++launched_;
}

void DecodeLoop::replace(std::size_t r) {
    engine_.close_slot(slots_[r]);
    slots_[r] =
        engine_.open_slot(rows_[r].seq, {rows_[r].params, rows_[r].recent, rows_[r].window});
    items_[r].feed = slots_[r];
    engine_.draw(logits_.slice_rows(static_cast<std::int64_t>(r), 1), {&slots_[r], 1});
    first_[r] = launched_ - 1;
}

std::span<const ops::Sampled> DecodeLoop::next() {
    if (calls_ == launched_ && launched_ >= most_) step();  // throws: no position is left
    while (launched_ < most_ && launched_ <= calls_ + engine_.ahead()) step();
    for (std::size_t r = 0; r < slots_.size(); ++r) {
        if (calls_ < first_[r]) continue;
        drawn_[r] = engine_.wait(slots_[r], static_cast<std::uint64_t>(calls_ - first_[r]));
    }
    ++calls_;
    return drawn_;
}

}  // namespace mr::decode
