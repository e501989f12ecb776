// Tokens drawn one after another for one or more sequences, each fed back: the same on the CPU and
// on the GPU, where the steps run ahead of whoever reads the tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "model/forward.h"

namespace mr::decode {

class DecodeLoop {
  public:
    // `logits` has one row for each of `rows`, as the last forward() gave them.
    DecodeLoop(model::Engine& engine, Tensor logits, std::vector<model::DecodeRow> rows);

    // The next token of every row. Before the second one the first is fed back, and so on: the
    // cache then holds one token more of every row.
    std::span<const ops::Sampled> next();

  private:
    void next_on_cpu();
    void next_on_device();

    model::Engine& engine_;
    Tensor logits_;
    std::vector<model::DecodeRow> rows_;
    std::vector<ops::Sampled> drawn_;
    std::int64_t calls_ = 0;     // of next()
    std::int64_t launched_ = 0;  // draws on the device
    std::int64_t most_ = 0;      // ... at most: the shortest row decides
    // Tokens that can be fed back where positions are learned: the longest row decides.
    std::int64_t positions_ = std::numeric_limits<std::int64_t>::max() - 1;
};

}  // namespace mr::decode
