#include "lab/precision/study.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "core/error.h"
#include "core/half.h"
#include "model/train/train_engine.h"
#include "train/batches.h"

namespace mr::precision {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Way kWays[] = {
    {"f32", false, Masters::f32, "all f32, CPU"},
    {"f32-nearest", false, Masters::bf16_nearest,
     "products f32, masters bf16 rounded to nearest, CPU"},
    {"f32-stochastic", false, Masters::bf16_stochastic,
     "products f32, masters bf16 rounded stochastically, CPU"},
    {"bf16", true, Masters::f32, "products bf16, masters f32, GPU"},
    {"bf16-stochastic", true, Masters::bf16_stochastic,
     "products bf16, masters bf16 rounded stochastically, GPU"},
};

// A model in training, and its batches.
class Trainee {
  public:
    Trainee(const model::ModelSpec& spec, const Way& way, const StudyOptions& options,
            const StudyTokens& tokens)
        : options_(options),
          nearest_(way.masters == Masters::bf16_nearest),
          engine_(spec, engine_options(way, options)),
          train_(tokens.train, {.batch = options.batch, .seq = options.seq, .seed = options.seed}),
          held_out_(tokens.held_out,
                    {.batch = options.batch, .seq = options.seq, .shuffle = false}),
          ids_(train_.batch_ids()) {
        engine_.init(options.seed);
        if (nearest_) round_masters();
        start_ = matrices();
        load(slot_, train_, 0);
    }

    model::TrainEngine& engine() { return engine_; }

    // `number` from 1. The next batch is sent while this one computes, as in training.
    model::TrainEngine::StepResult step(std::int64_t number) {
        engine_.accumulate(slot_, 1.0 / static_cast<double>(engine_.options().shape.half()));
        slot_ = other();
        load(slot_, train_, number);
        ops::AdamW adamw;
        adamw.lr = static_cast<float>(options_.lr);
        adamw.clip = 1.0f;
        adamw.step = number - skipped_;  // number of updates, with this one
        adamw.seed = options_.seed;
        const model::TrainEngine::StepResult result = engine_.update(adamw);  // waits for it
        if (result.skipped) ++skipped_;
        return result;
    }

    // Rounds parameters to nearest: not included in a step's time.
    void after_step() {
        if (nearest_) round_masters();
    }

    // Nats per token of the held-out text.
    double held_out_loss() {
        double sum = 0;
        std::int64_t rows = 0;
        const auto most = std::min<std::int64_t>(
            StudyOptions::kHeldOutBatches, static_cast<std::int64_t>(held_out_.steps_per_epoch()));
        for (std::int64_t i = 0; i < most; ++i) {
            rows += load(other(), held_out_, i);
            sum += engine_.evaluate(other());
        }
        return sum / static_cast<double>(rows * options_.seq);
    }

    // For matrices and tables, without the gaps between them.
    double moved() {
        const std::vector<float> now = matrices();
        std::int64_t changed = 0, count = 0;
        for (const model::ParamLayout::Entry& entry : engine_.layout().entries) {
            if (entry.offset >= engine_.layout().decayed) continue;
            const auto first = static_cast<std::size_t>(entry.offset);
            const auto elements = static_cast<std::size_t>(entry.shape.count());
            for (std::size_t i = first; i < first + elements; ++i) {
                changed += now[i] != start_[i] ? 1 : 0;
            }
            count += entry.shape.count();
        }
        return static_cast<double>(changed) / static_cast<double>(count);
    }

  private:
    static model::TrainEngineOptions engine_options(const Way& way, const StudyOptions& options) {
        model::TrainEngineOptions out;
        out.cuda = way.cuda;
        out.threads = options.threads;
        out.shape.sequences = options.batch;
        out.shape.seq = options.seq;
        out.bf16_masters = way.masters == Masters::bf16_stochastic;
        return out;
    }

    int other() const { return (slot_ + 1) % model::TrainOps::kSlots; }

    // Returns the number of valid rows: the others do not count.
    std::int64_t load(int slot, const train::Batches& from, std::int64_t number) {
        const std::int64_t rows = from.read(static_cast<std::uint64_t>(number), ids_);
        train::split_windows(ids_, options_.seq, rows, engine_.ops().host_slot(slot));
        engine_.put(slot);
        return rows;
    }

    std::vector<float> params() {
        std::vector<float> out(static_cast<std::size_t>(engine_.layout().count));
        engine_.get_state(out.data(), nullptr, nullptr);
        return out;
    }
    std::vector<float> matrices() {
        std::vector<float> out = params();
        out.resize(static_cast<std::size_t>(engine_.layout().decayed));
        return out;
    }
    void round_masters() {
        std::vector<float> all = params();
        const auto count = static_cast<std::size_t>(engine_.layout().decayed);
        for (float& value : std::span(all).first(count)) value = bf16_to_f32(f32_to_bf16(value));
        engine_.set_state(all.data(), nullptr, nullptr);
    }

    const StudyOptions& options_;
    const bool nearest_;
    model::TrainEngine engine_;
    const train::Batches train_, held_out_;
    std::vector<std::int32_t> ids_;  // [batch, seq + 1]
    std::vector<float> start_;       // [decayed]
    int slot_ = 0;                   // for the next step
    std::int64_t skipped_ = 0;       // steps without a finite gradient
};

}  // namespace

std::span<const Way> ways() { return kWays; }

double Measured::step_seconds() const {
    if (seconds.empty()) return 0;
    std::vector<double> sorted = seconds;
    std::ranges::sort(sorted);
    const std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

Measured study(const model::ModelSpec& spec, const Way& way, const StudyOptions& options,
               const StudyTokens& tokens, const Progress& progress) {
    MR_CHECK(options.cpu_steps > 0 && options.cpu_steps <= options.steps,
             "the CPU takes at least one step, and no more than the GPU");
    Trainee trainee(spec, way, options, tokens);
    Measured out;
    out.compute = trainee.engine().ops().compute_type();
    out.plan = trainee.engine().plan();
    out.steps = way.cuda ? options.steps : options.cpu_steps;
    for (std::int64_t step = 1; step <= out.steps; ++step) {
        const auto start = Clock::now();
        const model::TrainEngine::StepResult result = trainee.step(step);
        out.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
        out.losses.push_back(result.loss);
        out.grad_norms.push_back(result.grad_norm);
        trainee.after_step();
        if (step == options.cpu_steps) out.loss_at_cpu_steps = trainee.held_out_loss();
        if (progress) {
            progress(way.name, static_cast<std::uint64_t>(step),
                     static_cast<std::uint64_t>(out.steps));
        }
    }
    out.loss = out.steps == options.cpu_steps ? out.loss_at_cpu_steps : trainee.held_out_loss();
    out.moved = trainee.moved();
    out.memory_taken = trainee.engine().ops().memory_taken();
    return out;
}

}  // namespace mr::precision
