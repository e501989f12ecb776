// Names of models on the command line: a path, random:SHAPE, or the name of a bundled model.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace mr::cli {

// The path of the given model. Names with a '/' or a ':' are returned unchanged. A file or folder
// of that name comes before a bundled model, and is returned as ./NAME if it hides one. Throws
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
