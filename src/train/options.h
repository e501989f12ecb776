// The options of a training run. A checkpoint holds all of them: resuming needs nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "formats/json.h"
#include "model/spec.h"

namespace mr::train {

// A new model. 0: the family's default (numbers()).
struct NewModel {
    std::string family = "llama";
    int dim = 256;
    int layers = 6;
    int heads = 8;
    int kv_heads = 0;  // default: heads
    int head_dim = 0;  // default: dim / heads
    int hidden = 0;    // default: 8/3 dim, rounded to a multiple of 32, if gated, else 4 dim
    int context = 0;   // default: the length of the training sequences
    // "yes", "no", or "" for the family's default: all but GPT-NeoX are tied.
    std::string tied{};
};

struct TrainOptions {
    static constexpr int kUsual = -1;  // for min_lr and warmup: the default in their comments

    NewModel model;
    std::string init{};  // a model to start from, instead of a new one
    std::string data{};  // a folder made by `millrace data pack`
    std::string out{};   // the run's folder

    std::int64_t steps = 1000;
    int batch = 32;      // sequences per pass
    int seq = 256;       // tokens per sequence
    int accumulate = 1;  // passes per step
    bool bos = false;    // sequences begin with the tokenizer's beginning-of-text token

    std::string objective = "ar";  // the next token; or "diffusion": masked tokens of a block
    int block = 16;                // diffusion: tokens per block
    // diffusion: the weight of a masked token: "1/t" by the masking rate; "none": 1, where every
    // sequence comes twice in a batch with complementary masks.
    std::string diffusion_weight = "1/t";

    double lr = 1e-3;
    double min_lr = kUsual;           // default: lr / 10
    std::int64_t warmup = kUsual;     // default: a twentieth of the steps, at most 1000
    std::string schedule = "cosine";  // or "wsd", "constant"
    double decay = 0.2;  // wsd: share of the steps, at the end, in which the rate falls
    double weight_decay = 0.1;
    double beta1 = 0.9, beta2 = 0.95;
    double clip = 1.0;  // 0: none
    std::uint64_t seed = 1;
    std::int64_t max_skips = 10;  // steps in a row without a finite gradient, at most

    std::int64_t eval_every = 100;
    std::int64_t eval_batches = 32;  // 0: the whole validation split
    std::int64_t save_every = 500;
    std::int64_t sample_every = 500;
    std::int64_t keep = 3;  // checkpoints; 0: all
    std::string prompt{};   // for samples
    int sample_tokens = 120;

    std::string recompute = "none";
    std::string masters = "f32";  // or "bf16": matrices and tables, with stochastic rounding
    int prefetch = 2;             // batches read ahead
    // A step is a sum over this many grains, in a binary tree: passes of fewer sequences, or some
    // of its `accumulate` passes each. A power of two that the number of ranks divides. The bits of
    // a run depend on it, but not on the ranks. 0: the number of ranks at the start.
    int grains = 0;
    double bucket = 25;  // MiB of gradients that ranks send at a time
    int zero = 0;        // sharded: 1: optimizer state; 2: and gradients; 3: and parameters
    // How ranks sum gradients: "exact", in the tree over grains, or "fast", by NCCL's own sum in
    // bf16, whose bits depend on the ranks.
    std::string reduce = "exact";
    // Number of pipeline stages: every replica of the model has as many ranks.
    int pipeline = 1;
    std::string pipeline_schedule = "1f1b";  // or "gpipe"
    // Grains per replica. It only sets the number of grains, and is not stored. 0: use `grains`.
    int micro_batches = 0;
    int threads = 0;  // 0: all cores
    bool cuda = false;
    std::string command{};  // for the report: the command line, then those of --resume

    // Sequences per pass, and passes per grain; grains > 0.
    int pass_sequences() const {
        return static_cast<int>(
            std::min<std::int64_t>(batch, std::int64_t{batch} * accumulate / grains));
    }
    int grain_passes() const {
        return static_cast<int>(std::int64_t{batch} * accumulate / grains / pass_sequences());
    }
    std::int64_t tokens_per_step() const { return std::int64_t{batch} * seq * accumulate; }
    bool diffusion() const { return objective == "diffusion"; }
    int copies() const { return diffusion() && diffusion_weight == "none" ? 2 : 1; }
    // Tokens in the mean of a step's loss: those of each text once.
    std::int64_t counted_per_step() const { return tokens_per_step() / copies(); }
    double lowest_lr() const { return min_lr < 0 ? lr / 10 : min_lr; }
    std::int64_t warmup_steps() const;
    // The rate of step `step`, from 1.
    double learning_rate(std::int64_t step) const;
    // Throws Error (usage) naming the invalid option.
    void validate() const;
};

// The spec of a new model with this vocabulary, for sequences of `seq`. Throws Error (usage).
model::ModelSpec new_spec(const NewModel& wanted, int vocab, int seq);

nlohmann::ordered_json options_json(const TrainOptions& options);
// "name = value" of every option that must be the same on all ranks.
std::vector<std::string> shared_options(const TrainOptions& options);
// Throws Error (input) naming `file` and the field.
TrainOptions read_options(formats::JsonValue json, const std::string& file);

}  // namespace mr::train
