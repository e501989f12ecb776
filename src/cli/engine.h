// Loads what the shared options name.
#pragma once

#include <functional>
#include <memory>

#include "cli/options.h"
#include "cli/progress_line.h"
#include "decode/generate.h"
#include "model/engine.h"
#include "model/model.h"

namespace mr::cli {

struct LoadedModel {
    std::shared_ptr<const model::Model> model;
    std::shared_ptr<const model::DeviceWeights> weights;  // on the GPU, if it computes
    model::EngineOptions engine;                          // the planned options
    Ledger ledger;                                        // copies made while loading
    double seconds = 0;
};

// The engine options for a model that has its spec and tokenizer but no weights yet.
using Wanted = std::function<model::EngineOptions(const model::Model&)>;

// Says so where there is a GPU and --device auto does not use it.
void note_gpu_passed_over(const SharedOptions& options, bool cuda);

// Checks the device, then loads with a progress line. A model that cannot run as `wanted` is
// refused before its weights are read, made or sent.
LoadedModel load(const SharedOptions& options, const Wanted& wanted);
model::EngineOptions engine_options(const SharedOptions& options);
std::unique_ptr<model::Engine> make_engine(const LoadedModel& loaded);  // as planned
// Default engine options with --disable applied, for commands that set the rest themselves.
model::EngineOptions engine_switches(const SharedOptions& options);
// For one generation, whose length is known: its context may be smaller than the model's. Reduces
// generate.max_tokens (< 0: without end) to one more than what fits.
model::EngineOptions options_for(const SharedOptions& options, const model::Model& model,
                                 std::size_t prompt_tokens, decode::GenerateOptions& generate);

// While a prompt is read, `line` says how far; it must outlive the generation. A generation begins
// with line.begin(kReadingPrompt) and ends with line.remove().
void show_prompt(ProgressLine& line, decode::GenerateOptions& generate);
inline constexpr const char* kReadingPrompt = "reading the prompt";

// A text named on the command line: a file, a pipe, or standard input for "-".
std::string read_input(const std::string& path);
// Throws Error (input) for /dev/zero and the like, which have no end. A terminal has an end, and
// /dev/null is empty.
void refuse_endless(int fd, const std::string& name);

}  // namespace mr::cli
