// The options of a call from Python; defaults are those of `millrace run`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "decode/generate.h"
#include "model/model.h"

namespace mr::python {

struct Options {
    std::optional<int> max_tokens;
    std::optional<float> temperature, top_p, min_p, repeat_penalty;
    std::optional<int> top_k, repeat_window;
    std::uint64_t seed = 0;
    std::vector<std::string> stop;
    std::vector<std::int32_t> stop_ids;
    int min_tokens = 0;
    bool ignore_eos = false;
    int logprobs = -1;
    // For diffusion models.
    std::optional<int> block, steps;
    std::optional<std::string> remask, confidence;
    std::optional<float> threshold, entropy_bound;
    std::optional<bool> prefix_cache;
    std::optional<bool> use_gpu_sampler;  // false: decode::Scheduler::guess_on_host()

    // Throws Error (usage) for values out of range, or without effect on this model.
    decode::GenerateOptions of(const model::Model& model) const;
    decode::DiffusionOptions diffusion_of(const model::ModelSpec& spec) const;
    // Throws Error (usage) if an option of the second group is given for an autoregressive
    // model.
    void require_no_diffusion() const;
    // Throws Error (usage) if `call` asks for a sampler other than the engine's.
    void require_engine_sampler(const char* call) const;
};

}  // namespace mr::python
