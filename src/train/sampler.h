// Samples text from the current state of a model in training. A run on a GPU uses the engine there,
// on the trainer's own parameters (model/train/live_weights.h); if there is no room, the CPU with a
// copy of them.
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
    // Allocates its GPU memory for its whole lifetime, so that no sample fails for memory later; at
    // most `room` bytes of what is free. `switches`: only the engine's switches are used.
    Sampler(model::TrainEngine& engine, std::shared_ptr<const text::Tokenizer> tokenizer,
            const TrainOptions& options,
            std::uint64_t room = std::numeric_limits<std::uint64_t>::max(),
            const model::EngineOptions& switches = {});

    // Its GPU memory besides the run's.
    std::uint64_t device_bytes() const { return device_bytes_; }
    // Why a run on a GPU samples on the CPU; empty if it does not.
    const std::string& why_not_there() const { return why_not_there_; }

    // The prompt and the model's continuation. None: cancelled, or the prompt fills the model's
    // context. Call between training steps, whose bits do not change. Throws Error.
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
