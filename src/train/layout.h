// Which layouts of ranks can train: a run's own checks before it makes anything, and those of
// `millrace plan`, which proposes no layout that fails one of them.
#pragma once

#include "model/spec.h"
#include "train/options.h"
#include "train/parallel/schedule.h"

namespace mr::train {

// Checks what needs no model, and sets the number of grains, which is fixed at the start of a run.
// `resumed`: for the remedies. Throws Error (usage) naming the option.
RankGrid settle_layout(TrainOptions& options, int ranks, bool resumed);

// After settle_layout(): whether the model can be cut into the stages. Throws Error (usage).
void require_stages(const TrainOptions& options, const RankGrid& grid, const model::ModelSpec& spec,
                    bool resumed);

}  // namespace mr::train
