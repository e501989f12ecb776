#include "decode/loop.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace mr::decode {

DecodeLoop::DecodeLoop(model::Engine& engine, Tensor logits, const std::vector<DecodeRow>& rows)
    : engine_(engine), logits_(logits), drawn_(rows.size()) {
    MR_CHECK(logits.rows() == static_cast<std::int64_t>(rows.size()), "every row has its logits");
    most_ = rows.empty() ? 0 : rows.front().most;
    std::vector<model::Slot> slots;
    for (const DecodeRow& row : rows) {
        const std::int64_t length = engine_.cache().length(row.seq);
        const std::int64_t positions = engine_.most_positions();
        engine_.cache().reserve(row.seq, std::min(positions, length + row.most - 1));
        slots.push_back(engine_.open_slot(row.seq, {row.params, row.recent, row.window}));
        rows_.push_back({row.seq, slots.back(), length});
        most_ = std::min({most_, row.most, positions - length + 1});
    }
    for (Row& row : rows_) {
        items_.push_back({.seq = row.seq, .feed = row.slot, .draw = {&row.slot, 1}});
    }
    engine_.draw(logits_, slots);
}

DecodeLoop::~DecodeLoop() {
    for (const Row& row : rows_) {
        engine_.close_slot(row.slot);
        engine_.cache().truncate(row.seq, row.before + std::max<std::int64_t>(calls_ - 1, 0));
    }
}

void DecodeLoop::step() {
    logits_ = engine_.submit(items_);
    ++launched_;
}

std::span<const ops::Sampled> DecodeLoop::next() {
    if (calls_ == launched_ && launched_ >= most_) step();  // throws: no position is left
    while (launched_ < most_ && launched_ <= calls_ + engine_.ahead()) step();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
        drawn_[r] = engine_.wait(rows_[r].slot, static_cast<std::uint64_t>(calls_));
    }
    ++calls_;
    return drawn_;
}

}  // namespace mr::decode
