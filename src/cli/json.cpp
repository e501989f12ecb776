// In a file of its own: the writer behind dump() takes longer to compile than most commands.
#include "cli/json.h"

namespace mr::cli {

std::string json_line(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}
std::string json_text(const Json& json) {
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mr::cli
