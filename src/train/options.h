// What a training run is asked to do. A checkpoint holds all of it: resuming needs nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "formats/json.h"
#include "model/spec.h"

namespace mr::train {

// A model to be made. 0: the family's usual (numbers()).
struct NewModel {
    std::string family = "llama";
    int dim = 256;
    int layers = 6;
    int heads = 8;
    int kv_heads = 0;  // as many as heads
    int head_dim = 0;  // dim / heads
    int hidden = 0;    // 8/3 dim to a multiple of 32 where gated, else 4 dim
    int context = 0;   // the length of the training sequences
    // "yes", "no", or "" for the family's usual: all but GPT-NeoX are tied.
    std::string tied{};
};

struct TrainOptions {
    static constexpr int kUsual = -1;  // of min_lr and warmup: what their comments say

    NewModel model;
    std::string init{};  // a model to go on from, instead of a new one
    std::string data{};  // a folder of `millrace data pack`
    std::string out{};   // the run's folder

    std::int64_t steps = 1000;
    int batch = 32;      // sequences of a pass
    int seq = 256;       // tokens of a sequence
    int accumulate = 1;  // passes of a step
    bool bos = false;    // sequences begin with the tokenizer's beginning-of-text token

    std::string objective = "ar";  // the next token; or "diffusion": those of a block, in any order
    int block = 16;                // diffusion: tokens of a block
    // diffusion: how a masked token counts: "1/t" by the rate of masks, "none" once, with sequences
    // that stand twice in a batch and have complementary masks.
    std::string diffusion_weight = "1/t";

    double lr = 1e-3;
    double min_lr = kUsual;           // lr / 10
    std::int64_t warmup = kUsual;     // a twentieth of the steps, at most 1000
    std::string schedule = "cosine";  // or "wsd", "constant"
    double decay = 0.2;               // wsd: the last part of the steps, in which the rate falls
    double weight_decay = 0.1;
    double beta1 = 0.9, beta2 = 0.95;
    double clip = 1.0;  // 0: none
    std::uint64_t seed = 1;
    std::int64_t max_skips = 10;  // steps in a row that may have no finite gradient

    std::int64_t eval_every = 100;
    std::int64_t eval_batches = 32;  // 0: the whole validation split
    std::int64_t save_every = 500;
    std::int64_t sample_every = 500;
    std::int64_t keep = 3;  // checkpoints; 0: all
    std::string prompt{};   // of samples
    int sample_tokens = 120;

    std::string recompute = "none";
    std::string masters = "f32";  // or "bf16": of matrices and tables, rounded by chance
    int prefetch = 2;             // batches read ahead
    // What a step is a sum of, in a binary tree: as many passes of fewer sequences, or of some of
    // its `accumulate` passes each. A power of two that the number of ranks divides. The bits of a
    // run depend on it, and on the ranks no more. 0: the number of ranks that began it.
    int grains = 0;
    double bucket = 25;  // MiB of gradients that ranks send at a time
    int zero = 0;        // what ranks share: 1: the optimizer's state; 2: gradients; 3: parameters
    // How gradients of ranks are added up: "exact", in the tree over grains, or "fast", by NCCL's
    // own sum in bf16, whose bits depend on the ranks.
    std::string reduce = "exact";
    // Stages that the layers are cut into: every replica of the model has as many ranks.
    int pipeline = 1;
    std::string pipeline_schedule = "1f1b";  // or "gpipe"
    // Grains of a replica. It says how many grains there are, and is not kept. 0: `grains` does.
    int micro_batches = 0;
    int threads = 0;  // 0: all cores
    bool cuda = false;
    std::string command{};  // for the report: the command line, and below it those of --resume

    // Sequences of a pass, and passes of a grain; grains > 0.
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
    // Tokens that a step's loss is the mean of: each text's once.
    std::int64_t counted_per_step() const { return tokens_per_step() / copies(); }
    double lowest_lr() const { return min_lr < 0 ? lr / 10 : min_lr; }
    std::int64_t warmup_steps() const;
    // Of step `step`, from 1.
    double learning_rate(std::int64_t step) const;
    // Throws Error (usage) naming the option that makes no sense.
    void validate() const;
};

// The spec of a new model with this vocabulary, for sequences of `seq`. Throws Error (usage).
model::ModelSpec new_spec(const NewModel& wanted, int vocab, int seq);

nlohmann::ordered_json options_json(const TrainOptions& options);
// "name = value" of every option that ranks must have alike.
std::vector<std::string> shared_options(const TrainOptions& options);
// Throws Error (input) naming `file` and the field.
TrainOptions read_options(formats::JsonValue json, const std::string& file);

}  // namespace mr::train
