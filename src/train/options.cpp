#include "train/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "model/train/train_pass.h"
#include "ops/attention/flash/flash.h"
#include "ops/attention/own_blocks/own_blocks_cuda.h"
#include "train/parallel/schedule.h"

namespace mr::train {
namespace {

using model::ModelSpec;

// Every option by its name in state.json: one list for writing and reading.
template <typename Options, typename Field>
void for_each_option(Options& o, Field&& field) {
    field("family", o.model.family);
    field("dim", o.model.dim);
    field("layers", o.model.layers);
    field("heads", o.model.heads);
    field("kv_heads", o.model.kv_heads);
    field("head_dim", o.model.head_dim);
    field("hidden", o.model.hidden);
    field("context", o.model.context);
    field("tied", o.model.tied);
    field("init", o.init);
    field("data", o.data);
    field("steps", o.steps);
    field("batch", o.batch);
    field("seq", o.seq);
    field("accumulate", o.accumulate);
    field("bos", o.bos);
    field("objective", o.objective);
    field("block", o.block);
    field("diffusion_weight", o.diffusion_weight);
    field("lr", o.lr);
    field("min_lr", o.min_lr);
    field("warmup", o.warmup);
    field("schedule", o.schedule);
    field("decay", o.decay);
    field("weight_decay", o.weight_decay);
    field("beta1", o.beta1);
    field("beta2", o.beta2);
    field("clip", o.clip);
    field("seed", o.seed);
    field("max_skips", o.max_skips);
    field("eval_every", o.eval_every);
    field("eval_batches", o.eval_batches);
    field("save_every", o.save_every);
    field("sample_every", o.sample_every);
    field("keep", o.keep);
    field("prompt", o.prompt);
    field("sample_tokens", o.sample_tokens);
    field("recompute", o.recompute);
    field("masters", o.masters);
    field("prefetch", o.prefetch);
    field("grains", o.grains);
    field("bucket", o.bucket);
    field("zero", o.zero);
    field("reduce", o.reduce);
    field("pipeline", o.pipeline);
    field("pipeline_schedule", o.pipeline_schedule);
    field("threads", o.threads);
    field("cuda", o.cuda);
    field("command", o.command);
}

[[noreturn]] void refuse(const char* field, std::string value, std::string problem,
                         std::string remedy = {}) {
    throw Error::usage({.field = field,
                        .value = std::move(value),
                        .problem = std::move(problem),
                        .remedy = std::move(remedy)});
}

template <typename T>
void need(bool holds, const char* field, T value, const std::string& problem) {
    if (!holds) refuse(field, fmt::format("{}", value), problem);
}

// Errors that would blame a file must name an option here.
void validate_new(const ModelSpec& spec) {
    static constexpr std::pair<const char*, const char*> kOptions[] = {
        {"width", "--dim"},          {"layers", "--layers"},
        {"heads", "--heads"},        {"kv heads", "--kv-heads"},
        {"head size", "--head-dim"}, {"hidden size", "--hidden"},
        {"context", "--context"},    {"rotary dimensions", "--head-dim"}};
    try {
        spec.validate("new model");
    } catch (const Error& error) {
        for (const auto& [field, option] : kOptions) {
            if (error.info().field == field) {
                refuse(option, error.info().value, error.info().problem);
            }
        }
        throw;
    }
}

void validate_diffusion(const TrainOptions& o) {
    need(o.block >= 1, "--block", o.block, "must be at least 1");
    need(o.block <= o.seq, "--block", o.block, "must not be more than --seq");
    if (o.seq % o.block != 0) {
        refuse("--seq", fmt::format("{}", o.seq),
               fmt::format("is not a multiple of --block {}", o.block),
               fmt::format("give {} or {}", o.seq / o.block * o.block,
                           (o.seq / o.block + 1) * o.block));
    }
    need(o.diffusion_weight == "1/t" || o.diffusion_weight == "none", "--diffusion-weight",
         o.diffusion_weight, "must be 1/t or none");
    need(o.batch % o.copies() == 0, "--batch", o.batch,
         "must be even with --diffusion-weight none: every text stands in two rows");
    // On a GPU, long blocks are sequences of attention's kernel, which counts them in 16 bits.
    const bool few = std::int64_t{o.batch} * o.seq / o.block <= 65535;
    need(few || !o.cuda || o.block <= cuda::kMostOwnBlock, "--batch", o.batch,
         "makes more than 65535 blocks in a pass, with --seq and --block: too many on a GPU; give "
         "a smaller one and --accumulate");
    if (o.bos) {
        refuse("--bos", "", "is of --objective ar: with diffusion documents begin so anyway",
               "leave it out");
    }
}

void validate_grains(const TrainOptions& o) {
    need(o.grains >= 1 && o.grains <= (1 << 20) && (o.grains & (o.grains - 1)) == 0, "--grains",
         o.grains, "must be a power of two");
    const std::int64_t step = std::int64_t{o.batch} * o.accumulate;
    if (step % o.grains != 0) {
        refuse("--grains", fmt::format("{}", o.grains),
               fmt::format("does not divide the {} sequences of a step", step),
               "change --batch, --accumulate or --grains");
    }
    const std::int64_t grain = step / o.grains;
    if (grain > o.batch ? grain % o.batch != 0 : o.batch % grain != 0) {
        refuse(
            "--grains", fmt::format("{}", o.grains),
            fmt::format("makes grains of {} sequences, neither a part nor a multiple of --batch {}",
                        grain, o.batch),
            "change --batch, --accumulate or --grains");
    }
    need(o.pass_sequences() % o.copies() == 0, "--grains", o.grains,
         "leaves an odd number of sequences to a pass; with --diffusion-weight none a text stands "
         "in two rows");
}

}  // namespace

std::int64_t TrainOptions::warmup_steps() const {
    return warmup >= 0 ? warmup : std::min<std::int64_t>(steps / 20, 1000);
}

double TrainOptions::learning_rate(std::int64_t step) const {
    const std::int64_t warm = warmup_steps();
    const double low = lowest_lr();
    const double rise =
        step < warm ? lr * static_cast<double>(step) / static_cast<double>(warm) : lr;
    if (schedule == "cosine") {
        if (step < warm) return rise;
        if (step >= steps || steps <= warm) return low;
        const double part = static_cast<double>(step - warm) / static_cast<double>(steps - warm);
        return low + (lr - low) * 0.5 * (1 + std::cos(std::numbers::pi * part));
    }
    if (schedule == "wsd") {
        const double length = std::max(1.0, std::round(decay * static_cast<double>(steps)));
        const double left = static_cast<double>(std::max<std::int64_t>(steps - step, 0)) / length;
        // If the warm-up overlaps the decay, the rate turns where the two meet.
        return std::min(rise, low + (lr - low) * std::min(left, 1.0));
    }
    return rise;
}

void TrainOptions::validate() const {
    need(steps >= 1, "--steps", steps, "must be at least 1");
    need(batch >= 1, "--batch", batch, "must be at least 1");
    need(seq >= 2, "--seq", seq, "must be at least 2");
    need(accumulate >= 1, "--accumulate", accumulate, "must be at least 1");
    need(std::int64_t{batch} * seq <= (1 << 28), "--batch x --seq",
         fmt::format("{} x {}", batch, seq), "is beyond 2^28 tokens; use a smaller one");
    need(tokens_per_step() >= 16, "--batch", batch,
         "makes a step of fewer than 16 tokens with --seq and --accumulate: too few to learn from");
    need(std::isfinite(lr) && lr > 0, "--lr", lr, "must be above 0");
    need(std::isfinite(min_lr) && min_lr <= lr, "--min-lr", min_lr, "must not be above --lr");
    need(min_lr >= 0 || min_lr == kUsual, "--min-lr", min_lr, "must not be negative");
    need(warmup <= steps, "--warmup", warmup, "must not be more than --steps");
    need(warmup >= 0 || warmup == kUsual, "--warmup", warmup, "must not be negative");
    need(decay >= 0 && decay <= 1, "--decay", decay, "must be from 0 to 1");
    need(std::isfinite(weight_decay) && weight_decay >= 0, "--weight-decay", weight_decay,
         "must not be negative");
    need(beta1 >= 0 && beta1 < 1, "--beta1", beta1, "must be in [0, 1)");
    need(beta2 >= 0 && beta2 < 1, "--beta2", beta2, "must be in [0, 1)");
    need(std::isfinite(clip) && clip >= 0, "--clip", clip, "must not be negative");
    need(max_skips >= 1, "--max-skips", max_skips, "must be at least 1");
    need(prefetch >= 0 && prefetch <= 64, "--prefetch", prefetch, "must be from 0 to 64");
    need(zero >= 0 && zero <= 3, "--zero", zero, "must be from 0 to 3");
    need(reduce == "exact" || reduce == "fast", "--reduce", reduce, "must be exact or fast");
    need(pipeline >= 1, "--pipeline", pipeline, "must be at least 1");
    need(pipeline == 1 || zero <= 1, "--zero", zero, "must be 0 or 1 with --pipeline");
    need(schedule_of(pipeline_schedule).has_value(), "--pipeline-schedule", pipeline_schedule,
         "must be 1f1b or gpipe");
    need(micro_batches >= 0 && micro_batches <= (1 << 20) &&
             (micro_batches & (micro_batches - 1)) == 0,
         "--micro-batches", micro_batches, "must be a power of two");
    need(bucket > 0 && bucket <= 1 << 20, "--bucket", bucket, "must be above 0 and at most 2^20");
    need(keep >= 0, "--keep", keep, "must not be negative");
    need(eval_every >= 0, "--eval-every", eval_every, "must not be negative");
    need(eval_batches >= 0, "--eval-batches", eval_batches, "must not be negative");
    need(save_every >= 0, "--save-every", save_every, "must not be negative");
    need(sample_every >= 0, "--sample-every", sample_every, "must not be negative");
    need(sample_tokens >= 0, "--sample-tokens", sample_tokens, "must not be negative");
    need(threads >= 0, "--threads", threads, "must not be negative");
    need(schedule == "cosine" || schedule == "wsd" || schedule == "constant", "--schedule",
         schedule, "must be cosine, wsd or constant");
    need(model::recompute_of(recompute).has_value(), "--recompute", recompute,
         "must be none, light or full");
    need(masters == "f32" || masters == "bf16", "--masters", masters, "must be f32 or bf16");
    need(objective == "ar" || objective == "diffusion", "--objective", objective,
         "must be ar or diffusion");
    if (diffusion()) validate_diffusion(*this);
    if (grains != 0) validate_grains(*this);
}

ModelSpec new_spec(const NewModel& wanted, int vocab, int seq) {
    ModelSpec spec;
    spec.family = wanted.family == "gpt_neox" ? "gpt-neox" : wanted.family;
    const bool neox = spec.family == "gpt-neox";
    const bool gpt = spec.family == "gpt2" || neox;
    need(gpt || spec.family == "llama" || spec.family == "mistral" || spec.family == "qwen2" ||
             spec.family == "qwen3",
         "--model", wanted.family, "must be llama, mistral, qwen2, qwen3, gpt2 or gpt-neox");
    need(wanted.dim >= 1, "--dim", wanted.dim, "must be at least 1");
    need(wanted.heads >= 1, "--heads", wanted.heads, "must be at least 1");
    need(wanted.kv_heads >= 0, "--kv-heads", wanted.kv_heads, "must not be negative");
    need(wanted.head_dim >= 0, "--head-dim", wanted.head_dim, "must not be negative");
    need(wanted.hidden >= 0, "--hidden", wanted.hidden, "must not be negative");
    need(wanted.context >= 0, "--context", wanted.context, "must not be negative");
    spec.vocab = vocab;
    spec.dim = wanted.dim;
    spec.layers = wanted.layers;
    spec.heads = wanted.heads;
    spec.kv_heads = wanted.kv_heads > 0 ? wanted.kv_heads : wanted.heads;
    spec.context = wanted.context > 0 ? wanted.context : seq;
    need(wanted.head_dim > 0 || spec.dim % spec.heads == 0, "--heads", spec.heads,
         fmt::format("does not divide --dim {}; choose one that does, or give --head-dim",
                     spec.dim));
    spec.head_dim = wanted.head_dim > 0 ? wanted.head_dim : spec.dim / spec.heads;
    if (gpt) {
        need(spec.kv_heads == spec.heads, "--kv-heads", spec.kv_heads,
             "must be --heads in this family");
        need(spec.q_dim() == spec.dim, "--head-dim", spec.head_dim,
             "must be --dim / --heads in this family");
        spec.norm = model::NormKind::layer;
        spec.gated = false;
        spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
        spec.activation = neox ? ops::Activation::gelu : ops::Activation::gelu_tanh;
        spec.learned_positions = !neox;
        if (neox) spec.residual = model::Residual::parallel;
    }
    const int gated_hidden = (8 * spec.dim / 3 + 31) / 32 * 32;
    spec.hidden = wanted.hidden > 0 ? wanted.hidden : gpt ? 4 * spec.dim : gated_hidden;
    spec.rope.style = ops::RopeStyle::half;
    if (neox) {
        spec.rope.rotary = std::max(2, spec.head_dim / 4 / 2 * 2);
    } else if (!gpt) {
        spec.rope.rotary = spec.head_dim;
    }
    if (spec.family.starts_with("qwen")) {
        spec.norm_eps = 1e-6f;
        spec.rope.theta = 1e6;
        spec.qkv_bias = spec.family == "qwen2";
        spec.qk_norm = spec.family == "qwen3";
    }
    need(wanted.tied.empty() || wanted.tied == "yes" || wanted.tied == "no", "--tied", wanted.tied,
         "must be yes or no");
    spec.tied_embeddings = wanted.tied.empty() ? !neox : wanted.tied == "yes";
    validate_new(spec);
    return spec;
}

nlohmann::ordered_json options_json(const TrainOptions& options) {
    nlohmann::ordered_json out;
    for_each_option(options, [&](const char* name, const auto& value) { out[name] = value; });
    return out;
}

std::vector<std::string> shared_options(const TrainOptions& options) {
    std::vector<std::string> out;
    for_each_option(options, [&](std::string_view name, const auto& value) {
        if (name == "command" || name == "threads" || name == "prefetch" ||
            name == "data") {  // its hash is compared instead
            return;
        }
        out.push_back(fmt::format("{} = {}", name, value));
    });
    return out;
}

TrainOptions read_options(formats::JsonValue json, const std::string& file) {
    TrainOptions out;
    for_each_option(out, [&](const char* name, auto& value) {
        using T = std::remove_reference_t<decltype(value)>;
        const auto at = json.find(name);
        // Not written by the first versions, which only had the defaults.
        const std::string_view key = name;
        if (!at && (key == "masters" || key == "bos" || key == "objective" || key == "block" ||
                    key == "diffusion_weight" || key == "bucket" || key == "zero" ||
                    key == "reduce" || key == "pipeline" || key == "pipeline_schedule")) {
            return;
        }
        if constexpr (std::is_same_v<T, int>) {
            if (!at && key == "grains") {
                value = 1;
                return;
            }
        }
        bool good = at.has_value();
        if constexpr (std::is_same_v<T, std::string>) {
            good = good && at->is_string();
        } else if constexpr (std::is_same_v<T, bool>) {
            good = good && at->is_boolean();
        } else if constexpr (std::is_same_v<T, double>) {
            good = good && at->is_number();
        } else {
            good = good &&
                   (std::is_unsigned_v<T> ? at->is_number_unsigned() : at->is_number_integer());
            if constexpr (sizeof(T) < 8) good = good && at->is_integer_in(INT32_MIN, INT32_MAX);
        }
        if (!good) {
            throw Error::input({.file = file,
                                .field = fmt::format("options.{}", name),
                                .value = at ? at->shown() : "",
                                .problem = "is missing or not what millrace train wrote",
                                .remedy = "the checkpoint is damaged"});
        }
        value = at->template get<T>();
    });
    return out;
}

}  // namespace mr::train
