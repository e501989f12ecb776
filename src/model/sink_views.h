// How layers see the sinks of streaming sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "model/engine.h"

namespace mr::model {

// A layer's mask for a streaming sequence: the shorter window, and its sinks.
ops::AttentionMask streamed(ops::AttentionMask mask, const Stream& stream);

// Sinks stay rotated to positions 0 to sinks - 1. A token's query for them is rotated to the first
// position at which they lie before its window, so that they seem to stand just before it. That is
// a second query, shared by layers with the same rotation and window.
struct SinkView {
    int rope;             // index into LayerRopes::ropes
    std::int32_t window;  // of the layers; 0: none

    // The position of a token's query for sinks.
    std::int32_t position(const Stream& stream, std::int32_t of_token) const;
    void add_positions(std::vector<std::int32_t>& to, const Stream& stream,
                       const ops::BatchSeq& seq) const;
    bool operator==(const SinkView&) const = default;
};

struct SinkViews {
    std::vector<SinkView> views;
    std::vector<int> of_layer;  // [layers], into `views`; -1: no rotary positions

    // Whether some token of the sequence queries sinks from a position other than its own.
    bool asks(const Stream& stream, const ops::BatchSeq& seq) const;
};
// None if no sequence may stream with sinks.
SinkViews sink_views(const ModelSpec& spec, const EngineOptions& options);

}  // namespace mr::model
