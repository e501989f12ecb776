// Engines on the CPU and the GPU, for tests that compare them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/thread_pool.h"
#include "model/cuda/device_weights.h"
#include "model/engine.h"
#include "model/io/random.h"

namespace mr::test {

// A model whose weights lie on the device: several engines can share them.
struct OnDevice {
    std::shared_ptr<model::Model> model;
    std::shared_ptr<const model::DeviceWeights> weights;

    std::unique_ptr<model::Engine> engine(model::EngineOptions options = {}) const {
        options.cuda = true;
        return model::make_engine(model, options, weights);
    }
};

inline OnDevice to_device(model::Model loaded) {
    OnDevice out{std::make_shared<model::Model>(std::move(loaded)), nullptr};
    ThreadPool pool(4);
    out.weights = model::load_to_device(*out.model, pool, nullptr);
    return out;
}
inline OnDevice load_on_device(const std::string& source) {
    return to_device(model::load_model(source, {.defer_random = true}));
}

inline std::unique_ptr<model::Engine> open_on_gpu(const std::string& source,
                                                  const model::EngineOptions& options = {}) {
    return load_on_device(source).engine(options);
}
inline std::unique_ptr<model::Engine> open_on_cpu(const std::string& source,
                                                  model::EngineOptions options = {}) {
    options.threads = 4;
    return model::make_engine(std::make_shared<const model::Model>(model::load_model(source)),
                              options);
}

// A model of two layers with the attention of a random: shape: heads of 64 (stories-42m), of 128 in
// groups (llama-3-8b), of 80 and in parallel with the MLP (pythia-2.8b).
inline model::ModelSpec small_shape(const char* name, int vocab) {
    model::ModelSpec spec = model::random_shape(std::string("random:") + name).first;
    spec.layers = 2;
    spec.vocab = vocab;
    spec.hidden = 512;
    spec.dim = 256;
    spec.heads = 4;
    spec.kv_heads = spec.kv_heads < spec.heads ? 2 : 4;
    return spec;
}

inline std::vector<float> values(model::Engine& engine, Tensor logits) {
    const Tensor host = engine.to_host(logits);
    return {host.f32(), host.f32() + host.shape.count()};
}

// Logits of every token of `ids`, fed in chunks.
inline std::vector<float> logits_of(model::Engine& engine, std::span<const std::int32_t> ids,
                                    std::size_t chunk) {
    const model::SeqId seq = engine.cache().open();
    std::vector<float> out;
    for (std::size_t i = 0; i < ids.size(); i += chunk) {
        const model::BatchItem item =
            model::prompt_item(seq, ids.subspan(i, std::min(chunk, ids.size() - i)),
                               static_cast<std::int64_t>(chunk), model::BatchItem::Logits::all);
        const std::vector<float> some = values(engine, engine.submit({&item, 1}));
        out.insert(out.end(), some.begin(), some.end());
    }
    engine.cache().close(seq);
    return out;
}

}  // namespace mr::test
