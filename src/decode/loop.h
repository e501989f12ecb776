// Tokens drawn one after another for a fixed set of sequences, each fed back: what measurements and
// tests of an engine need. Generations go through the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/engine.h"

namespace mr::decode {

// A sequence that is to be decoded: what it draws with.
struct DecodeRow {
    model::SeqId seq = 0;
    ops::SampleParams params;
    std::vector<std::int32_t> recent;  // the tokens before the first one drawn, for the penalty
    int window = 64;                   // of them and of what follows, how many count
    std::int64_t most = 1;             // tokens that will be drawn at most
};

class DecodeLoop {
  public:
    // `logits` has one row for each of `rows`, as the last pass gave them.
    DecodeLoop(model::Engine& engine, Tensor logits, const std::vector<DecodeRow>& rows);
    // The sequences keep what was fed back: on a GPU up to two tokens more than were read.
    ~DecodeLoop();
    DecodeLoop(const DecodeLoop&) = delete;
    DecodeLoop& operator=(const DecodeLoop&) = delete;

    // The next token of every row. Before the second one the first is fed back, and so on. Throws
    // Error (input) where a row has no position left.
    std::span<const ops::Sampled> next();
    // Launches one step more than next() asks for.
    void step();
    // Row r leaves, and its sequence joins again in a slot of its own, which draws from logits of
    // the newest step: for measurements. What the row drew and was not read is lost.
    void replace(std::size_t r);
    // Of the newest step that was launched.
    Tensor logits() const { return logits_; }

  private:
    model::Engine& engine_;
    Tensor logits_;
    std::vector<DecodeRow> rows_;
    std::vector<model::Slot> slots_;   // of the rows
    std::vector<std::int64_t> first_;  // which of the row's draws is the slot's first
    std::vector<model::BatchItem> items_;
    std::vector<ops::Sampled> drawn_;
    std::int64_t calls_ = 0;     // of next()
    std::int64_t launched_ = 1;  // draws
    std::int64_t most_ = 0;      // ... at most: the shortest row decides
};

}  // namespace mr::decode
