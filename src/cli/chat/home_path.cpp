#include "cli/chat/home_path.h"

#include "hub/cache.h"

namespace mr::cli {

std::string with_home(const std::string& path) {
    const std::string home = hub::variable("HOME");
    const bool short_form = path == "~" || path.starts_with("~/");
    return home.empty() || !short_form ? path : home + path.substr(1);
}

}  // namespace mr::cli
