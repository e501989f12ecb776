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
        drawn.sampled =
            ops::sample(ctx, logits, slot.params.sampling, std::span(recent).last(window),
                        static_cast<std::uint64_t>(position));
        // As many as count are kept, and no more than twice as many for a text without an end.
        if (recent.size() >= 2 * most + 64) {
            recent.erase(recent.begin(), recent.end() - static_cast<std::ptrdiff_t>(window));
        }
        recent.push_back(drawn.sampled.id);
    } catch (const Error&) {  // is this slot's alone, and known to those who wait for the draw
        drawn.error = std::current_exception();
    }
}

ops::Sampled CpuSlots::wait(Slot index, std::uint64_t number) const {
    const One& slot = at(index);
    MR_CHECK(number < slot.draws && slot.draws - number <= slot.drawn.size(),
             "the draw was made, and not long ago");
    const One::Draw& drawn = slot.drawn[number % slot.drawn.size()];
    if (drawn.error) std::rethrow_exception(drawn.error);
    return drawn.sampled;
}

}  // namespace mr::model
