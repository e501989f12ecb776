// Adjusted draws on the GPU: ops::adjust_logits() on rows of logits before the draw, and
// log-probabilities of the drawn tokens, beside the sampler (sample_cuda.h). Texts keep their state
// by slot, also when their rows move; a draw is told the slot of each row.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/cuda/device.h"
#include "ops/sample/adjust.h"
#include "ops/sample/logprobs.h"
#include "ops/sample/sample_cuda.h"

namespace mr::cuda {

// The parameters of one row of a draw: 32 bytes.
struct AdjustRow {
    std::int32_t slot;    // -1: the row is neither adjusted nor noted
    std::int32_t mask;    // index of its mask among the draw's masks; -1: none
    std::int32_t biases;  // number of biases
    std::int32_t logprobs;
    float presence, frequency;
    std::uint32_t number;   // number of the slot's draw, over all its texts
    std::uint32_t adjusts;  // 0: the row is only noted
};

// The most probable tokens of a row, before adjustment.
struct RowBest {
    double sum;  // sum of exp(logit - most)
    float most;
    std::int32_t count;
    std::array<std::int32_t, ops::kMostLogprobs> ids;
    std::array<float, ops::kMostLogprobs> logits;
};

// A note as the host reads it. `number` is written last.
struct DrawNote {
    double logprob;
    std::int32_t count;
    std::uint32_t number;
    std::array<std::int32_t, ops::kMostLogprobs> ids;
    std::array<double, ops::kMostLogprobs> logprobs;
};

struct AdjustState {
    AdjustRow* rows = nullptr;        // [rows] of the draw, followed by its masks
    std::uint32_t* masks = nullptr;   // [masks, words]
    ops::LogitBias* bias = nullptr;   // [slots, kMostBiases]
    std::uint16_t* counts = nullptr;  // [slots, vocab]  how often each token was drawn
    float* raw = nullptr;             // [slots, vocab]  logits before adjustment
    RowBest* best = nullptr;          // [slots]
    DrawNote* notes = nullptr;        // [slots, kNotes]  host memory
    int words = 0;                    // per mask
};

class Adjuster {
  public:
    static constexpr int kNotes = 32;  // per slot: notes of its newest draws

    // For at most `rows` rows per draw.
    Adjuster(const Stream& stream, int slots, int rows, std::int64_t vocab);
    static std::size_t device_bytes(int slots, int rows, std::int64_t vocab);

    // Begins a text in the slot.
    void open(int slot, const ops::Adjustments& adjust, bool filtered, int logprobs,
              Ledger* ledger);
    // Sets the next draw's rows, in order: one copy, with the masks of those that have one.
    struct Row {
        int slot = -1;
        ops::TokenFilter* filter = nullptr;
    };
    void set_rows(std::span<const Row> rows, Ledger* ledger);
    // Before and after the sampler draws from logits f32 [rows, vocab]; `state`: of these rows.
    void before(const Context& ctx, Tensor logits) const;
    void after(const Context& ctx, Tensor logits, const SampleState& state) const;
    // Waits for draw `number` of the slot, from 0.
    ops::DrawnLogprobs wait(int slot, std::uint64_t number) const;

  private:
    struct Text {
        AdjustRow row{};
        std::uint32_t first = 0;  // draws of the slot before this text
    };

    const Stream& stream_;
    const int most_rows_;
    const std::int64_t vocab_;
    DeviceArena memory_;
    PinnedBuffer staging_;  // two halves: one is filled while the other may still be read
    PinnedBuffer notes_;
    std::array<Event, 2> sent_;
    std::size_t half_ = 0;
    std::vector<Text> texts_;  // [slots]
    AdjustState state_;
};

}  // namespace mr::cuda
