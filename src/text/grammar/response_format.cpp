#include "text/grammar/response_format.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"
#include "text/grammar/schema.h"

namespace mr::text::grammar {

std::optional<Network> network_of_response_format(formats::JsonValue format,
                                                  const std::string& path) {
    if (format.is_null()) return std::nullopt;
    if (!format.is_object()) {
        throw Error::input({.field = path, .problem = "is not an object"});
    }
    const formats::JsonValue type = format["type"];
    if (type == "text") return std::nullopt;
    if (type == "json_object") return network_of_any_object();
    if (!(type == "json_schema")) {
        throw Error::input(
            {.field = path + ".type",
             .problem = fmt::format("{} is not a supported format", printable(type.shown(), 100)),
             .remedy = "use text, json_object or json_schema"});
    }
    const std::string inside = path + ".json_schema";
    const formats::JsonValue given = format["json_schema"];
    if (!given.is_object()) {
        throw Error::input({.field = inside, .problem = "is not an object"});
    }
    const auto schema = given.find("schema");
    if (!schema || !schema->is_object()) {
        throw Error::input({.field = inside + ".schema", .problem = "is not a schema"});
    }
    return network_of_schema(*schema, inside + ".schema");
}

}  // namespace mr::text::grammar
