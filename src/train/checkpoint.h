// Checkpoints of a training run: RUN/checkpoints/step-000500/ with
//   config.json, model.safetensors, tokenizer.json, tokenizer_config.json   a Hugging Face model
//   optimizer.safetensors                                 m and v, flat, as model::ParamLayout
//   state.json                                            the step, the options, hashes
// One is written under another name, synced and renamed: a folder of that name is complete. Killed
// at any moment, a run has the checkpoints that it had, and perhaps one more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/train/train_engine.h"
#include "text/tokenizer.h"
#include "train/options.h"

namespace mr::train {

struct TrainState {
    std::int64_t step = 0;  // done
    TrainOptions options;
    std::uint64_t data_hash = 0;
    std::int64_t skipped = 0;         // steps that changed nothing
    std::int64_t skipped_in_row = 0;  // of them, the last ones
    double seconds = 0;               // of training so far
    std::optional<double> val_loss;   // the last
    std::int64_t val_step = 0;
    struct Sample {
        std::int64_t step = 0;
        std::string text;
    };
    std::vector<Sample> samples;  // the last few
};

// Of a checkpoint that is missing something, truncated, or not as it was written.
class DamagedCheckpoint : public Error {
  public:
    explicit DamagedCheckpoint(ErrorInfo info) : Error(ErrorKind::input, std::move(info)) {}
};

class Checkpoints {
  public:
    explicit Checkpoints(std::string run);

    // RUN/checkpoints is made; what a crash left half written is removed.
    void prepare();
    // The steps that there are, rising.
    std::vector<std::int64_t> steps() const;
    std::string folder(std::int64_t step) const;

    // `tokenizer_json` is copied. Throws Error, with nothing changed, where it cannot be written.
    void save(model::TrainEngine& engine, const TrainState& state, const text::Tokenizer& tokenizer,
              const std::string& tokenizer_json);
    // Removes all but `keep` of those up to `newest`; 0: none. What comes after it, a damaged one
    // that could not be put aside, is no reason to remove a good one.
    void prune(std::int64_t newest, std::int64_t keep);

    // Under a name by which no run goes on from it; given back. "": it could not be renamed.
    std::string put_aside(std::int64_t step);

    // These throw DamagedCheckpoint, which names the checkpoint before; and Error where what is on
    // the disk may be good: of another version of this program, or not to be opened.
    // The state of the checkpoint at `step`, without weights.
    TrainState read_state(std::int64_t step) const;
    model::ModelSpec read_spec(std::int64_t step) const;
    // Parameters and moments, into an engine of its spec.
    void load(std::int64_t step, model::TrainEngine& engine) const;
    // Throws Error (input) where `tokenizer_json`, the text of `file`, is not that of the time when
    // the checkpoint was saved. False: its own copy is not, which a run does not read.
    bool check_tokenizer(std::int64_t step, const std::string& tokenizer_json,
                         const std::string& file) const;

  private:
    template <typename Read>
    auto reading(std::int64_t step, Read&& read) const;
    TrainState parse_state(std::int64_t step) const;
    void load_values(std::int64_t step, model::TrainEngine& engine) const;

    std::string run_;
};

}  // namespace mr::train
