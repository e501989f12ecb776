// A model as loaded: spec, weights, tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/progress.h"
#include "model/generation.h"
#include "model/spec.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace mr::model {

struct Model {
    ModelSpec spec;
    Weights weights;
    std::shared_ptr<const text::Tokenizer> tokenizer;  // none if the source has none
    std::string source;                                // the path, or "random:..."
    std::string format;  // "GGUF v3", "safetensors", "llama2.c v0", "random"
    // Notes for the user on how the source was read: a contradiction in it, and how it was
    // resolved.
    std::vector<std::string> notes{};
    Generation generation{};
    // If set: matrices have type and shape but no memory; a device makes them from this seed
    // (random.h).
    std::optional<std::uint64_t> deferred;
};

struct LoadOptions {
    std::string tokenizer{};  // a path; empty: the one in or beside the model
    Progress progress{};
    // Called before any weight is read or made, with a model that has its spec, its tokenizer, the
    // bytes that its weights will take, and tensors with type and shape: enough for plan_engine()
    // and device_weight_bytes(). Only tensors that are used in place have memory, the file's. May
    // throw.
    std::function<void(const Model&)> planned{};
    bool defer_random = false;  // leave the matrices of random: to the device
    // Keys of config.json or of a GGUF file that are accepted although the engine does not know
    // them (model/io/known_keys.h).
    std::vector<std::string> ignore_keys{};
};

// `source` is a GGUF file, a Hugging Face folder, a llama2.c .bin, or
// random:SHAPE[:TYPE] (llama-2-7b, llama-3-8b, gpt2, ...: known_shapes() of io/random.cpp).
Model load_model(const std::string& source, const LoadOptions& options = {});

}  // namespace mr::model
