// Opening what the shared options name.
#pragma once

#include <memory>

#include "cli/options.h"
#include "model/forward.h"
#include "model/model.h"

namespace mr::cli {

struct LoadedModel {
    std::shared_ptr<const model::Model> model;
    double seconds = 0;
};

// Checks the device, then loads with a progress line.
LoadedModel load(const SharedOptions& options);
model::EngineOptions engine_options(const SharedOptions& options);

// A text named on the command line: a file, a pipe, or standard input for "-".
std::string read_input(const std::string& path);

}  // namespace mr::cli
