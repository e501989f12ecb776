#include "model/sink_views.h"

#include <algorithm>

namespace mr::model {
ops::AttentionMask streamed(ops::AttentionMask mask, const Stream& stream) {
    if (!stream) return mask;
    mask.window = stream.beside(mask.window);
    mask.sinks = stream.sinks;
    return mask;
}

std::int32_t SinkView::position(const Stream& stream, std::int32_t of_token) const {
    return stream ? std::min(of_token, stream.sinks + stream.beside(window) - 1) : of_token;
}

void SinkView::add_positions(std::vector<std::int32_t>& to, const Stream& stream,
                             const ops::BatchSeq& seq) const {
    for (std::int32_t i = 0; i < seq.count; ++i) to.push_back(position(stream, seq.position + i));
}

bool SinkViews::asks(const Stream& stream, const ops::BatchSeq& seq) const {
    const std::int32_t last = seq.position + seq.count - 1;
    return stream.sinks > 0 && std::any_of(views.begin(), views.end(), [&](const SinkView& view) {
               return view.position(stream, last) < last;
           });
}

SinkViews sink_views(const ModelSpec& spec, const EngineOptions& options) {
    SinkViews out;
    if (options.stream.sinks == 0) return out;
    const LayerRopes ropes = layer_ropes(spec);
    const std::vector<LayerSpec> layers = spec.layer_specs();
    for (std::size_t i = 0; i < layers.size(); ++i) {
        out.of_layer.push_back(-1);
        if (ropes.of_layer[i] < 0) continue;
        const SinkView view{ropes.of_layer[i], layers[i].mask.window};
        auto at = std::find(out.views.begin(), out.views.end(), view);
        if (at == out.views.end()) at = out.views.insert(at, view);
        out.of_layer.back() = static_cast<int>(at - out.views.begin());
    }
    return out;
}

}  // namespace mr::model
