// Text of a model that is being trained, as it stands. A run on a GPU has it from the engine there,
// over the parameters where they lie (model/train/live_weights.h); where that has no room, from the
// CPU with a copy of them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "model/engine.h"
#include "model/train/live_weights.h"
#include "model/train/train_engine.h"
#include "text/tokenizer.h"
#include "train/options.h"

namespace mr::train {

class Sampler {
  public:
    // Takes what it needs on a GPU, for as long as it lives, so that no sample fails for memory
    // later; at most `room` bytes of what is free. Of `switches` it takes the engine's switches.
    Sampler(model::TrainEngine& engine, std::shared_ptr<const text::Tokenizer> tokenizer,
            const TrainOptions& options,
            std::uint64_t room = std::numeric_limits<std::uint64_t>::max(),
            const model::EngineOptions& switches = {});

    // Held on the GPU beside the run.
    std::uint64_t device_bytes() const { return device_bytes_; }
    // Why a run on a GPU has its text from the CPU; empty where it has not.
    const std::string& why_not_there() const { return why_not_there_; }

    // The prompt and what the model says after it. None: cancelled, or the prompt fills the
    // model's context. Between steps of the training, whose bits it leaves alone. Throws Error.
    std::optional<std::string> text(const std::function<bool()>& cancelled);

  private:
    std::shared_ptr<model::Model> described() const;
    model::EngineOptions engine_options(const model::Model& model) const;
    void take_device(std::uint64_t room);

    model::TrainEngine& trained_;
    std::shared_ptr<const text::Tokenizer> tokenizer_;
    const TrainOptions& options_;
    model::EngineOptions switches_;
    model::LiveWeights live_;
    std::unique_ptr<model::Engine> on_device_;
    std::uint64_t device_bytes_ = 0;
    std::string why_not_there_;
};

}  // namespace mr::train
