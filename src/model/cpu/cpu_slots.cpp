#include "model/cpu/cpu_slots.h"

#include <algorithm>
#include <span>

#include "core/error.h"

namespace mr::model {

const CpuSlots::One& CpuSlots::at(Slot slot) const {
    MR_CHECK(slot >= 0 && slot < static_cast<Slot>(slots_.size()) &&
                 slots_[static_cast<std::size_t>(slot)].open,
             "the slot is open");
    return slots_[static_cast<std::size_t>(slot)];
}

Slot CpuSlots::open(SeqId seq, const DrawParams& params) {
    ops::check_sample_params(params.sampling);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        One& slot = slots_[i];
        if (slot.open) continue;
        slot.open = true;
        slot.seq = seq;
        slot.params = params;
        slot.draws = 0;
        slot.counts.clear();
        return static_cast<Slot>(i);
    }
    MR_CHECK(false, "there are at most max_sequences slots");
    return kNoSlot;
}

void CpuSlots::draw(const Context& ctx, Slot index, Tensor logits, std::int64_t position) {
    One& slot = at(index);
    std::vector<std::int32_t>& recent = slot.params.recent;
    const auto most = static_cast<std::size_t>(std::max(slot.params.window, 0));
    const std::size_t window = std::min(recent.size(), most);
    One::Draw& drawn = slot.drawn[slot.draws++ % slot.drawn.size()];
    drawn = {};
    try {
        const Tensor raw = logits;
        if (slot.params.adjusts()) {
            const float* const row = raw.f32(0);
            adjusted_.assign(row, row + raw.shape.count());  // other slots may use the row
            const auto mask =
                slot.params.filter ? slot.params.filter->mask() : std::span<const std::uint32_t>();
            ops::adjust_logits(adjusted_, slot.params.adjust, slot.counts, mask);
            logits.data = adjusted_.data();
        }
        drawn.sampled =
            ops::sample(ctx, logits, slot.params.sampling, std::span(recent).last(window),
                        static_cast<std::uint64_t>(position));
        if (slot.params.adjust.counts()) {
            std::int32_t& count = slot.counts[drawn.sampled.id];
            count = std::min(count + 1, ops::kMostCounted);
        }
        if (slot.params.logprobs >= 0) {
            const std::span row(raw.f32(0), static_cast<std::size_t>(raw.shape.count()));
            drawn.logprobs = ops::logprobs_of(row, drawn.sampled.id, slot.params.logprobs);
        }
        // At least the tokens that count are kept, and at most about twice as many, however long
        // the text.
        if (recent.size() >= 2 * most + 64) {
            recent.erase(recent.begin(), recent.end() - static_cast<std::ptrdiff_t>(window));
        }
        recent.push_back(drawn.sampled.id);
    } catch (const Error&) {  // ends this slot alone; wait() throws it
        drawn.error = std::current_exception();
    }
}

const CpuSlots::One::Draw& CpuSlots::drawn(Slot index, std::uint64_t number) const {
    const One& slot = at(index);
    MR_CHECK(number < slot.draws && slot.draws - number <= slot.drawn.size(),
             "the draw was made, and not long ago");
    return slot.drawn[number % slot.drawn.size()];
}

ops::Sampled CpuSlots::wait(Slot index, std::uint64_t number) const {
    const One::Draw& drawn = this->drawn(index, number);
    if (drawn.error) std::rethrow_exception(drawn.error);
    return drawn.sampled;
}

const ops::DrawnLogprobs& CpuSlots::logprobs(Slot index, std::uint64_t number) const {
    return drawn(index, number).logprobs;
}

}  // namespace mr::model
