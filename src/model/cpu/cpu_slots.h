// Slots on the CPU: sampling parameters and draws of sequences.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "core/context.h"
#include "model/batch.h"
#include "ops/sample/logprobs.h"

namespace mr::model {

class CpuSlots {
  public:
    explicit CpuSlots(int most) : slots_(static_cast<std::size_t>(most)) {}

    Slot open(SeqId seq, const DrawParams& params);
    void close(Slot slot) { at(slot).open = false; }
    SeqId seq(Slot slot) const { return at(slot).seq; }
    std::uint64_t draws(Slot slot) const { return at(slot).draws; }
    // Draws from logits f32 [vocab]. Keyed by position: the draw does not depend on how the prompt
    // reached the cache.
    void draw(const Context& ctx, Slot slot, Tensor logits, std::int64_t position);
    // Draw number `number`; throws the error that took its place, if any.
    ops::Sampled wait(Slot slot, std::uint64_t number) const;
    const ops::DrawnLogprobs& logprobs(Slot slot, std::uint64_t number) const;

  private:
    struct One {
        bool open = false;
        SeqId seq = 0;
        DrawParams params;
        std::uint64_t draws = 0;
        ops::TokenCounts counts;  // of its draws, if a penalty needs them
        struct Draw {
            ops::Sampled sampled;
            ops::DrawnLogprobs logprobs;
            std::exception_ptr error;  // in place of a token
        };
        std::array<Draw, 16> drawn;  // the last draws, by number
    };
    const One& at(Slot slot) const;
    const One::Draw& drawn(Slot slot, std::uint64_t number) const;
    One& at(Slot slot) { return const_cast<One&>(std::as_const(*this).at(slot)); }

    std::vector<One> slots_;
    std::vector<float> adjusted_;  // adjusted copy of the row to draw from
};

}  // namespace mr::model
