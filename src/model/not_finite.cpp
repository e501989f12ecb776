#include "model/not_finite.h"

#include "core/error.h"

namespace mr::model {
namespace {

// Whether numbers pass through f16 anywhere; its maximum is 65504.
bool uses_f16(const Model& model, const EngineOptions& options) {
    const Weights& w = model.weights;
    return options.kv_type == DType::f16 || w.embedding.dtype == DType::f16 ||
           w.head.dtype == DType::f16 ||
           (!w.layers.empty() && w.layers.front().o.dtype == DType::f16);
}

}  // namespace

std::string stage_name(const ModelSpec& spec, int stage) {
    if (stage == embedding_stage()) return "embedding";
    if (stage == logits_stage(spec)) return "logits (final norm and head)";
    const int layer = (stage - 1) / 2;
    return "layer " + std::to_string(layer) +
           (stage == attention_stage(spec, layer) ? ", after attention (out)"
                                                  : ", after mlp (down)");
}

void throw_not_finite(const Model& model, const EngineOptions& options, const ops::NotFinite& found,
                      std::int64_t position) {
    std::string remedy =
        "the weights may be damaged: check the file, or download it again (millrace pull --verify)";
    if (uses_f16(model, options)) {
        remedy +=
            "; or a value is above what f16 can hold: use bf16 or f32 (millrace convert "
            "--type, --kv-type)";
    }
    throw Error::input({.file = model.source,
                        .field = stage_name(model.spec, found.stage),
                        .value = found.nan ? "NaN" : "infinity",
                        .problem = "the first value that is not finite, at token position " +
                                   std::to_string(position),
                        .remedy = remedy});
}

}  // namespace mr::model
