#include "train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/cpu.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/output_file.h"
#include "core/thread_pool.h"
#include "decode/prompt.h"
#include "decode/session.h"
#include "model/source.h"
#include "model/train_engine.h"
#include "model/write_model.h"
#include "observe/units.h"
#include "train/batches.h"
#include "train/checkpoint.h"
#include "train/report.h"
#include "train/run_folder.h"
#include "train/shards.h"
#include "train/story_floor.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kSamplesKept = 5;
constexpr std::int64_t kWatchedAfter = 5;  // steps of a process

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// The time that one lives is added up.
class AddSeconds {
  public:
    explicit AddSeconds(double& sum) : sum_(sum) {}
    ~AddSeconds() { sum_ += seconds_since(start_); }
    AddSeconds(const AddSeconds&) = delete;
    AddSeconds& operator=(const AddSeconds&) = delete;

  private:
    double& sum_;
    const Clock::time_point start_ = Clock::now();
};

// While one lives no signal cuts short what is being written.
class Unbroken {
  public:
    explicit Unbroken(const TrainEvents& events) : events_(events) {
        if (events_.saving) events_.saving(true);
    }
    ~Unbroken() {
        if (events_.saving) events_.saving(false);
    }
    Unbroken(const Unbroken&) = delete;
    Unbroken& operator=(const Unbroken&) = delete;

  private:
    const TrainEvents& events_;
};

// What a model must be so that it can be trained here on this data.
void check_spec(const model::ModelSpec& spec, const TrainOptions& options, const Dataset& data) {
    const std::string name = options.init.empty() ? "new model" : options.init;
    if (data.vocab > static_cast<std::uint32_t>(spec.vocab)) {
        throw Error::input(
            {.file = options.data,
             .field = "vocabulary",
             .value = fmt::format("{}", data.vocab),
             .problem = fmt::format("the model has {} tokens, fewer than the data", spec.vocab),
             .remedy = "pack the data with the model's tokenizer"});
    }
    if (options.seq > spec.context) {
        throw Error::usage(
            {.field = "--seq",
             .value = fmt::format("{}", options.seq),
             .problem = fmt::format("is beyond the model's context of {}", spec.context),
             .remedy = options.init.empty() ? "give a larger --context" : "use at most that"});
    }
    const int most = options.cuda ? 128 : static_cast<int>(ops::kFlashMaxDim);
    if (spec.head_dim % 8 != 0 || spec.head_dim > most) {
        throw Error::usage({.field = "head size",
                            .value = fmt::format("{}", spec.head_dim),
                            .problem = fmt::format("must be a multiple of 8 up to {}", most),
                            .remedy = "choose --dim and --heads, or --head-dim, accordingly"});
    }
    model::require_huggingface_can_hold(spec, name);
}

class Run {
  public:
    // New, or going on after `from` (read by resume()).
    Run(TrainState state, bool resumed, RunFolder& folder, const TrainEvents& events)
        : folder_(folder),
          state_(std::move(state)),
          o_(state_.options),
          events_(events),
          resumed_(resumed),
          checkpoints_(o_.out) {}

    TrainResult go();

  private:
    struct Validation {
        double loss = 0;                      // nats a token
        std::optional<double> bits_per_byte;  // none: the tokens print nothing
    };
    void open_data();
    void make_engine();
    void open_folder();
    void start_reading();
    void train_steps();
    void whole_step();
    void finish();
    StepMetrics one_step(std::int64_t step);
    void load_next();
    void fill_slot(int slot, std::span<const std::int32_t> ids, std::int64_t rows);
    std::string why_no_validation() const;
    std::optional<Validation> validate();
    void put_off_validation();
    std::int64_t validated_tokens() const;
    std::string recompute_cost() const;
    std::string validation_plan() const;
    std::string time_beside_steps() const;
    void sample();
    void record(const StepMetrics& metrics);
    void tell(const StepMetrics& metrics);
    void save();
    void try_to_save();
    void rescue() noexcept;
    void report();
    void try_to_report();
    void say(const std::string& line) const {
        if (events_.note) events_.note(line);
    }
    bool asked_to_stop() { return events_.stop && events_.stop(); }
    bool due(std::int64_t every) const {
        return (every > 0 && state_.step % every == 0) || state_.step == o_.steps;
    }

    RunFolder& folder_;
    TrainState state_;
    TrainOptions& o_;
    const TrainEvents& events_;
    const bool resumed_;
    Checkpoints checkpoints_;

    Dataset data_;
    std::string tokenizer_json_;
    std::shared_ptr<const text::Tokenizer> tokenizer_;
    std::optional<model::Model> init_;
    std::unique_ptr<model::TrainEngine> engine_;
    std::unique_ptr<MetricsWriter> metrics_file_;
    std::vector<StepMetrics> metrics_;
    std::unique_ptr<Batches> batches_, val_batches_;
    std::vector<std::vector<std::int32_t>> buffers_;
    std::unique_ptr<Prefetcher> prefetcher_;
    std::exception_ptr unread_;  // why there is no next batch
    std::vector<std::int32_t> val_ids_;
    int slot_ = 0;                 // of the next pass
    std::int64_t saved_ = -1;      // the step of the last checkpoint
    std::int64_t not_saved_ = -1;  // the step of the last one that could not be written
    bool updating_ = false;        // parameters are half of one step and half of the next
    double validation_seconds_ = 0, sample_seconds_ = 0, saving_seconds_ = 0;  // of this process
    std::vector<std::uint32_t> token_bytes_;  // [vocabulary], that a token prints
    bool metrics_missing_ = false;            // lines wait for the disk
    bool stuck_ = false;                      // by --max-skips
    std::int64_t started_at_ = 0;
    double data_wait_ = 0;
    double step_seconds_ = 0;  // of this process
    bool interrupted_ = false;
    bool floor_looked_for_ = false;
    std::optional<StoryFloor> floor_;  // of the storybook's stories
    std::optional<Ledger> watched_;    // of one step on a GPU, with its times
};

void Run::open_data() {
    data_ = Dataset::open(o_.data);
    tokenizer_json_ = read_text_file(data_.tokenizer_path);
    tokenizer_ = data_.open_tokenizer();
    if (resumed_ && data_.hash != state_.data_hash) {
        throw Error::input(
            {.file = o_.data,
             .field = "data hash",
             .value = fmt::format("{:016x}", data_.hash),
             .problem = fmt::format("the run began with other data, {:016x}", state_.data_hash),
             .remedy = "give that data, or start a new run with --init"});
    }
    state_.data_hash = data_.hash;
    {
        // The hash is of the checksums: it holds where they do.
        ThreadPool pool(o_.threads > 0 ? o_.threads : cpu_info().cores);
        data_.verify(pool, events_.loading);
    }
    // Refuses a corpus shorter than one window.
    batches_ = std::make_unique<Batches>(
        data_.train, BatchOptions{.batch = o_.batch, .seq = o_.seq, .seed = o_.seed});
    if (Batches::window_count(data_.val.tokens(), o_.seq) > 0) {
        val_batches_ = std::make_unique<Batches>(
            data_.val, BatchOptions{.batch = o_.batch, .seq = o_.seq, .shuffle = false});
        val_ids_.resize(val_batches_->batch_ids());
    }
}

void Run::make_engine() {
    model::ModelSpec spec;
    if (resumed_) {
        spec = checkpoints_.read_spec(state_.step);
    } else if (!o_.init.empty()) {
        init_ = model::load_model(o_.init, {.progress = events_.loading});
        spec = model::trainable_spec(init_->spec);
        if (init_->tokenizer) data_.check_tokenizer(*init_->tokenizer, o_.init);
    } else {
        spec = new_spec(o_.model, static_cast<int>(data_.vocab), o_.seq);
    }
    check_spec(spec, o_, data_);
    const model::TrainEngineOptions options{.cuda = o_.cuda,
                                            .threads = o_.threads,
                                            .shape = {.sequences = o_.batch, .seq = o_.seq},
                                            .recompute = *model::recompute_of(o_.recompute)};
    engine_ = std::make_unique<model::TrainEngine>(spec, options);
    if (resumed_) {
        checkpoints_.load(state_.step, *engine_);
    } else if (init_) {
        engine_->load(*init_);
        init_.reset();
    } else {
        engine_->init(o_.seed);
    }
}

void Run::open_folder() {
    folder_.keep();
    checkpoints_.prepare();
    const std::string metrics = (fs::path(o_.out) / kMetricsName).string();
    metrics_file_ = std::make_unique<MetricsWriter>(metrics, state_.step);
    metrics_ = read_metrics(metrics);
    if (const auto& damaged = metrics_file_->damaged(); !damaged.empty() && events_.note) {
        events_.note(fmt::format("{}: {} damaged {} left out (line {}); the others stay", metrics,
                                 damaged.size(), damaged.size() == 1 ? "line was" : "lines were",
                                 fmt::join(damaged, ", ")));
    }
}

std::string Run::why_no_validation() const {
    if (data_.val.tokens() == 0) return o_.data + " holds nothing out for it";
    return fmt::format("the {} tokens held out are fewer than one --seq of {} and the token after",
                       data_.val.tokens(), o_.seq);
}

// ids [batch, seq + 1] as inputs and targets; rows that are not there do not count.
void Run::fill_slot(int slot, std::span<const std::int32_t> ids, std::int64_t rows) {
    const std::span<std::int32_t> host = engine_->ops().host_slot(slot);
    const auto seq = static_cast<std::size_t>(o_.seq);
    const std::size_t tokens = host.size() / 2;
    for (std::size_t row = 0; row < static_cast<std::size_t>(o_.batch); ++row) {
        const std::int32_t* from = ids.data() + row * (seq + 1);
        std::copy_n(from, seq, host.data() + row * seq);
        std::int32_t* targets = host.data() + tokens + row * seq;
        if (static_cast<std::int64_t>(row) < rows) {
            std::copy_n(from + 1, seq, targets);
        } else {
            std::fill_n(targets, seq, -1);
        }
    }
    engine_->put(slot);
}

// The next batch goes to the slot that the next pass will use. Where it cannot be read, that pass
// fails, not the step that is being computed.
void Run::load_next() {
    try {
        const Prefetcher::Batch batch = prefetcher_->next();
        fill_slot(slot_, batch.ids, batch.rows);
        prefetcher_->release();
    } catch (...) {
        unread_ = std::current_exception();
    }
}

StepMetrics Run::one_step(std::int64_t step) {
    StepMetrics out;
    const auto start = Clock::now();
    out.step = step;
    out.lr = o_.learning_rate(step);
    for (int i = 0; i < o_.accumulate; ++i) {
        if (unread_) std::rethrow_exception(unread_);
        engine_->accumulate(slot_, 1.0 / static_cast<double>(o_.tokens_per_step()));
        // While that computes, the next one comes, if there is one.
        slot_ = (slot_ + 1) % model::TrainOps::kSlots;
        if (step < o_.steps || i + 1 < o_.accumulate) load_next();
    }
    ops::AdamW adamw;
    adamw.lr = static_cast<float>(out.lr);
    adamw.beta1 = static_cast<float>(o_.beta1);
    adamw.beta2 = static_cast<float>(o_.beta2);
    adamw.weight_decay = static_cast<float>(o_.weight_decay);
    adamw.clip = static_cast<float>(o_.clip);
    adamw.step = step - state_.skipped;  // updates that there were, and this one
    updating_ = true;
    const model::TrainEngine::StepResult result = engine_->update(adamw);
    updating_ = false;
    out.loss = result.loss;
    out.grad_norm = result.grad_norm;
    out.skipped = result.skipped;
    out.seconds = seconds_since(start);
    out.data_wait_seconds = prefetcher_->wait_seconds() - data_wait_;
    data_wait_ = prefetcher_->wait_seconds();
    out.tokens_per_second = static_cast<double>(o_.tokens_per_step()) / out.seconds;
    return out;
}

std::int64_t Run::validated_tokens() const {
    if (!val_batches_) return 0;
    std::int64_t windows = static_cast<std::int64_t>(val_batches_->windows());
    if (o_.eval_batches > 0) windows = std::min(windows, o_.eval_batches * o_.batch);
    return windows * o_.seq;
}

// Mean over the validation split, or its first eval_batches. None: asked to stop on the way.
std::optional<Run::Validation> Run::validate() {
    const AddSeconds time(validation_seconds_);
    if (token_bytes_.empty()) {
        token_bytes_.resize(data_.vocab);
        for (std::uint32_t id = 0; id < data_.vocab; ++id) {
            const auto token = static_cast<std::int32_t>(id);
            // Marks between documents are no text.
            const bool mark = token == data_.end_token || tokenizer_->bos() == token;
            token_bytes_[id] =
                mark ? 0 : static_cast<std::uint32_t>(tokenizer_->piece(token).size());
        }
    }
    double sum = 0;
    std::int64_t count = 0;
    std::uint64_t bytes = 0;
    const auto width = static_cast<std::size_t>(o_.seq) + 1;
    // The slot that holds the next batch already is not this one.
    const int slot = (slot_ + 1) % model::TrainOps::kSlots;
    for (std::uint64_t i = 0; i < val_batches_->steps_per_epoch(); ++i) {
        if (o_.eval_batches > 0 && i >= static_cast<std::uint64_t>(o_.eval_batches)) break;
        if (asked_to_stop()) return std::nullopt;
        const std::int64_t rows = val_batches_->read(i, val_ids_);
        fill_slot(slot, val_ids_, rows);
        sum += engine_->evaluate(slot);
        count += rows * o_.seq;
        for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
            for (std::size_t j = 1; j < width; ++j) {
                bytes += token_bytes_[static_cast<std::size_t>(val_ids_[row * width + j])];
            }
        }
    }
    Validation out;
    out.loss = sum / static_cast<double>(count);
    if (bytes > 0) out.bits_per_byte = sum / std::log(2.0) / static_cast<double>(bytes);
    return out;
}

// A run that was stopped at its last step has its validation when it is resumed.
void Run::put_off_validation() {
    if (!val_batches_ || state_.step != o_.steps || state_.step != started_at_) return;
    if (metrics_.empty() || metrics_.back().step != state_.step || metrics_.back().val_loss) return;
    const std::optional<Validation> made = validate();
    if (!made) return;
    StepMetrics last = metrics_.back();
    last.val_loss = made->loss;
    last.bits_per_byte = made->bits_per_byte;
    metrics_.pop_back();
    metrics_file_.reset();  // its line is written anew
    metrics_file_ = std::make_unique<MetricsWriter>((fs::path(o_.out) / kMetricsName).string(),
                                                    state_.step - 1);
    record(last);
}

void Run::sample() {
    const AddSeconds time(sample_seconds_);
    auto live = std::make_shared<model::Model>();
    live->spec = engine_->spec();
    float* params = const_cast<float*>(engine_->host(model::TrainEngine::State::params));
    live->weights = model::param_views(engine_->layout(), params, DType::f32);
    live->tokenizer = tokenizer_;
    live->source = o_.out;
    const std::vector<std::int32_t> prompt = decode::encode_prompt(*live, o_.prompt);
    model::EngineOptions options;
    options.threads = o_.threads;
    options.context = std::min<std::int64_t>(
        live->spec.context, static_cast<std::int64_t>(prompt.size()) + o_.sample_tokens + 1);
    if (static_cast<std::int64_t>(prompt.size()) >= options.context) return;
    model::Engine engine(live, options);
    decode::Session session(engine);
    decode::GenerateOptions generate;
    generate.max_tokens = o_.sample_tokens;
    generate.sampling.temperature = 0.8f;
    generate.sampling.top_k = 40;
    generate.sampling.seed = o_.seed;
    generate.cancelled = [this] { return asked_to_stop(); };
    const decode::Generated made = session.generate(prompt, generate);
    if (made.reason == decode::StopReason::cancelled) return;
    const std::string text = o_.prompt + made.text;
    if (state_.samples.size() == kSamplesKept) state_.samples.erase(state_.samples.begin());
    state_.samples.push_back({state_.step, text});
    if (events_.sample) events_.sample(state_.step, text);
}

// The line of a step. It is a log: where it cannot be written the run goes on, and says so once.
void Run::record(const StepMetrics& metrics) {
    metrics_.push_back(metrics);
    try {
        metrics_file_->append(metrics);
        metrics_missing_ = false;
    } catch (const Error& error) {
        if (!metrics_missing_) {
            say(fmt::format("{}; the run goes on, and writes the missing lines when it can",
                            error.what()));
        }
        metrics_missing_ = true;
    }
}

void Run::save() {
    if (saved_ == state_.step || state_.step == 0) return;
    const Unbroken unbroken(events_);
    const AddSeconds time(saving_seconds_);
    not_saved_ = state_.step;
    if (!metrics_missing_) sync_path((fs::path(o_.out) / kMetricsName).string());
    checkpoints_.save(*engine_, state_, *tokenizer_, tokenizer_json_);
    not_saved_ = -1;
    saved_ = state_.step;
    checkpoints_.prune(o_.keep);
    if (events_.saved) events_.saved(state_.step, checkpoints_.folder(state_.step));
}

// On the way: a disk may have room again by the next time, and ending now would lose what was done
// since the last one.
void Run::try_to_save() {
    try {
        save();
    } catch (const Error& error) {
        say(fmt::format("step {} is not saved, the run goes on: {}", state_.step, error.what()));
    }
}

// Something failed, but the parameters are those of a whole step. What failed first is what is
// told.
void Run::rescue() noexcept {
    if (updating_ || not_saved_ == state_.step) return;
    try {
        save();
        try_to_report();
    } catch (const std::exception& error) {
        try {
            say(fmt::format("step {} could not be saved: {}", state_.step, error.what()));
        } catch (...) {
            return;
        }
    }
}

std::string Run::recompute_cost() const {
    const model::Recompute recompute = engine_->options().recompute;
    if (recompute == model::Recompute::none) return o_.recompute;
    const std::uint64_t saved = engine_->bytes_saved_by_recompute();
    const double again = static_cast<double>(
        model::TrainEngine::remade_flops_per_token(engine_->spec(), o_.seq, recompute));
    const double all =
        static_cast<double>(model::TrainEngine::flops_per_token(engine_->spec(), o_.seq));
    return fmt::format(
        "{}: saves {} ({:.0f}% of what it would be), {}", o_.recompute, format_bytes(saved),
        100 * static_cast<double>(saved) / static_cast<double>(saved + engine_->plan().total()),
        again > 0 ? fmt::format("costs {:.1f}% more arithmetic", 100 * again / all)
                  : "norms and activations are made again, no product");
}

std::string Run::validation_plan() const {
    if (!val_batches_) return "none: " + why_no_validation();
    return fmt::format("{}at the end, over {} of {} tokens",
                       o_.eval_every > 0 ? fmt::format("every {} steps and ", o_.eval_every) : "",
                       validated_tokens(), data_.val.tokens());
}

std::string Run::time_beside_steps() const {
    return fmt::format("validation {}, samples {}, saving {}, since this process started",
                       observe::short_seconds(validation_seconds_),
                       observe::short_seconds(sample_seconds_),
                       observe::short_seconds(saving_seconds_));
}

void Run::report() {
    const model::ModelSpec& spec = engine_->spec();
    RunDescription run;
    run.name = o_.out;
    run.model = fmt::format("{}: {} layers of {}, {:.2f} M parameters", spec.family, spec.layers,
                            spec.dim, static_cast<double>(spec.parameters()) / 1e6);
    run.device = events_.device;
    run.command = o_.command;
    run.steps = o_.steps;
    run.tokens_per_step = o_.tokens_per_step();
    run.flops_per_token = static_cast<double>(model::TrainEngine::flops_per_token(spec, o_.seq));
    run.matrix_peak = events_.matrix_peak;
    if (!floor_looked_for_) {
        floor_looked_for_ = true;
        floor_ = story_floor(data_.val.tokens() > 0 ? data_.val : data_.train, data_.end_token,
                             *tokenizer_);
    }
    if (floor_) run.entropy = floor_->nats_per_token;
    run.plan = engine_->plan();
    run.ledger = watched_ ? *watched_ : engine_->ledger();
    run.ledger_steps = watched_ ? 1 : 0;
    run.facts = {
        {"data", fmt::format("{}, {} tokens to train on, {} to validate", o_.data,
                             data_.train.tokens(), data_.val.tokens())},
        {"a step", fmt::format("{} sequences of {} tokens{}", o_.batch, o_.seq,
                               o_.accumulate > 1 ? fmt::format(", {} times", o_.accumulate) : "")},
        {"learning rate",
         fmt::format("{}, {} to {}; warm-up {} steps", o_.schedule, o_.lr,
                     o_.schedule == "constant" ? o_.lr : o_.lowest_lr(), o_.warmup_steps())},
        {"AdamW", fmt::format("beta {} and {}, weight decay {}, clipped to {}", o_.beta1, o_.beta2,
                              o_.weight_decay, o_.clip)},
        {"seed", fmt::format("{}", o_.seed)},
        {"validation", validation_plan()},
        {"recompute", recompute_cost()},
        {"beside the steps", time_beside_steps()}};
    for (const TrainState::Sample& s : state_.samples) run.samples.push_back({s.step, s.text});
    write_train_report((fs::path(o_.out) / kReportName).string(), run, metrics_);
}

void Run::try_to_report() {
    try {
        report();
    } catch (const Error& error) {
        say(error.what());
    }
}

void Run::start_reading() {
    for (int i = 0; i <= o_.prefetch; ++i) buffers_.emplace_back(batches_->batch_ids());
    const auto first = static_cast<std::uint64_t>(state_.step * o_.accumulate);
    prefetcher_ = std::make_unique<Prefetcher>(
        *batches_, first, std::vector<std::span<std::int32_t>>(buffers_.begin(), buffers_.end()));
    load_next();
}

// A line about the step that was done.
void Run::tell(const StepMetrics& metrics) {
    if (!events_.step) return;
    const double tokens = static_cast<double>(o_.tokens_per_step());
    const auto done = static_cast<double>(state_.step - started_at_);
    const double so_far = step_seconds_ + validation_seconds_ + sample_seconds_ + saving_seconds_;
    events_.step({.metrics = metrics,
                  .steps = o_.steps,
                  .seconds_left = so_far / done * static_cast<double>(o_.steps - state_.step),
                  .memory = engine_->plan().total(),
                  .flops_per_second = tokens / metrics.seconds *
                                      static_cast<double>(model::TrainEngine::flops_per_token(
                                          engine_->spec(), o_.seq))});
}

// A step and what is due after it.
void Run::whole_step() {
    // On a GPU the stages of one step are timed, when everything has been used once.
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
    interrupted_ = asked_to_stop();
    std::exception_ptr failed;
    if (val_batches_ && !interrupted_ && due(o_.eval_every)) {
        try {
            if (const std::optional<Validation> made = validate()) {
                m.val_loss = made->loss;
                m.bits_per_byte = made->bits_per_byte;
            }
        } catch (...) {
            failed = std::current_exception();  // the step has its line all the same
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
    interrupted_ = interrupted_ || asked_to_stop();
    if (!interrupted_ && o_.sample_tokens > 0 && due(o_.sample_every)) {
        sample();
        interrupted_ = asked_to_stop();
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
    data_wait_ = prefetcher_->wait_seconds();  // nothing to overlap the first one with
    const double waited_before = data_wait_;
    try {
        while (state_.step < o_.steps && !interrupted_ && !stuck_) whole_step();
    } catch (...) {
        rescue();
        throw;
    }
    data_wait_ -= waited_before;
    if (!stuck_) return;
    // Not saved: it would push out checkpoints from before the trouble.
    try_to_report();
    throw Error::input(
        {.file = o_.out,
         .field = "step",
         .value = fmt::format("{}", state_.step),
         .problem = fmt::format("{} steps in a row had no finite gradient (--max-skips)",
                                state_.skipped_in_row),
         .remedy = "resume from the last checkpoint is no help; start again with a smaller --lr, a "
                   "longer --warmup, or look at the data"});
}

// What a stop cut short at the last step, and the report. Where nothing was done, the page that is
// there says more: stages and times are those of the process that writes it.
void Run::finish() {
    put_off_validation();
    const bool did_something = state_.step > started_at_ || validation_seconds_ > 0 ||
                               !fs::exists(fs::path(o_.out) / kReportName);
    if (!did_something) return;
    const Unbroken unbroken(events_);
    if (interrupted_) {
        try_to_report();
    } else {
        report();
    }
}

TrainResult Run::go() {
    o_.validate();
    open_data();
    make_engine();
    open_folder();
    saved_ = resumed_ ? state_.step : -1;
    started_at_ = state_.step;
    if (events_.begun) {
        events_.begun({engine_->spec(), o_, engine_->plan(), state_.step, recompute_cost()});
    }
    if (!val_batches_) say("no validation: " + why_no_validation());
    train_steps();
    finish();

    TrainResult out;
    out.step = state_.step;
    out.steps = o_.steps;
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
    if (saved_ > 0) out.checkpoint = checkpoints_.folder(saved_);
    return out;
}

}  // namespace

TrainResult train(const TrainOptions& options, const TrainEvents& events) {
    if (options.out.empty()) {
        throw Error::usage({.field = "--out", .problem = "say where the run is to be kept"});
    }
    RunFolder folder = RunFolder::create(options.out);
    TrainState state;
    state.options = options;
    std::error_code code;
    state.options.data = fs::absolute(options.data, code).lexically_normal().string();
    return Run(std::move(state), false, folder, events).go();
}

TrainResult resume(const std::string& run, const std::function<void(TrainOptions&)>& change,
                   const TrainEvents& events) {
    const Checkpoints checkpoints(run);
    if (checkpoints.steps().empty()) {  // before anything is made in a folder that is no run
        const fs::path path = fs::absolute(run).lexically_normal();
        const fs::path at = path.has_filename() ? path : path.parent_path();
        if (model::checkpoint_step(at.filename().string()) &&
            at.parent_path().filename() == model::kCheckpoints) {
            throw Error::input(
                {.file = run,
                 .problem = "is one checkpoint of a run",
                 .remedy = fmt::format("give --resume {}: it goes on from the newest",
                                       at.parent_path().parent_path().string())});
        }
        throw Error::input({.file = run,
                            .problem = "there is no checkpoint to go on from",
                            .remedy = "start a run with --data and --out"});
    }
    RunFolder folder = RunFolder::open(run);
    folder.keep();
    const std::vector<std::int64_t> steps = checkpoints.steps();
    TrainState state = checkpoints.read_state(steps.back());
    if (change) change(state.options);
    std::error_code code;
    state.options.data = fs::absolute(state.options.data, code).lexically_normal().string();
    if (state.options.steps < state.step) {
        throw Error::usage({.field = "--steps",
                            .value = fmt::format("{}", state.options.steps),
                            .problem = fmt::format("{} has done {} already", run, state.step),
                            .remedy = "give more than that, or leave it out"});
    }
    return Run(std::move(state), true, folder, events).go();
}

}  // namespace mr::train
