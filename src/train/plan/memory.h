// The memory of a stage: for cost.cpp.
#pragma once

#include "train/plan/cost.h"

namespace mr::plan {

// Elements of stage `stage` of layout.pipeline, which has `layers` layers; before tensor
// parallelism.
double stage_parameters(const Parameters& all, const Layout& layout, int stage, int layers);

// What a micro-batch of `sequences` keeps.
struct PassMemory {
    double layer = 0;           // kept by each layer, bytes
    double output = 0;          // ... kept by a stage besides
    double workspace = 0;       // of a stage without the LM head
    double head_workspace = 0;  // ... with it
};
PassMemory pass_memory(const Job& job, const Layout& layout, int sequences);

StageMemory stage_memory(const Job& job, const Layout& layout, const Parameters& all,
                         const PassMemory& pass, int stage, int layers);

// Bytes of the message from a stage to the next for a micro-batch: the residual stream in f32.
double boundary_bytes(const Job& job, const Layout& layout);

}  // namespace mr::plan
