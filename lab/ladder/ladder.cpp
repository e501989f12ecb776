#include "lab/ladder/ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/cpu.h"
#include "core/error.h"
#include "lab/ladder/matmul.h"
#include "lab/ladder/process_device.h"
#include "model/cuda/device_weights.h"

namespace mr::ladder {
namespace {

enum class How {
    cpu,
    scalar,
    host,
    process_copies,
    process_resident,
    copies,
    preallocated,
    resident_weights,
    engine
};

struct Step {
    const char* id;
    const char* name;
    How how;
    DType weights = DType::f32;
    bool fuse = false, graph = false, dependent_launch = false, persistent = false;

    bool on_gpu() const { return how >= How::copies; }
    bool on_device() const { return how >= How::process_copies; }  // the GPU, or its stand-in
};

// Every line changes one thing.
constexpr Step kSteps[] = {
    {"0", "cpu", How::cpu},
    {"scalar", "one thread", How::scalar},
    {"host", "plain forward", How::host},
    {"process", "copy per matmul", How::process_copies},
    {"process", "resident weights", How::process_resident},
    {"1", "copy per matmul", How::copies},
    {"2", "preallocated", How::preallocated},
    {"3", "resident weights", How::resident_weights},
    {"4", "all resident", How::engine},
    {"5", "bf16 weights", How::engine, DType::bf16},
    {"5", "fused", How::engine, DType::bf16, true},
    {"6", "graph", How::engine, DType::bf16, true, true},
    {"7", "dependent launch", How::engine, DType::bf16, true, true, true},
    {"8", "one kernel", How::engine, DType::bf16, true, true, true, true},
    {"9", "quantised, q8_0", How::engine, DType::q8_0, true, true, true, true},
    {"9", "quantised, q4_0", How::engine, DType::q4_0, true, true, true, true},
};
constexpr int kLast = 9;

[[noreturn]] void reject_rungs(const std::string& rungs) {
    throw Error::usage({.field = "--rungs",
                        .value = rungs,
                        .problem = "is not a list of rungs",
                        .remedy = "rungs are 0 to 9, scalar, host and process; as in 0,host,4-9"});
}

// Whether `rungs` includes the rung. Throws for an unknown one.
bool wanted(const std::string& rungs, std::string_view id) {
    if (rungs == "all") return true;
    bool found = false;
    std::string_view rest = rungs;
    while (true) {
        const std::size_t comma = std::min(rest.find(','), rest.size());
        const std::string_view part = rest.substr(0, comma);
        if (part == "scalar" || part == "host" || part == "process") {
            found = found || id == part;
        } else {
            int first = -1, last = -1;
            const char* end = part.data() + part.size();
            auto read = std::from_chars(part.data(), end, first);
            last = first;
            if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '-') {
                read = std::from_chars(read.ptr + 1, end, last);
            }
            if (read.ec != std::errc{} || read.ptr != end || first < 0 || last < first ||
                last > kLast) {
                reject_rungs(rungs);
            }
            for (int i = first; i <= last; ++i) found = found || id == std::to_string(i);
        }
        if (comma == rest.size()) return found;
        rest.remove_prefix(comma + 1);
    }
}

// Any ids will do, spread over the vocabulary.
std::vector<std::int32_t> made_up_prompt(int tokens, int vocab) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>((i * 7919 + 1) % static_cast<std::size_t>(vocab));
    }
    return ids;
}

double relative_rms(const Logits& got, const Logits& expected) {
    double error = 0, total = 0;
    for (std::size_t t = 0; t < got.size(); ++t) {
        for (std::size_t i = 0; i < got[t].size(); ++i) {
            error += std::pow(double{got[t][i]} - double{expected[t][i]}, 2);
            total += std::pow(double{expected[t][i]}, 2);
        }
    }
    return std::sqrt(error / total);
}

class Climb {
  public:
    Climb(ModelPtr model, const Options& options);
    Rung step(const Step& step);

  private:
    // Shared by all rungs of one weight type, and kept while they run.
    struct Type {
        DType type;
        ModelPtr model;                          // its matrices in that type
        std::unique_ptr<EngineDecoder> rounded;  // the CPU with these weights in f32; none: f32_
        std::shared_ptr<const model::DeviceWeights> on_device;
    };
    Type& with(DType type);
    EngineDecoder& cpu_of(Type& type) { return type.rounded ? *type.rounded : *f32_; }
    model::EngineOptions engine_options() const;
    std::unique_ptr<Decoder> decoder(const Step& step);
    Check check(const Step& step, Decoder& decoder);

    Options options_;
    int positions_;
    ThreadPool pool_;
    ModelPtr model_;  // in f32
    std::vector<std::int32_t> prompt_;
    std::unique_ptr<EngineDecoder> f32_;  // rung 0
    std::vector<std::int32_t> tokens_;    // ... and what it draws
    std::optional<Type> type_;
};

Climb::Climb(ModelPtr model, const Options& options)
    : options_(options),
      positions_(options.prompt + std::max(options.tokens, options.check) + 1),
      pool_(options.threads > 0 ? options.threads : cpu_info().cores) {
    model_ = as_type(*model, DType::f32, pool_);
    prompt_ = made_up_prompt(options.prompt, model_->spec.vocab);
    f32_ = std::make_unique<EngineDecoder>(model_, engine_options(), nullptr, prompt_);
    tokens_ = f32_->draw(options.check).tokens;
}

model::EngineOptions Climb::engine_options() const {
    model::EngineOptions out = options_.engine;
    out.threads = pool_.size();
    out.context = positions_;
    return out;
}

Climb::Type& Climb::with(DType type) {
    if (type_ && type_->type == type) return *type_;
    type_.reset();
    Type next{type, model_, nullptr, nullptr};
    if (type != DType::f32) {
        next.model = as_type(*model_, type, pool_);
        if (const ModelPtr rounded = as_type(*next.model, DType::f32, pool_);
            !same_weights(*rounded, *model_)) {
            next.rounded =
                std::make_unique<EngineDecoder>(rounded, engine_options(), nullptr, prompt_);
        }
    }
    next.on_device = model::load_to_device(*next.model, pool_, nullptr);
    return type_.emplace(std::move(next));
}

std::unique_ptr<Decoder> Climb::decoder(const Step& step) {
    const auto plain = [&](std::unique_ptr<Matmul> matmul) {
        return std::make_unique<PlainDecoder>(model_, std::move(matmul), prompt_, positions_,
                                              step.on_device());
    };
    switch (step.how) {
        case How::scalar:
            return plain(std::make_unique<ScalarMatmul>());
        case How::process_copies:
            return plain(process_matmul(Residence::nothing));
        case How::process_resident:
            return plain(process_matmul(Residence::weights));
        case How::host:
            return plain(std::make_unique<HostMatmul>(pool_.size()));
        case How::copies:
            return plain(copy_per_matmul());
        case How::preallocated:
            return plain(preallocated(*model_));
        case How::resident_weights:
            return plain(resident_weights(*model_));
        default:
            break;
    }
    const Type& type = with(step.weights);
    model::EngineOptions options = engine_options();
    options.cuda = true;
    options.fuse &= step.fuse;
    options.graph &= step.graph;
    options.dependent_launch &= step.dependent_launch;
    options.persistent &= step.persistent;
    return std::make_unique<EngineDecoder>(type.model, options, type.on_device, prompt_);
}

Check Climb::check(const Step& step, Decoder& decoder) {
    const Drawn drawn = decoder.draw(options_.check);
    Check out;
    out.by_rms = step.weights != DType::f32;
    out.tokens = options_.check;
    while (out.same_tokens < out.tokens &&
           drawn.tokens[static_cast<std::size_t>(out.same_tokens)] ==
               tokens_[static_cast<std::size_t>(out.same_tokens)]) {
        ++out.same_tokens;
    }
    EngineDecoder& cpu = step.weights == DType::f32 ? *f32_ : cpu_of(with(step.weights));
    compare(out, model_->spec, drawn, cpu.follow(drawn.tokens));
    out.rms_of_f32 =
        &cpu == f32_.get() ? out.rms : relative_rms(drawn.logits, f32_->follow(drawn.tokens));
    return out;
}

Rung Climb::step(const Step& step) {
    Rung out;
    out.id = step.id;
    out.name = step.name;
    out.weights = step.weights;
    out.reference = step.how == How::cpu;
    const std::unique_ptr<Decoder> owned = out.reference ? nullptr : decoder(step);
    Decoder& runs = out.reference ? static_cast<Decoder&>(*f32_) : *owned;
    if (!out.reference) out.check = check(step, runs);  // which warms it up, too

    std::vector<Timing> timings;
    for (int i = 0; i < options_.repetitions; ++i) timings.push_back(runs.time(options_.tokens));
    const auto per_token = [](const Timing& t) { return t.seconds / t.tokens; };
    std::sort(timings.begin(), timings.end(),
              [&](const Timing& a, const Timing& b) { return per_token(a) < per_token(b); });
    const Timing& median = timings[timings.size() / 2];
    out.tokens_per_second = 1 / per_token(median);
    out.to_device = static_cast<double>(median.ledger.host_to_device().bytes) / median.tokens;
    out.to_host = static_cast<double>(median.ledger.device_to_host().bytes) / median.tokens;
    out.split = median.split;
    return out;
}

}  // namespace

// Every value of the residual stream goes through 2 products per layer that depend on each other,
// and the head's, and a sum of k terms rounds k times by at most 2^-24. Errors of either sign grow
// as the square root of their number. Both sides make them; 4 is for what the other operations add.
double largest_limit(const model::ModelSpec& spec, double largest_logit) {
    const double longest = std::max({spec.dim, spec.hidden, spec.q_dim()});
    return 2 * 4 * std::sqrt((2 * spec.layers + 1) * longest) * 0x1p-24 * largest_logit;
}

// A layer rounds to bf16 (2^-8 relative, at most) six times: the two normed inputs, q, the cache's
// keys and values, attention's output, and the MLP's hidden values; and the head's input is
// rounded. Independent errors add up as their squares; a factor of two covers the operations
// between.
double rms_limit(const model::ModelSpec& spec) {
    return 2 * 0x1p-8 * std::sqrt(6 * spec.layers + 1);
}

void compare(Check& check, const model::ModelSpec& spec, const Drawn& drawn,
             const Logits& expected) {
    double largest_logit = 0;
    for (std::size_t t = 0; t < drawn.logits.size(); ++t) {
        for (std::size_t i = 0; i < drawn.logits[t].size(); ++i) {
            const double want = expected[t][i];
            const double off = std::fabs(double{drawn.logits[t][i]} - want);
            largest_logit = std::max(largest_logit, std::fabs(want));
            // A NaN counts as an infinite difference.
            check.largest = std::max(
                check.largest, std::isnan(off) ? std::numeric_limits<double>::infinity() : off);
        }
    }
    check.rms = relative_rms(drawn.logits, expected);
    check.largest_limit = largest_limit(spec, largest_logit);
    check.rms_limit = rms_limit(spec);
    const bool close =
        check.by_rms ? check.rms <= check.rms_limit : check.largest <= check.largest_limit;
    if (!close) check.failed = "the logits are too far from the CPU's";
    for (std::size_t t = 0; t < drawn.tokens.size(); ++t) {
        if (drawn.tokens[t] == best_of(drawn.logits[t])) continue;
        check.failed = fmt::format("token {} is not the best by its own logits", t);
    }
    if (!drawn.repeatable) check.failed = "a second time other tokens were drawn";
}

bool Ladder::passed() const {
    return std::all_of(rungs.begin(), rungs.end(),
                       [](const Rung& rung) { return rung.check.failed.empty(); });
}

void check_rungs(const std::string& rungs) { wanted(rungs, ""); }

MemoryPlan host_plan(const model::Model& model) {
    MemoryPlan plan;
    plan.add("weights, as they are", model.weights.owned_bytes + model.weights.mapped_bytes);
    plan.add("weights, in f32", bytes_as(model, DType::f32));
    plan.add("weights, rounded to another type, in f32", bytes_as(model, DType::f32));
    plan.add("weights, in that type", bytes_as(model, DType::bf16));
    return plan;
}

Ladder climb(ModelPtr model, const Options& options, const Progress& progress) {
    MR_CHECK(
        options.prompt > 0 && options.tokens > 0 && options.repetitions > 0 && options.check > 0,
        "there is something to measure and to check");
    Ladder out;
    Climb climb(std::move(model), options);
    std::uint64_t done = 0;
    for (const Step& step : kSteps) {
        if (progress) progress("climbing", done++, std::size(kSteps));
        if (!wanted(options.rungs, step.id)) continue;
        if (step.on_gpu() && !options.cuda) {
            out.absent.push_back({step.id, step.name});
            continue;
        }
        Rung rung = climb.step(step);
        if (!out.rungs.empty()) {
            rung.gain = rung.tokens_per_second / out.rungs.back().tokens_per_second;
        }
        out.rungs.push_back(std::move(rung));
    }
    return out;
}

}  // namespace mr::ladder
