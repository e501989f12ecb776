// A model as loaded: spec, weights, tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/progress.h"
#include "model/spec.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace mr::model {

struct Model {
    ModelSpec spec;
    Weights weights;
    std::shared_ptr<const text::Tokenizer> tokenizer;  // none where the source has none
    std::string source;                                // the path, or "random:..."
    std::string format;  // "GGUF v3", "safetensors", "llama2.c v0", "random"
};

struct LoadOptions {
    std::string tokenizer{};  // a path; empty: the one in or beside the model
    Progress progress{};
    // Called before any weight is read or made, with a model that has its spec, its tokenizer and
    // the bytes that its weights will take, but no tensors: what Engine::plan() needs. May throw.
    std::function<void(const Model&)> planned{};
};

// `source` is a GGUF file, a Hugging Face folder, a llama2.c .bin, or
// random:SHAPE[:TYPE] (llama-2-7b, tinyllama-1.1b, stories-110m, stories-42m, pythia-2.8b, gpt2).
Model load_model(const std::string& source, const LoadOptions& options = {});

}  // namespace mr::model
