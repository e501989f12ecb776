// Checkpoints of a training run: RUN/checkpoints/step-000500/ with
//   config.json, model.safetensors, tokenizer.json, tokenizer_config.json   a Hugging Face model
//   optimizer.safetensors                                 m and v, flat, as model::ParamLayout
//   state.json                                            the step, the options, hashes
// A checkpoint is written under another name, synced and renamed, so a folder of that name is
// complete. A run killed at any moment still has all its checkpoints, and perhaps one more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
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
    // What decides the bits besides options and data: (name, value) of program, device, ...
    // Empty: written by an older version.
    std::vector<std::pair<std::string, std::string>> machine{};
    std::int64_t skipped = 0;         // steps that changed nothing
    std::int64_t skipped_in_row = 0;  // the current streak of them
    double seconds = 0;               // of training so far
    std::optional<double> val_loss;   // the last
    std::int64_t val_step = 0;
    struct Sample {
        std::int64_t step = 0;
        std::string text;
    };
    std::vector<Sample> samples;  // the last few
};

// A checkpoint that lacks a file, is truncated, or was changed.
class DamagedCheckpoint : public Error {
  public:
    explicit DamagedCheckpoint(ErrorInfo info) : Error(ErrorKind::input, std::move(info)) {}
};

class Checkpoints {
  public:
    explicit Checkpoints(std::string run);

    // From now on the run is read and written at `at`, a path that leads to it under any name, and
    // messages call it `run`.
    void move(std::string run, std::string at);
    // Creates RUN/checkpoints; removes what a crash left half written.
    void prepare();
    // The steps that have checkpoints, rising.
    std::vector<std::int64_t> steps() const;
    // Its name, for messages and results.
    std::string folder(std::int64_t step) const;

    // `tokenizer_json` is copied. Throws Error, and changes nothing, if it cannot be written.
    void save(model::TrainEngine& engine, const TrainState& state, const text::Tokenizer& tokenizer,
              const std::string& tokenizer_json);
    // Removes all but the last `keep` checkpoints up to `newest`; 0: none. Later ones (damaged ones
    // that could not be put aside) do not count, nor do any that were neither there at prepare()
    // nor saved since.
    void prune(std::int64_t newest, std::int64_t keep);

    // Renames it so that no run resumes from it, and returns the new name; "": it could not be
    // renamed.
    std::string put_aside(std::int64_t step);

    // These throw DamagedCheckpoint, which names the checkpoint before; and Error if the files may
    // be good: from another version of this program, or not readable.
    // The state of the checkpoint at `step`, without weights.
    TrainState read_state(std::int64_t step) const;
    model::ModelSpec read_spec(std::int64_t step) const;
    // Loads parameters and moments into an engine with its spec.
    void load(std::int64_t step, model::TrainEngine& engine) const;
    // Throws Error (input) if `tokenizer_json`, the text of `file`, differs from the one that the
    // checkpoint was saved with. False: the checkpoint's own copy differs, which a run does not
    // read.
    bool check_tokenizer(std::int64_t step, const std::string& tokenizer_json,
                         const std::string& file) const;

  private:
    template <typename Read>
    auto reading(std::int64_t step, Read&& read) const;
    TrainState parse_state(std::int64_t step) const;
    void load_values(std::int64_t step, model::TrainEngine& engine) const;

    std::filesystem::path place(std::int64_t step) const;  // where folder() is read and written
    ErrorInfo with_names(ErrorInfo info) const;

    std::string run_;
    std::string at_;               // run_, or where it is under any name
    std::set<std::int64_t> mine_;  // steps that prune() may remove
};

}  // namespace mr::train
