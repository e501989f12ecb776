// Opening what the shared options name.
#pragma once

#include <memory>

#include "cli/options.h"
#include "decode/session.h"
#include "model/forward.h"
#include "model/model.h"
#include "observe/run_report.h"

namespace mr::cli {

struct LoadedModel {
    std::shared_ptr<const model::Model> model;
    std::shared_ptr<const model::DeviceWeights> weights;  // on the GPU, where that computes
    double seconds = 0;
};

// Checks the device, then loads with a progress line. What cannot run with these options (--ctx) is
// refused before its weights are read or made; what is only looked at is not.
enum class Use { run, look };
LoadedModel load(const SharedOptions& options, Use use = Use::run);
model::EngineOptions engine_options(const SharedOptions& options);
model::Engine make_engine(const LoadedModel& loaded, const model::EngineOptions& options);
// For one generation, which knows how much context it can use: no need for all the model has.
// Brings generate.max_tokens (< 0: without end) down to what fits.
model::EngineOptions options_for(const SharedOptions& options, const model::Model& model,
                                 std::size_t prompt_tokens, decode::GenerateOptions& generate);
observe::RunReport report_of(const decode::Generated& made, double load_seconds,
                             double read_bandwidth);

// A text named on the command line: a file, a pipe, or standard input for "-".
std::string read_input(const std::string& path);

}  // namespace mr::cli
