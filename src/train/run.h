// The inside of a training run, for trainer.cpp (the steps), run_setup.cpp (everything before
// them), run_ranks.cpp (how ranks are connected), run_look.cpp (validation, samples, the report)
// and run_log.cpp (one line per step). Callers use trainer.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/train/train_engine.h"
#include "text/tokenizer.h"
#include "train/batches.h"
#include "train/checkpoint.h"
#include "train/noise.h"
#include "train/parallel/exchange.h"
#include "train/parallel/host_link.h"
#include "train/parallel/schedule.h"
#include "train/run_folder.h"
#include "train/sampler.h"
#include "train/shards.h"
#include "train/trainer.h"

namespace mr::train {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Adds its lifetime to a sum of seconds.
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

// During its lifetime no signal interrupts a write.
class Unbroken {
  public:
    explicit Unbroken(const TrainEvents& events) : events_(events) {
        if (events_.saving) events_.saving(true);
    }
    ~Unbroken() {
        try {
            if (events_.saving) events_.saving(false);
        } catch (...) {  // the save is complete
            return;
        }
    }
    Unbroken(const Unbroken&) = delete;
    Unbroken& operator=(const Unbroken&) = delete;

  private:
    const TrainEvents& events_;
};

class Run {
  public:
    struct Damaged {
        std::int64_t step = 0;
        DamagedCheckpoint error;
    };
    // A new run, or one that continues after `state` (read by resume()) because newer checkpoints
    // are `damaged`.
    Run(TrainState state, bool resumed, const TrainEvents& events, comm::Comm& comm,
        std::vector<Damaged> damaged = {})
        : comm_(comm),
          state_(std::move(state)),
          o_(state_.options),
          events_(events),
          resumed_(resumed),
          checkpoints_(o_.out),
          damaged_(std::move(damaged)) {}

    // Checks that these ranks can do what the options say. Comes first, before anything is made:
    // all ranks find the same faults, and a rank that ends the others may do so at any time.
    void settle();
    // `folder`: only on the first rank. Throws DamagedCheckpoint, before anything is changed, if
    // the checkpoint of `state` cannot be loaded.
    TrainResult go(RunFolder* folder);

  private:
    struct Validation {
        double loss = 0;                      // nats per token
        std::optional<double> bits_per_byte;  // none: the tokens print no text
    };
    void make_links(const model::ModelSpec& spec);
    model::PipelineStage stage_options() const;
    std::string pipeline_plan() const;
    double measured_bubble() const;
    void run_passes(StepMetrics& out, std::int64_t step);
    void run_stage(StepMetrics& out, std::int64_t step);
    void next_slot(bool load);
    std::vector<std::pair<std::string, std::string>> machine() const;
    void agree() const;
    void note_other_machine();
    void load_checkpoint();
    void agree_on_parameters();
    int threads_of_rank() const;
    void open_data();
    void begin_with_bos();
    model::ModelSpec spec_to_train();
    std::unique_ptr<TimedExchange> make_exchange(comm::Comm& replicas);
    void make_engine();
    void open_folder();
    void own_folder();
    std::string in_folder(const char* name) const;
    void leave_damaged();
    void start_reading();
    void train_steps();
    void whole_step();
    void finish();
    StepMetrics one_step(std::int64_t step);
    void load_next();
    // Fills a slot with a batch of training or of validation; `batch`: its number.
    void fill_slot(int slot, std::span<const std::int32_t> ids, std::int64_t rows,
                   std::uint64_t batch, bool validation);
    std::string why_no_validation() const;
    std::uint64_t validation_passes() const;
    std::optional<Validation> validate();
    void make_missed_validation();
    std::int64_t validated_tokens() const;
    std::string recompute_cost() const;
    std::string validation_plan() const;
    std::string time_beside_steps() const;
    std::string objective() const;
    void sample();
    MemoryPlan plan() const;
    std::string log_path() const;
    void open_log();
    bool reopen_log(std::int64_t after);
    void record(const StepMetrics& metrics);
    bool write_log(std::span<const StepMetrics> lines);
    void sync_log();
    void end_log();
    void tell(const StepMetrics& metrics);
    void save();
    void try_to_save();
    void rescue() noexcept;
    void report();
    void try_to_report();
    void say(const std::string& line) const;
    bool asked_to_stop() const { return events_.stop && events_.stop(); }
    // Whether any rank was asked to stop; all ranks must call this.
    bool all_stop() const { return comm_.most(asked_to_stop() ? 1 : 0) > 0; }
    // Passes per step: of this rank, of all.
    int passes_here() const { return o_.grains / grid_.replicas * o_.grain_passes(); }
    int passes() const { return o_.grains * o_.grain_passes(); }
    bool due(std::int64_t every) const {
        return (every > 0 && state_.step % every == 0) || state_.step == o_.steps;
    }

    int replica() const { return grid_.replica(comm_.rank()); }
    int stage() const { return grid_.stage(comm_.rank()); }
    double pass_scale() const { return 1.0 / static_cast<double>(o_.counted_per_step()); }

    RunFolder* folder_ = nullptr;
    comm::Comm& comm_;
    RankGrid grid_;
    TrainState state_;
    TrainOptions& o_;
    const TrainEvents& events_;
    const bool resumed_;
    Checkpoints checkpoints_;
    const std::vector<Damaged> damaged_;  // the newest first

    Dataset data_;
    std::string tokenizer_json_;
    std::shared_ptr<const text::Tokenizer> tokenizer_;
    std::int32_t mask_ = -1;  // diffusion: the mask token
    std::optional<model::Model> init_;
    std::unique_ptr<model::TrainEngine> engine_;
    std::unique_ptr<comm::Comm> replicas_;  // of this stage, if there is a pipeline
    std::vector<int> stage_layers_;         // of every pipeline stage
    // None: one replica, one stage. Destroyed before the engine, whose memory they may still use.
    std::unique_ptr<TimedExchange> exchange_;
    std::unique_ptr<TimedLink> link_;
    std::unique_ptr<Sampler> sampler_;  // none: no samples
    std::unique_ptr<MetricsWriter> metrics_file_;
    std::vector<StepMetrics> metrics_;
    std::unique_ptr<Batches> batches_, val_batches_;
    std::vector<std::vector<std::int32_t>> buffers_;
    std::unique_ptr<Prefetcher> prefetcher_;
    std::exception_ptr unread_;  // why there is no next batch
    std::vector<std::int32_t> val_ids_;
    int slot_ = 0;                 // for the next pass
    std::int64_t saved_ = -1;      // step of the last checkpoint
    std::int64_t not_saved_ = -1;  // step of the last failed save
    bool updating_ = false;        // parameters are partly updated
    double validation_seconds_ = 0, sample_seconds_ = 0, saving_seconds_ = 0;  // of this process
    std::vector<std::uint32_t> token_bytes_;  // [vocabulary], bytes of text per token
    std::string log_problem_;                 // why lines are missing; empty: none are
    bool stuck_ = false;                      // stopped by --max-skips
    bool reported_ = true;                    // the report was written when it was last due
    std::int64_t started_at_ = 0;
    double data_wait_ = 0;
    double step_seconds_ = 0;  // of this process
    // Time of a pipeline's passes in training, and the part of it spent waiting for other stages.
    double pass_seconds_ = 0, pass_wait_ = 0;
    bool interrupted_ = false;
    std::optional<Ledger> watched_;  // of one step on a GPU, with its times
};

}  // namespace mr::train
