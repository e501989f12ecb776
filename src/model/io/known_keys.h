// Known keys of a model's configuration. An unknown key may change what the model computes, so it
// is an error unless --ignore-key names it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/json.h"
#include "model/spec.h"

namespace mr::model {

// Checks keys under "<arch>." of a GGUF file. Other namespaces are not checked, except
// general.type, which must be "model". Throws Error (input) naming keys that are unknown, or whose
// value asks for a feature the engine lacks, unless `ignored` has their full names. Names in
// `ignored` that the file lacks go to `notes`.
void require_known_keys(const formats::GgufFile& file, const std::string& arch,
                        const ModelSpec& spec, std::span<const std::string> ignored,
                        std::vector<std::string>& notes);
// Checks keys of config.json and of its rope_scaling and rope_parameters ("rope_scaling.factor").
// Some are known for one family (of ModelSpec) only.
void require_known_keys(formats::JsonValue config, const std::string& file,
                        const std::string& family, std::span<const std::string> ignored,
                        std::vector<std::string>& notes);

}  // namespace mr::model
