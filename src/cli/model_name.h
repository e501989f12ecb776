// What a model is called on the command line: a path, random:SHAPE, or the name of a bundled model.
#pragma once

#include <string>

#include "cli/options.h"

namespace mr::cli {

// Where the model lies that was given. What has a '/' or a ':' stays as it is. A file or folder of
// the name comes before a bundled model, as ./NAME where it hides one. Throws Error (input) for a
// name that is none of these; `option` is who was given it, where it is not MODEL.
std::string named_model(const std::string& given, const char* option = "");
// The model that was named, or the bundled one: $MILLRACE_MODEL, else beside the installed program,
// else in the source tree.
std::string model_source(const SharedOptions& options);
// --tokenizer, as a model is named; empty: none was given.
std::string tokenizer_source(const std::string& given);

// What an error about a file leaves out: that it hides a bundled model. Else empty.
std::string hides_bundled_model(const std::string& file);

}  // namespace mr::cli
