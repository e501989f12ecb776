// Adjusted draws on the GPU: what ops::adjust_logits() does to rows of logits before they are drawn
// from, and log-probabilities of what was drawn, beside the sampler (sample_cuda.h). Texts keep
// their state by slot, wherever their rows move; a draw is told which slots its rows are.
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

// What one row of a draw needs: 32 bytes.
struct AdjustRow {
    std::int32_t slot;    // -1: the row is as the model gave it, and not noted
    std::int32_t mask;    // which of the draw's masks is its own; -1: none
    std::int32_t biases;  // how many
    std::int32_t logprobs;
    float presence, frequency;
    std::uint32_t number;   // of the slot's draws, over all its texts
    std::uint32_t adjusts;  // 0: the row is only noted
};

// The most probable tokens of a row, before it is adjusted.
struct RowBest {
    double sum;  // of exp(logit - most)
    float most;
    std::int32_t count;
    std::array<std::int32_t, ops::kMostLogprobs> ids;
    std::array<float, ops::kMostLogprobs> logits;
};

// As the host reads it. `number` is written last.
struct DrawNote {
    double logprob;
    std::int32_t count;
    std::uint32_t number;
    std::array<std::int32_t, ops::kMostLogprobs> ids;
    std::array<double, ops::kMostLogprobs> logprobs;
};

struct AdjustState {
    AdjustRow* rows = nullptr;        // [rows] of the draw; behind them its masks
    std::uint32_t* masks = nullptr;   // [masks, words]
    ops::LogitBias* bias = nullptr;   // [slots, kMostBiases]
    std::uint16_t* counts = nullptr;  // [slots, vocab]  how often tokens were drawn
    float* raw = nullptr;             // [slots, vocab]  logits before they are adjusted
    RowBest* best = nullptr;          // [slots]
    DrawNote* notes = nullptr;        // [slots, kNotes]  host memory
    int words = 0;                    // of a mask
};

class Adjuster {
  public:
    static constexpr int kNotes = 32;  // of a slot: those of its newest draws

    // For at most `rows` rows in a draw.
    Adjuster(const Stream& stream, int slots, int rows, std::int64_t vocab);
    static std::size_t device_bytes(int slots, int rows, std::int64_t vocab);

    // The slot begins a text.
    void open(int slot, const ops::Adjustments& adjust, bool filtered, int logprobs,
              Ledger* ledger);
    // The next draw's rows, in their order: one copy, with the masks of those that have one.
    struct Row {
        int slot = -1;
        ops::TokenFilter* filter = nullptr;
    };
    void set_rows(std::span<const Row> rows, Ledger* ledger);
    // Before and after the sampler draws from logits f32 [rows, vocab]; `state`: of these rows.
    void before(const Context& ctx, Tensor logits) const;
    void after(const Context& ctx, Tensor logits, const SampleState& state) const;
    // Draw `number` of the slot, from 0, when it is there.
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
    PinnedBuffer staging_;  // two halves: one is filled while the other may be on its way
    PinnedBuffer notes_;
    std::array<Event, 2> sent_;
    std::size_t half_ = 0;
    std::vector<Text> texts_;  // [slots]
    AdjustState state_;
};

}  // namespace mr::cuda
