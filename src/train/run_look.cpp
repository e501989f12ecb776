// Validation, samples and the report of a run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <new>
#include <span>
#include <vector>

#include "core/error.h"
#include "observe/units.h"
#include "train/report.h"
#include "train/run.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSamplesKept = 5;

}  // namespace

std::int64_t Run::validated_tokens() const {
    if (!val_batches_) return 0;
    std::int64_t windows = static_cast<std::int64_t>(val_batches_->windows());
    if (o_.eval_batches > 0 && o_.eval_batches <= windows / o_.batch) {
        windows = o_.eval_batches * o_.batch;
    }
    return windows * o_.seq;
}

// A batch may be several passes.
std::uint64_t Run::validation_passes() const {
    const std::uint64_t all = val_batches_->steps_per_epoch();
    if (o_.eval_batches == 0) return all;
    const auto of_batch = static_cast<std::uint64_t>(o_.batch / o_.pass_sequences());
    return std::min(all, static_cast<std::uint64_t>(o_.eval_batches) * of_batch);
}

// Mean over the validation split, or its first eval_batches. None: stopped meanwhile.
std::optional<Run::Validation> Run::validate() {
    const AddSeconds time(validation_seconds_);
    if (token_bytes_.empty()) {
        token_bytes_.resize(data_.vocab);
        for (std::uint32_t id = 0; id < data_.vocab; ++id) {
            const auto token = static_cast<std::int32_t>(id);
            // Marks between documents count no bytes.
            const bool mark = token == data_.end_token || tokenizer_->bos() == token;
            token_bytes_[id] =
                mark ? 0 : static_cast<std::uint32_t>(tokenizer_->piece(token).size());
        }
    }
    // Results of every pass. Replicas take passes in turn, and all ranks get all results in the
    // end: in a pipeline only the last stage has losses.
    struct Pass {
        double sum = 0;
        std::int64_t count = 0;
        std::uint64_t bytes = 0;
    };
    const std::uint64_t passes = validation_passes();
    std::vector<Pass> made(static_cast<std::size_t>(passes));
    // In diffusion the first token of a row is predicted, too.
    const auto width = static_cast<std::size_t>(val_batches_->row_tokens());
    const std::size_t first = width - static_cast<std::size_t>(o_.seq);
    // slot_ holds the next batch already, so use the slot after it.
    const int slot = (slot_ + 1) % engine_->options().shape.slots;
    const auto replicas = static_cast<std::uint64_t>(grid_.replicas);
    // Ranks that shard parameters make equally many passes each; the last may not count.
    const std::uint64_t until =
        engine_->options().stage() == 3 ? (passes + replicas - 1) / replicas * replicas : passes;
    for (auto i = static_cast<std::uint64_t>(replica()); i < until; i += replicas) {
        if (comm_.alone() && asked_to_stop()) return std::nullopt;
        const std::int64_t rows = val_batches_->read(i, val_ids_);
        fill_slot(slot, val_ids_, rows, i, true);
        if (i >= passes) {
            engine_->evaluate(slot);
            continue;
        }
        auto& [sum, count, bytes] = made[static_cast<std::size_t>(i)];
        sum = engine_->evaluate(slot, i + replicas < passes);
        count = rows * o_.seq;
        for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
            for (std::size_t j = first; j < width; ++j) {
                const std::int32_t id = val_ids_[row * width + j];
                if (id < 0) {  // given, not predicted
                    --count;
                    continue;
                }
                bytes += token_bytes_[static_cast<std::size_t>(id)];
            }
        }
    }
    std::vector<Pass> all(made.size() * static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(std::as_bytes(std::span(made)), std::as_writable_bytes(std::span(all)));
    double sum = 0;
    std::int64_t count = 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < made.size(); ++i) {
        const int from = grid_.rank(static_cast<int>(i % replicas), grid_.stages - 1);
        const Pass& pass = all[static_cast<std::size_t>(from) * made.size() + i];
        sum += pass.sum;
        count += pass.count;
        bytes += pass.bytes;
    }
    Validation out;
    out.loss = sum / static_cast<double>(count);
    if (bytes > 0) out.bits_per_byte = sum / std::log(2.0) / static_cast<double>(bytes);
    return out;
}

// A run that was stopped at its last step does its validation when it is resumed.
void Run::make_missed_validation() {
    if (!val_batches_ || state_.step != o_.steps || state_.step != started_at_) return;
    // The first rank has the log.
    const bool missed = comm_.first() && !metrics_.empty() && metrics_.back().step == state_.step &&
                        !metrics_.back().val_loss;
    if (comm_.most(missed ? 1 : 0) == 0) return;
    const std::optional<Validation> made = validate();
    if (!made) {
        interrupted_ = true;
        return;
    }
    if (!comm_.first()) return;
    StepMetrics last = metrics_.back();
    last.val_loss = made->loss;
    last.bits_per_byte = made->bits_per_byte;
    metrics_.pop_back();
    reopen_log(state_.step - 1);  // its line is rewritten
    record(last);
}

// A sample that fails does not end the run.
void Run::sample() {
    const AddSeconds time(sample_seconds_);
    const auto without = [this](const char* why) {
        say(fmt::format("no sample after step {}, the run goes on: {}", state_.step, why));
    };
    std::optional<std::string> text;
    try {
        text = sampler_->text([this] { return asked_to_stop(); });
    } catch (const std::bad_alloc&) {
        without("not enough memory");
    } catch (const std::exception& error) {
        without(error.what());
    }
    if (!text) return;
    if (state_.samples.size() == kSamplesKept) state_.samples.erase(state_.samples.begin());
    state_.samples.push_back({state_.step, *text});
    if (events_.sample) events_.sample(state_.step, *text);
}

// The run's device memory, samples included.
MemoryPlan Run::plan() const {
    MemoryPlan out = engine_->plan();
    if (sampler_ && sampler_->device_bytes() > 0) out.add("samples", sampler_->device_bytes());
    return out;
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

std::string Run::objective() const {
    if (!o_.diffusion()) return "the next token";
    return fmt::format(
        "diffusion: blocks of {} tokens, {} stands for unknown ones; {}", o_.block,
        tokenizer_->display(mask_),
        o_.copies() > 1 ? "every sequence twice, with complementary masks, each token counts once"
                        : "a masked token counts 1 / the block's rate of masks");
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
    run.model = fmt::format("{}: {} of {}, {} parameters", spec.family,
                            observe::counted(spec.layers, "layer"), spec.dim,
                            observe::short_count(static_cast<double>(spec.parameters())));
    run.device = events_.device;
    run.command = o_.command;
    run.steps = o_.steps;
    run.tokens_per_step = o_.tokens_per_step();
    run.flops_per_token = static_cast<double>(model::TrainEngine::flops_per_token(spec, o_.seq));
    run.matrix_peak = events_.matrix_peak;
    run.plan = plan();
    run.memory_taken = engine_->ops().memory_taken();
    run.ledger = watched_ ? *watched_ : engine_->ledger();
    run.ledger_steps = watched_ ? 1 : 0;
    run.facts = {
        {"data", fmt::format("{}, {} tokens to train on, {} to validate", o_.data,
                             data_.train.tokens(), data_.val.tokens())},
        {"step", fmt::format("{} of {}{}{}", observe::counted(o_.batch, "sequence"),
                             observe::counted(o_.seq, "token"),
                             o_.accumulate > 1 ? fmt::format(", {} times", o_.accumulate) : "",
                             o_.bos ? fmt::format("; each begins with {}",
                                                  tokenizer_->display(*tokenizer_->bos()))
                                    : "")},
        {"objective", objective()},
        {"learning rate",
         fmt::format("{}, {} to {}; warm-up {} steps", o_.schedule, o_.lr,
                     o_.schedule == "constant" ? o_.lr : o_.lowest_lr(), o_.warmup_steps())},
        {"AdamW", fmt::format("beta {} and {}, weight decay {}, clipped to {}", o_.beta1, o_.beta2,
                              o_.weight_decay, o_.clip)},
        {"masters", o_.masters == "bf16" ? "bf16, rounded by chance" : "f32"},
        {"seed", fmt::format("{}", o_.seed)},
        {"validation", validation_plan()},
        {"recompute", recompute_cost()},
        {"beside the steps", time_beside_steps()}};
    if (link_) {
        run.facts.push_back(
            {"pipeline", fmt::format("{} stages of {} layers, {}", grid_.stages,
                                     fmt::join(stage_layers_, ", "), o_.pipeline_schedule)});
    }
    for (const TrainState::Sample& s : state_.samples) run.samples.push_back({s.step, s.text});
    observe::write_page(in_folder(kReportName), train_page(run, metrics_));
}

// A report that fails does not end the run, either.
void Run::try_to_report() {
    if (!folder_) return;
    reported_ = false;
    try {
        report();
        reported_ = true;
    } catch (const std::exception& error) {
        say(fmt::format("no report after step {}: {}", state_.step, error.what()));
    }
}

}  // namespace mr::train
