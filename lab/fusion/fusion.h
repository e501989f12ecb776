// The worth of each fusion of a decode step: the same model on engines with one more fusion each,
// from one kernel per operation to one kernel for all. Each rung is timed, and its NLL of a list of
// tokens is compared with that of the last one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "decode/measure.h"
#include "model/engine.h"

namespace mr::fusion {

// A fusion counts if it makes a token this much faster.
inline constexpr double kCounts = 0.05;

struct Options {
    decode::MeasureOptions measure{};
    std::vector<std::int32_t> ids;  // their NLL is computed (score.h)
    // Base options of the rungs' engines, on a GPU; what is off here is off in every rung.
    model::EngineOptions engine{};
};

struct Rung {
    std::string name;
    std::string absent;  // why there is no such rung; then nothing else is set
    double seconds = 0;  // per token
    int kernels = 0;     // per step
    int launches = 0;    // per step, from the host
    double bytes = 0;    // per step, read and written, by the contracts of its operations
    double nll = 0;
    std::optional<double> gain;  // share of the previous rung's time that is saved
    bool same_nll = false;       // equal to the last rung's to 4 digits
    bool counts() const { return gain && *gain >= kCounts; }
};

struct Ladder {
    std::vector<Rung> rungs;
    double gain = 0;  // of the last over the first
    bool same_nll() const;
};

// The first rung's engine: nothing is fused. No rung needs more memory.
model::EngineOptions nothing_fused(const model::EngineOptions& options);
// Whether a and b are equal to 4 digits: less than half a unit of the fourth apart.
bool same_to_4_digits(double a, double b);

// `weights` are the model's weights on the device.
Ladder climb(const std::shared_ptr<const model::Model>& model,
             const std::shared_ptr<const model::DeviceWeights>& weights, const Options& options,
             const Progress& progress = {});

}  // namespace mr::fusion
