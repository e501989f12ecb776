// /set: the sampling options of the command line, during a conversation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "decode/generate.h"

namespace mr::cli {

// The names of all settings, without dashes: "temp", "top-p", ...
std::vector<std::string> setting_names();
// The values that a setting can have, where they can be listed.
std::vector<std::string> setting_values(std::string_view name);

// "top-p      0.95   ...", a line for each; `name`: only of this one. Throws Error (usage) for an
// unknown name.
std::string settings_text(const decode::GenerateOptions& options, std::string_view name = {});
// Changes a setting by any name that its option has, with dashes, underscores or neither, as in
// temperature, top_p, --seed. Throws Error (usage) for an unknown name or a wrong value.
void change_setting(decode::GenerateOptions& options, const std::string& name,
                    const std::string& value);

}  // namespace mr::cli
