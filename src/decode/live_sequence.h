// A streaming sequence that stays in the cache from one generation to the next, so that history is
// fed only once. Where forms differ (batch.h), the new part of a prompt has the form of its own
// length: bits depend on the tokens and on where turns began, not on other sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/generate.h"
#include "model/engine.h"

namespace mr::decode {

class LiveSequence {
  public:
    // The engine must be made for this stream and have a sequence to spare.
    LiveSequence(model::Engine& engine, const model::Stream& stream)
        : engine_(engine), stream_(stream) {}
    ~LiveSequence() { close(); }
    LiveSequence(const LiveSequence&) = delete;
    LiveSequence& operator=(const LiveSequence&) = delete;

    // Continues `prompt`, which is the whole history. The part that the sequence already holds is
    // not fed again. If the prompt differs from it, the sequence is truncated to the common part,
    // or begins anew if pages in the window there have been overwritten. After an error it is
    // empty.
    Generated generate(std::span<const std::int32_t> prompt, GenerateOptions options,
                       const OnText& on_text = {});

    // All tokens since the sequence began, including those that left the window.
    std::span<const std::int32_t> tokens() const { return tokens_; }

  private:
    void go_back(std::size_t length);
    void open();
    void close();

    model::Engine& engine_;
    const model::Stream stream_;
    model::SeqId seq_ = -1;
    std::vector<std::int32_t> tokens_;
};

}  // namespace mr::decode
