// How layers see the sinks of sequences that stream.
#pragma once

#include <cstdint>
#include <vector>

#include "model/engine.h"

namespace mr::model {

// A layer's mask for a sequence that streams: the shorter window, and its sinks.
ops::AttentionMask streamed(ops::AttentionMask mask, const Stream& stream);

// Sinks stay rotated to positions 0 to sinks - 1. A token asks them from the first position at
// which they lie before its window, so that they seem to stand just before it: that takes a query
// of its own, for layers that share a rotation and a window.
struct SinkView {
    int rope;             // of LayerRopes::ropes
    std::int32_t window;  // of the layers; 0: none

    // The position from which a token of the sequence asks sinks.
    std::int32_t position(const Stream& stream, std::int32_t of_token) const;
    void add_positions(std::vector<std::int32_t>& to, const Stream& stream,
                       const ops::BatchSeq& seq) const;
    bool operator==(const SinkView&) const = default;
};

struct SinkViews {
    std::vector<SinkView> views;
    std::vector<int> of_layer;  // [layers], into `views`; -1: no rotary positions

    // Whether some token of the sequence asks from another position than its own.
    bool asks(const Stream& stream, const ops::BatchSeq& seq) const;
};
// None where no sequence may stream with sinks.
SinkViews sink_views(const ModelSpec& spec, const EngineOptions& options);

}  // namespace mr::model
