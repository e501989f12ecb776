// What each fusion of a decode step is worth: the same model on engines that have one of them more
// each, from a kernel for every operation to one kernel for all. Each rung is timed, and its NLL of
// a list of tokens is held against that of the last one.
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

// A fusion counts where it makes a token this much faster.
inline constexpr double kCounts = 0.05;

struct Options {
    decode::MeasureOptions measure{};
    std::vector<std::int32_t> ids;  // whose NLL is taken (score.h)
    // What the rungs' engines begin with, on a GPU; what is off here is off in every rung.
    model::EngineOptions engine{};
};

struct Rung {
    std::string name;
    std::string absent;  // why there is no such rung; nothing else is set then
    double seconds = 0;  // of a token
    int kernels = 0;     // of a token's step
    int launches = 0;    // ... from the host
    double bytes = 0;    // ... read and written, by the contracts of its operations
    double nll = 0;
    std::optional<double> gain;  // share of the time of the rung before that is saved
    bool same_nll = false;       // as the last rung's, to 4 digits
    bool counts() const { return gain && *gain >= kCounts; }
};

struct Ladder {
    std::vector<Rung> rungs;
    double gain = 0;  // of the last over the first
    bool same_nll() const;
};

// What the first rung's engine is: nothing is fused. Its memory is the most that a rung takes.
model::EngineOptions nothing_fused(const model::EngineOptions& options);
// Whether a and b are the same to 4 digits: less than half a unit of the fourth apart.
bool same_to_4_digits(double a, double b);
// Ids that are the same in every run: for models whose weights are random.
std::vector<std::int32_t> made_up_ids(int count, std::int64_t vocab);

// `weights` are the model's on the device.
Ladder climb(const std::shared_ptr<const model::Model>& model,
             const std::shared_ptr<const model::DeviceWeights>& weights, const Options& options,
             const Progress& progress = {});

}  // namespace mr::fusion
