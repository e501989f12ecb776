// What the whole of a text must be, as requests ask for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/json.h"
#include "text/grammar/network.h"

namespace mr::text::grammar {

class SchemaCompiler;

struct TextFormat {
    enum class Kind {
        none,
        object,   // any JSON object
        schema,   // JSON that fits `schema`
        pattern,  // a text that `texts[0]` matches as a whole
        choice,   // one of `texts`
    };
    Kind kind = Kind::none;
    formats::JsonValue schema{};  // of the request, or of `own`
    std::vector<std::string> texts{};
    std::string path{};  // of the schema, the pattern or the choices, for errors
    std::shared_ptr<const formats::JsonDocument> own{};

    explicit operator bool() const { return kind != Kind::none; }
    std::string key() const;  // equal for equal formats
};

// OpenAI's "response_format". {"type": "text"}, or null: none. {"type": "json_object"}: any object,
// or with "schema" that of llama.cpp. {"type": "json_schema", "json_schema": {"name", "schema",
// "strict", "description"}}: the schema's values, whether "strict" is set or not. All of these
// throw Error (input) with the path of the fault.
TextFormat read_response_format(formats::JsonValue format,
                                const std::string& path = "response_format");
// A schema, or a text that holds one.
TextFormat read_schema_format(formats::JsonValue schema, const std::string& path);
TextFormat read_pattern_format(formats::JsonValue pattern, const std::string& path);
TextFormat read_choice_format(formats::JsonValue choices, const std::string& path);
// vLLM's "structured_outputs": one of "json", "regex", "choice", "json_object".
TextFormat read_structured_outputs(formats::JsonValue wanted,
                                   const std::string& path = "structured_outputs");

// The rule of texts in a format other than `none`; the compiler's finish() defines it.
RuleId add_format(Network& network, SchemaCompiler& compiler, const TextFormat& format);
Network network_of_format(const TextFormat& format);

}  // namespace mr::text::grammar
