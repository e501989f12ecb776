// Keys of a model's configuration that this engine knows. One that it does not may change what the
// model computes: it is an error, which --ignore-key takes back.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/json.h"
#include "model/spec.h"

namespace mr::model {

// Keys under "<arch>." of a GGUF file. Those of other namespaces are not looked at, but for
// general.type, which must be "model". Throws Error (input) naming those that are unknown, or whose
// value asks for what the engine has not, unless `ignored` has them by their whole names. What of
// `ignored` is not there goes to `notes`.
void require_known_keys(const formats::GgufFile& file, const std::string& arch,
                        const ModelSpec& spec, std::span<const std::string> ignored,
                        std::vector<std::string>& notes);
// Keys of config.json and of its rope_scaling and rope_parameters ("rope_scaling.factor").
// Some are known for one family (of ModelSpec) alone.
void require_known_keys(formats::JsonValue config, const std::string& file,
                        const std::string& family, std::span<const std::string> ignored,
                        std::vector<std::string>& notes);

}  // namespace mr::model
