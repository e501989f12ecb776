// End tokens of a model, and the sampling defaults of its files, as `info` shows them.
#pragma once

#include <string>

#include "cli/json.h"
#include "model/model.h"

namespace mr::cli {

Json generation_json(const model::Model& model);
std::string generation_text(const model::Model& model);  // lines

}  // namespace mr::cli
