#include "decode/loop.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "model/cuda/device_engine.h"

namespace mr::decode {
namespace {

// Steps that are launched before the token of the first of them has been read. Two keep the device
// busy while a token is printed; what runs ahead is for nothing where the generation ends early.
constexpr std::int64_t kAhead = 2;

}  // namespace

DecodeLoop::DecodeLoop(model::Engine& engine, Tensor logits, std::vector<model::DecodeRow> rows)
    : engine_(engine), logits_(logits), rows_(std::move(rows)), drawn_(rows_.size()) {
    MR_CHECK(logits.rows() == static_cast<std::int64_t>(rows_.size()), "every row has its logits");
    most_ = rows_.empty() ? 0 : rows_.front().most;
    for (const model::DecodeRow& row : rows_) {
        most_ = std::min(
            {most_, row.most, engine_.options().context - engine_.cache().length(row.seq) + 1});
        positions_ =
            std::min(positions_, engine_.model().spec.context - engine_.cache().length(row.seq));
    }
    if (!engine_.model().spec.learned_positions) positions_ = most_;
    if (model::DeviceEngine* device = engine_.device()) {
        device->begin(rows_, logits_);
        launched_ = 1;
    }
}

std::span<const ops::Sampled> DecodeLoop::next() {
    MR_CHECK(calls_ < most_, "no row draws more than it said");
    if (calls_ > positions_) {  // what was drawn last has no position to be fed back at
        throw Error::input({.field = "context",
                            .value = std::to_string(engine_.model().spec.context + 1),
                            .problem = "the model has learned positions for " +
                                       std::to_string(engine_.model().spec.context) +
                                       " tokens only",
                            .remedy = "use a shorter text"});
    }
    if (engine_.device()) {
        next_on_device();
    } else {
        next_on_cpu();
    }
    ++calls_;
    return drawn_;
}

void DecodeLoop::next_on_cpu() {
    if (calls_ > 0) {
        std::vector<model::BatchItem> batch;
        for (std::size_t r = 0; r < rows_.size(); ++r) {
            batch.push_back({rows_[r].seq, {&drawn_[r].id, 1}, model::BatchItem::Logits::last});
        }
        logits_ = engine_.forward(batch);
    }
    for (std::size_t r = 0; r < rows_.size(); ++r) {
        model::DecodeRow& row = rows_[r];
        const auto window =
            std::min(row.recent.size(), static_cast<std::size_t>(std::max(row.window, 0)));
        const std::span<const std::int32_t> recent(row.recent.data() + row.recent.size() - window,
                                                   window);
        // Keyed by position: the draw does not depend on how the prompt reached the cache.
        const auto position = static_cast<std::uint64_t>(engine_.cache().length(row.seq));
        const auto at = static_cast<std::int64_t>(r);
        const Tensor logits(logits_.f32(at), DType::f32, {logits_.cols()});
        drawn_[r] = ops::sample(engine_.context(), logits, row.params, recent, position);
        row.recent.push_back(drawn_[r].id);
    }
}

void DecodeLoop::next_on_device() {
    model::DeviceEngine& device = *engine_.device();
    // A step that is checked ends before the next begins: what comes before a NaN is still read.
    const bool one_by_one = device.watched() || engine_.options().check_nan;
    const std::int64_t ahead = one_by_one ? 0 : kAhead;
    const std::int64_t most = std::min(most_, positions_ + 1);
    while (launched_ < most && launched_ <= calls_ + ahead) {
        device.step();
        ++launched_;
    }
    for (std::size_t r = 0; r < rows_.size(); ++r) {
        if (calls_ > 0) engine_.cache().advance(rows_[r].seq, 1);
        drawn_[r] = device.wait(static_cast<int>(r), static_cast<std::uint64_t>(calls_));
    }
}

}  // namespace mr::decode
