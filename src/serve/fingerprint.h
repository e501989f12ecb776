// system_fingerprint: everything a text depends on besides its request.
#pragma once

#include <string>

namespace mr::serve {

// "mr_BUILD_MODEL_DEVICE": 8 digits of a hash of `build`, 8 of the model's files, cpu or cuda.
// Large files are sampled, and their sizes included.
std::string fingerprint(const std::string& build, const std::string& model_source, bool cuda);

}  // namespace mr::serve
