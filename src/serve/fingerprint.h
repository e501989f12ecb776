// system_fingerprint: what a text depends on beside its request.
#pragma once

#include <string>

namespace mr::serve {

// "mr_BUILD_MODEL_DEVICE": 8 digits of a hash of `build`, 8 of the model's files, cpu or cuda. Of
// large files samples are read, with their sizes.
std::string fingerprint(const std::string& build, const std::string& model_source, bool cuda);

}  // namespace mr::serve
