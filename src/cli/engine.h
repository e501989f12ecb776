// Opening what the shared options name.
#pragma once

#include <functional>
#include <memory>

#include "cli/options.h"
#include "decode/generate.h"
#include "model/engine.h"
#include "model/model.h"
#include "observe/run_report.h"

namespace mr::cli {

struct LoadedModel {
    std::shared_ptr<const model::Model> model;
    std::shared_ptr<const model::DeviceWeights> weights;  // on the GPU, where that computes
    model::EngineOptions engine;                          // what was planned with
    Ledger ledger;                                        // the copies of loading
    double seconds = 0;
};

// What an engine is to be, for a model that has its spec and its tokenizer but no weights yet.
using Wanted = std::function<model::EngineOptions(const model::Model&)>;

// Checks the device, then loads with a progress line. What cannot run as `wanted` is refused before
// its weights are read, made or sent; without it, nothing is refused: the model is only looked at,
// and stays on the host.
LoadedModel load(const SharedOptions& options, const Wanted& wanted);
LoadedModel look(const SharedOptions& options);
model::EngineOptions engine_options(const SharedOptions& options);
std::unique_ptr<model::Engine> make_engine(const LoadedModel& loaded);  // as it was planned
// An engine's defaults without what is switched off: for commands that set the rest themselves.
model::EngineOptions engine_switches(const SharedOptions& options);
// For one generation, which knows how much context it can use: no need for all the model has.
// Brings generate.max_tokens (< 0: without end) down to what fits.
model::EngineOptions options_for(const SharedOptions& options, const model::Model& model,
                                 std::size_t prompt_tokens, decode::GenerateOptions& generate);
observe::RunReport report_of(const model::ModelSpec& spec, const decode::Generated& made,
                             double load_seconds, double read_bandwidth);

// A text named on the command line: a file, a pipe, or standard input for "-".
std::string read_input(const std::string& path);
// Throws Error (input) for /dev/zero and the like, which have no end. A terminal has, and /dev/null
// is empty.
void refuse_endless(int fd, const std::string& name);

}  // namespace mr::cli
