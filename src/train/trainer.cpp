#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/error.h"
#include "core/out_of_memory.h"
#include "core/output_file.h"
#include "model/io/source.h"
#include "train/layout.h"
#include "train/run.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kWatchedAfter = 5;  // steps of a process

// During its lifetime, other ranks serve their parts of the state, however a save ends.
class Serving {
  public:
    explicit Serving(model::TrainEngine& engine) : engine_(engine) {}
    ~Serving() {
        try {
            if (engine_.shares_state()) engine_.end_serving();
        } catch (...) {  // a lost rank: the next step reports it
            return;
        }
    }
    Serving(const Serving&) = delete;
    Serving& operator=(const Serving&) = delete;

  private:
    model::TrainEngine& engine_;
};
constexpr std::uint64_t kValidationNoise = 0x7A11D;

}  // namespace

// Writes ids [batch, seq + 1] as inputs and targets, or [batch, seq] with masked tokens; missing
// rows do not count.
void Run::fill_slot(int slot, std::span<const std::int32_t> ids, std::int64_t rows,
                    std::uint64_t batch, bool validation) {
    const std::span<std::int32_t> host = engine_->ops().host_slot(slot);
    if (o_.diffusion()) {
        const model::TrainShape& shape = engine_->options().shape;
        // Validation has the same noise every time, whatever the run's seed, and gives the bound.
        const NoiseOptions noise{.seed = validation ? kValidationNoise : o_.seed,
                                 .mask = mask_,
                                 .complementary = !validation && o_.copies() > 1};
        engine_->put(slot, add_noise({host, shape}, shape, ids, rows, batch, noise));
        return;
    }
    split_windows(ids, o_.seq, rows, host);
    engine_->put(slot);
}

// Sends the next batch to the slot of the next pass. If it cannot be read, that pass fails, not the
// current step.
void Run::load_next() {
    try {
        const Prefetcher::Batch batch = prefetcher_->next();
        fill_slot(slot_, batch.ids, batch.rows, batch.step, false);
        prefetcher_->release();
    } catch (...) {
        unread_ = std::current_exception();
    }
}

void Run::next_slot(bool load) {
    slot_ = (slot_ + 1) % engine_->options().shape.slots;
    if (load) load_next();
}

void Run::run_passes(StepMetrics& out, std::int64_t step) {
    const int here = passes_here();
    for (int i = 0; i < here; ++i) {
        if (unread_) std::rethrow_exception(unread_);
        if (o_.diffusion()) out.masked = out.masked.value_or(0) + engine_->counted(slot_);
        engine_->accumulate(slot_, pass_scale(), (i + 1) % o_.grain_passes() == 0);
        // Meanwhile the next batch is loaded, if there is one.
        next_slot(step < o_.steps || i + 1 < here);
    }
}

StepMetrics Run::one_step(std::int64_t step) {
    StepMetrics out;
    const auto start = Clock::now();
    out.step = step;
    out.lr = o_.learning_rate(step);
    if (link_) {
        run_stage(out, step);
    } else {
        run_passes(out, step);
    }
    ops::AdamW adamw;
    adamw.lr = static_cast<float>(out.lr);
    adamw.beta1 = static_cast<float>(o_.beta1);
    adamw.beta2 = static_cast<float>(o_.beta2);
    adamw.weight_decay = static_cast<float>(o_.weight_decay);
    adamw.clip = static_cast<float>(o_.clip);
    adamw.seed = o_.seed;
    adamw.step = step - state_.skipped;  // number of updates, with this one
    updating_ = true;
    const model::TrainEngine::StepResult result = engine_->update(adamw);
    updating_ = false;
    if (out.masked) {
        out.masked = static_cast<std::int64_t>(comm_.sum(static_cast<double>(*out.masked)));
    }
    out.loss = result.loss;
    out.grad_norm = result.grad_norm;
    out.skipped = result.skipped;
    out.seconds = seconds_since(start);
    out.data_wait_seconds = prefetcher_->wait_seconds() - data_wait_;
    data_wait_ = prefetcher_->wait_seconds();
    out.tokens_per_second = static_cast<double>(o_.tokens_per_step()) / out.seconds;
    return out;
}

void Run::save() {
    if (saved_ == state_.step || state_.step == 0) return;
    if (!comm_.first()) {
        if (engine_->shares_state()) engine_->serve();
        saved_ = state_.step;
        return;
    }
    const Serving serving(*engine_);
    const Unbroken unbroken(events_);
    const AddSeconds time(saving_seconds_);
    not_saved_ = state_.step;
    own_folder();
    sync_log();
    checkpoints_.save(*engine_, state_, *tokenizer_, tokenizer_json_);
    not_saved_ = -1;
    saved_ = state_.step;
    checkpoints_.prune(state_.step, o_.keep);
    if (events_.saved) events_.saved(state_.step, checkpoints_.folder(state_.step));
}

// In the middle of a run: the disk may have room again next time, and ending now would lose the
// steps since the last checkpoint.
void Run::try_to_save() {
    try {
        save();
    } catch (const comm::LostRank&) {
        throw;
    } catch (const LostFolder&) {
        throw;
    } catch (const std::exception& error) {
        say(fmt::format("step {} is not saved, the run goes on: {}", state_.step, error.what()));
    }
}

// Something failed, but the parameters are those of a whole step: save them. The first error is the
// one reported.
void Run::rescue() noexcept {
    if (!comm_.alone()) return;  // others are at another step, or gone
    if (updating_ || not_saved_ == state_.step || state_.step == started_at_) return;
    try {
        try {
            save();
            try_to_report();
        } catch (const LostFolder&) {
            return;
        } catch (const std::exception& error) {
            say(fmt::format("step {} could not be saved: {}", state_.step, error.what()));
        }
    } catch (...) {  // events may throw anything
        return;
    }
}

void Run::start_reading() {
    for (int i = 0; i <= o_.prefetch; ++i) buffers_.emplace_back(batches_->batch_ids());
    const auto here = static_cast<std::uint64_t>(passes_here());
    const auto replicas = static_cast<std::uint64_t>(grid_.replicas);
    const auto mine = static_cast<std::uint64_t>(replica());
    // Adjacent grains, or every ranks()th with sharded gradients.
    const bool in_turn = engine_->options().stage() >= 2;
    const BatchOrder order{.here = here,
                           .all = static_cast<std::uint64_t>(passes()),
                           .first = in_turn ? mine : here * mine,
                           .apart = in_turn ? replicas : 1};
    prefetcher_ = std::make_unique<Prefetcher>(
        *batches_, static_cast<std::uint64_t>(state_.step) * here,
        std::vector<std::span<std::int32_t>>(buffers_.begin(), buffers_.end()), order);
    load_next();
}

// Reports the step that was done.
void Run::tell(const StepMetrics& metrics) {
    if (!events_.step) return;
    const double tokens = static_cast<double>(o_.tokens_per_step());
    const auto done = static_cast<double>(state_.step - started_at_);
    const double so_far = step_seconds_ + validation_seconds_ + sample_seconds_ + saving_seconds_;
    events_.step({.metrics = metrics,
                  .steps = o_.steps,
                  .seconds_left = so_far / done * static_cast<double>(o_.steps - state_.step),
                  .memory = plan().total(),
                  .flops_per_second = tokens / metrics.seconds *
                                      static_cast<double>(model::TrainEngine::flops_per_token(
                                          engine_->spec(), o_.seq))});
}

// A step and everything due after it.
void Run::whole_step() {
    hold_back_memory_again();  // a sample, a report or a save may have used the reserve
    // On a GPU the stages of one step are timed, after everything has run once.
    const bool watch = engine_->ops().on_device() && state_.step == started_at_ + kWatchedAfter;
    const Ledger before = watch ? engine_->ledger() : Ledger();
    if (watch) engine_->ops().watch();
    StepMetrics m = one_step(state_.step + 1);
    if (watch) {
        engine_->ops().watched();
        watched_ = engine_->ledger().since(before);
    }
    state_.step = m.step;
    state_.seconds += m.seconds;
    step_seconds_ += m.seconds;
    state_.skipped_in_row = m.skipped ? state_.skipped_in_row + 1 : 0;
    if (m.skipped) ++state_.skipped;
    interrupted_ = all_stop();
    std::exception_ptr failed;
    if (val_batches_ && !interrupted_ && due(o_.eval_every)) {
        try {
            if (const std::optional<Validation> made = validate()) {
                m.val_loss = made->loss;
                m.bits_per_byte = made->bits_per_byte;
            }
        } catch (...) {
            failed = std::current_exception();  // the step still gets its line
        }
        if (m.val_loss) {
            state_.val_loss = m.val_loss;
            state_.val_step = m.step;
        }
    }
    record(m);
    if (failed) std::rethrow_exception(failed);
    tell(m);
    stuck_ = state_.skipped_in_row >= o_.max_skips;
    if (stuck_) return;
    interrupted_ = all_stop() || interrupted_;
    if (!interrupted_ && o_.sample_tokens > 0 && due(o_.sample_every)) {
        if (sampler_) sample();
        interrupted_ = all_stop();
    }
    if (interrupted_ || state_.step == o_.steps) {
        save();
    } else if (due(o_.save_every)) {
        try_to_save();
        try_to_report();
    }
}

void Run::train_steps() {
    if (state_.step >= o_.steps) return;
    start_reading();
    data_wait_ = prefetcher_->wait_seconds();  // nothing overlaps the first one
    const double waited_before = data_wait_;
    try {
        while (state_.step < o_.steps && !interrupted_ && !stuck_) whole_step();
    } catch (...) {
        rescue();
        throw;
    }
    data_wait_ -= waited_before;
    if (!stuck_) return;
    // Not saved: it would displace checkpoints from before the trouble.
    try_to_report();
    if (!comm_.first()) comm_.barrier();  // the first rank reports it, and ends all
    throw Error::input(
        {.file = o_.out,
         .field = "step",
         .value = fmt::format("{}", state_.step),
         .problem = fmt::format("{} steps in a row had no finite gradient (--max-skips)",
                                state_.skipped_in_row),
         .remedy = "resuming from the last checkpoint will not help: start again with a smaller "
                   "--lr or a longer --warmup, or check the data"});
}

// Validation that a stop prevented at the last step, and the report. If nothing was done, the
// existing report is better: stages and times are those of the process that writes it.
void Run::finish() {
    make_missed_validation();
    if (!comm_.first()) return;
    const bool did_something =
        state_.step > started_at_ || validation_seconds_ > 0 || !fs::exists(in_folder(kReportName));
    if (!did_something) return;
    const Unbroken unbroken(events_);
    own_folder();
    try_to_report();
}

void Run::settle() { grid_ = settle_layout(o_, comm_.size(), resumed_); }

TrainResult Run::go(RunFolder* folder) {
    folder_ = folder;
    open_data();
    agree();
    make_engine();
    agree_on_parameters();
    open_folder();
    note_other_machine();
    saved_ = resumed_ ? state_.step : -1;
    started_at_ = state_.step;
    const std::string pipeline = pipeline_plan();  // all ranks take part
    if (events_.begun) {
        events_.begun(
            {engine_->spec(), o_, plan(), state_.step, recompute_cost(), comm_.size(), pipeline});
    }
    if (link_ && o_.sample_tokens > 0) say("no samples: no rank of a pipeline has all parameters");
    if (sampler_ && !sampler_->why_not_there().empty()) {
        say("samples come from the CPU, not from the GPU: " + sampler_->why_not_there());
    }
    if (!val_batches_) say("no validation: " + why_no_validation());
    if (o_.sample_tokens > 0 && engine_->options().stage() == 3) {
        say("no samples: with --zero 3 no rank has all parameters");
    }
    train_steps();
    finish();
    end_log();

    TrainResult out;
    out.folder = o_.out;
    out.step = state_.step;
    out.steps = o_.steps;
    out.objective = o_.objective;
    if (o_.diffusion()) {
        out.block = o_.block;
        out.diffusion_weight = o_.diffusion_weight;
    }
    out.interrupted = interrupted_;
    out.loss = metrics_.empty() ? StepMetrics::kNone : metrics_.back().loss;
    out.val_loss = state_.val_loss;
    out.val_step = state_.val_step;
    out.val_tokens = validated_tokens();
    for (auto m = metrics_.rbegin(); m != metrics_.rend(); ++m) {
        if (!m->val_loss) continue;
        out.val_loss = m->val_loss;
        out.val_step = m->step;
        out.bits_per_byte = m->bits_per_byte;
        break;
    }
    out.skipped = state_.skipped;
    out.seconds = state_.seconds;
    const auto done = static_cast<double>(state_.step - started_at_);
    if (step_seconds_ > 0) {
        out.tokens_per_second = done * static_cast<double>(o_.tokens_per_step()) / step_seconds_;
    }
    out.data_wait_seconds = data_wait_;
    out.parameters = engine_->spec().parameters();
    out.memory_planned = plan().total();
    out.memory_taken = engine_->ops().memory_taken();
    if (saved_ > 0) out.checkpoint = checkpoints_.folder(saved_);
    out.reported = reported_;
    out.ranks = comm_.size();
    out.grains = o_.grains;
    out.stages = grid_.stages;
    out.micro_batches = o_.grains / grid_.replicas;
    if (link_) {
        out.bubble_expected = expected_bubble(grid_.stages, passes_here());
        out.bubble_measured = measured_bubble();
    }
    if (exchange_) {
        out.exchange_seconds = exchange_->busy_seconds();
        out.exchange_wait_seconds = exchange_->waited_seconds();
    }
    return out;
}

namespace {

// The events of ranks other than the first.
TrainEvents quiet(const TrainEvents& events) {
    TrainEvents out;
    out.saving = events.saving;
    out.stop = events.stop;
    out.program = events.program;
    return out;
}

}  // namespace

TrainResult train(const TrainOptions& options, const TrainEvents& events, comm::Comm* comm) {
    comm::Comm alone;
    comm::Comm& ranks = comm ? *comm : alone;
    if (options.out.empty()) {
        throw Error::usage(
            {.field = "--out", .problem = "is missing: the folder to store the run in"});
    }
    TrainState state;
    state.options = options;
    std::error_code code;
    state.options.data = fs::absolute(options.data, code).lexically_normal().string();
    const TrainEvents others = quiet(events);
    const TrainEvents& told = ranks.first() ? events : others;
    Run run(std::move(state), false, told, ranks);
    run.settle();
    std::unique_ptr<RunFolder> folder;
    // NOLINTNEXTLINE(modernize-make-unique): a RunFolder cannot be moved
    if (ranks.first()) folder.reset(new RunFolder(RunFolder::create(options.out)));
    return run.go(folder.get());
}

TrainResult resume(const std::string& run, const std::function<void(TrainOptions&)>& change,
                   const TrainEvents& events, comm::Comm* comm) {
    comm::Comm alone;
    comm::Comm& ranks = comm ? *comm : alone;
    const TrainEvents others = quiet(events);
    const TrainEvents& told = ranks.first() ? events : others;
    const Checkpoints checkpoints(run);
    if (checkpoints.steps().empty()) {  // before anything is made in a folder that is not a run
        if (const std::string whole = model::run_of_checkpoint(run); !whole.empty()) {
            throw Error::input(
                {.file = run,
                 .problem = "is one checkpoint of a run",
                 .remedy = fmt::format("give --resume {}: it resumes from the newest", whole)});
        }
        throw Error::input({.file = run,
                            .problem = "there is no checkpoint to resume from",
                            .remedy = "start a run with --data and --out"});
    }
    std::unique_ptr<RunFolder> folder;
    if (ranks.first()) {
        // NOLINTNEXTLINE(modernize-make-unique): a RunFolder cannot be moved
        folder.reset(new RunFolder(RunFolder::open(run)));
        folder->keep();
    }
    const std::vector<std::int64_t> steps = checkpoints.steps();
    std::vector<Run::Damaged> damaged;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        try {
            TrainState state = checkpoints.read_state(*step);
            if (change) change(state.options);
            std::error_code code;
            state.options.data = fs::absolute(state.options.data, code).lexically_normal().string();
            if (state.options.steps < state.step) {
                throw Error::usage(
                    {.field = "--steps",
                     .value = fmt::format("{}", state.options.steps),
                     .problem = fmt::format("{} has done {} already", run, state.step),
                     .remedy = "give more than that, or leave it out"});
            }
            Run again(std::move(state), true, told, ranks, damaged);
            again.settle();
            return again.go(folder.get());
        } catch (const DamagedCheckpoint& error) {
            // An earlier one may be good; if none is, the newest is reported.
            damaged.push_back({*step, error});
        }
    }
    ErrorInfo info = damaged.front().error.info();
    if (damaged.size() > 1) {
        info.remedy = fmt::format(
            "the {} before it are damaged, too: start again in another folder", damaged.size() - 1);
    }
    throw Error::input(std::move(info));
}

}  // namespace mr::train
