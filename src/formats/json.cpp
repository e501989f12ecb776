#include "formats/json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "core/error.h"
#include "formats/bytes.h"

namespace mr::formats {

nlohmann::json parse_json(std::string_view text, const std::string& file, std::string_view field,
                          int max_depth) {
    using nlohmann::json;
    std::vector<std::set<std::string>> open_objects;  // the keys seen in each
    const auto fail = [&](std::string value, std::string problem) {
        return Error::input({.file = file,
                             .field = std::string(field),
                             .value = std::move(value),
                             .problem = std::move(problem)});
    };
    const auto on_event = [&](int depth, json::parse_event_t event, json& value) {
        switch (event) {
            case json::parse_event_t::object_start:
            case json::parse_event_t::array_start:
                if (depth >= max_depth) {
                    throw fail({}, fmt::format("JSON is nested deeper than {}", max_depth));
                }
                if (event == json::parse_event_t::object_start) open_objects.emplace_back();
                break;
            case json::parse_event_t::object_end:
                open_objects.pop_back();
                break;
            case json::parse_event_t::key: {
                const auto& key = value.get_ref<const std::string&>();
                if (!open_objects.back().insert(key).second) {
                    throw fail("'" + printable(key) + "'", "JSON has this key twice in one object");
                }
                break;
            }
            default:
                break;
        }
        return true;
    };
    try {
        return json::parse(text.begin(), text.end(), on_event);
    } catch (const json::parse_error& e) {
        throw fail(
            {}, fmt::format("is not valid JSON at byte {}: {}", e.byte, printable(e.what(), 200)));
    } catch (const json::exception& e) {  // a number past every range
        throw fail({}, "is not valid JSON: " + printable(e.what(), 200));
    }
}

}  // namespace mr::formats
