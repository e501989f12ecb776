// A sequence that streams and stays in the cache from one generation to the next: what it holds of
// a history is fed once. Where forms differ (batch.h), what a prompt adds has the form of so many
// tokens: bits follow from the tokens and from where turns began, not from what else is going on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/generate.h"
#include "model/engine.h"

namespace mr::decode {

class LiveSequence {
  public:
    // The engine was made for such a stream, and has a sequence to spare.
    LiveSequence(model::Engine& engine, const model::Stream& stream)
        : engine_(engine), stream_(stream) {}
    ~LiveSequence() { close(); }
    LiveSequence(const LiveSequence&) = delete;
    LiveSequence& operator=(const LiveSequence&) = delete;

    // Continues `prompt`, which is the whole history. As far as it is what the sequence holds,
    // nothing is fed; where it turns away from that, the sequence goes back to there, or begins
    // anew where the pages that it would see have been written again. After an error it is empty.
    Generated generate(std::span<const std::int32_t> prompt, GenerateOptions options,
                       const OnText& on_text = {});

    // What the sequence holds: all tokens since its beginning, also those that left the window.
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
