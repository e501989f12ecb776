// From one GEMM on the GPU to a whole model on the GPU, one change at a time: each rung is
// measured, and checked against the CPU engine.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/progress.h"
#include "lab/ladder/decoder.h"

namespace mr::ladder {

struct Options {
    std::string rungs = "all";  // "0,host,4-9"
    int prompt = 8;             // tokens of the prompt
    int tokens = 64;            // tokens per repetition
    int repetitions = 5;        // the median counts
    int check = 8;              // tokens whose logits are compared
    int threads = 0;            // 0: all cores
    bool cuda = false;          // with rungs on the GPU
    // Base options of the rungs' engines; what is off here is off in every rung.
    model::EngineOptions engine{};
};

// The difference of a rung from the CPU.
struct Check {
    // Against the CPU engine in f32, with the rung's own weights and after the rung's own tokens.
    // f32 rungs are limited by the largest difference, others by the root mean square relative to
    // that of the logits.
    double largest = 0, largest_limit = 0;
    double rms = 0, rms_limit = 0;
    bool by_rms = false;
    double rms_of_f32 = 0;  // ... against rung 0: includes the error of the weight type
    int same_tokens = 0;    // tokens equal to rung 0's, from the first on
    int tokens = 0;         // ... out of these
    std::string failed;     // what failed; empty: nothing
};

struct Rung {
    std::string id;    // "0", "scalar", "host", "process", "1", ... "9"; some have two steps
    std::string name;  // "copy per matmul"
    DType weights = DType::f32;
    bool reference = false;  // the others are checked against it
    double tokens_per_second = 0;
    double to_device = 0, to_host = 0;  // bytes per token
    std::optional<Split> split;         // share of the time
    double gain = 0;                    // over the rung before; 0: the first
    Check check;
};

struct Absent {
    std::string id, name;
};

struct Ladder {
    std::vector<Rung> rungs;
    std::vector<Absent> absent;  // wanted, but there is no GPU
    bool passed() const;
};

// Throws Error (usage) if `rungs` names an unknown one.
void check_rungs(const std::string& rungs);
// Host memory of a ladder over this model, at most.
MemoryPlan host_plan(const model::Model& model);
// `model`: a plain Llama with any types, not repacked.
Ladder climb(ModelPtr model, const Options& options, const Progress& progress = {});

// The limits, derived from the number of roundings.
double largest_limit(const model::ModelSpec& spec, double largest_logit);
double rms_limit(const model::ModelSpec& spec);
// Sets in `check` the difference of `drawn` from `expected` (for the same tokens), and what fails.
void compare(Check& check, const model::ModelSpec& spec, const Drawn& drawn,
             const Logits& expected);

}  // namespace mr::ladder
