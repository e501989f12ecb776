// Draws tokens for a fixed set of sequences and feeds each one back, for measurements and tests of
// an engine. Generations go through the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/engine.h"

namespace mr::decode {

// A sequence to decode and its sampling parameters.
struct DecodeRow {
    model::SeqId seq = 0;
    ops::SampleParams params;
    std::vector<std::int32_t> recent;  // the tokens before the first one drawn, for the penalty
    int window = 64;                   // the penalty counts this many of the last tokens
    std::int64_t most = 1;             // tokens that will be drawn at most
};

class DecodeLoop {
  public:
    // `logits` has one row for each of `rows`, from the last pass.
    DecodeLoop(model::Engine& engine, Tensor logits, const std::vector<DecodeRow>& rows);
    // The sequences keep the tokens fed back: on a GPU up to two more than were read.
    ~DecodeLoop();
    DecodeLoop(const DecodeLoop&) = delete;
    DecodeLoop& operator=(const DecodeLoop&) = delete;

    // The next token of every row; the token before it is fed back first. Throws Error (input)
    // where a row has no position left.
    std::span<const ops::Sampled> next();
    // Launches one step more than next() asks for.
    void step();
    // Closes the slot of row r and opens a new one for its sequence, which draws from the logits of
    // the newest step: for measurements. Draws of the row that were not read are lost.
    void replace(std::size_t r);
    // Logits of the newest step that was launched.
    Tensor logits() const { return logits_; }

  private:
    model::Engine& engine_;
    Tensor logits_;
    std::vector<DecodeRow> rows_;
    std::vector<model::Slot> slots_;   // one for each row
    std::vector<std::int64_t> first_;  // number of the row's draw that is the slot's first
    std::vector<model::BatchItem> items_;
    std::vector<ops::Sampled> drawn_;
    std::int64_t calls_ = 0;     // calls of next()
    std::int64_t launched_ = 1;  // draws launched
    std::int64_t most_ = 0;      // draws at most: the shortest row decides
};

}  // namespace mr::decode
