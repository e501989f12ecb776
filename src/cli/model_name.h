// Names of models on the command line: a path, random:SHAPE, the name of a bundled model, or
// OWNER/NAME[:TYPE] of one that was downloaded.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace mr::cli {

// The path of the given model. A file or folder of that name comes before a downloaded model
// (hub/cache.h) and before a bundled one, and is returned as ./NAME if it hides one. Paths and
// random:SHAPE are returned unchanged. Throws
// Error (input) for an unknown name; `option`: the option it came from, if not MODEL.
std::string named_model(const std::string& given, const char* option = "");
// The given model, or the bundled one: $MILLRACE_MODEL, else beside the installed program, else in
// the source tree.
std::string model_source(const SharedOptions& options);
// The names of bundled models.
std::vector<std::string> bundled_models();
// The path for --tokenizer, with the names of models; empty: not given.
std::string tokenizer_source(const std::string& given);

// An addition to an error about a file: that it hides a bundled model. Else empty.
std::string hides_bundled_model(const std::string& file);

}  // namespace mr::cli
