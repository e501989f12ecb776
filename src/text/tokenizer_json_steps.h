// What a tokenizer.json does to a text around its model: normalizer, pre-tokenizer and decoder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/error.h"
#include "formats/json.h"
#include "text/tokenizer_data.h"

namespace mr::text {

// Reads fields; errors name the file and the field.
class JsonFields {
  public:
    explicit JsonFields(std::string name) : name_(std::move(name)) {}

  protected:
    using JsonValue = formats::JsonValue;

    Error fail(std::string field, JsonValue value, std::string problem,
               std::string remedy = {}) const {
        return Error::input({.file = name_,
                             .field = std::move(field),
                             .value = value.is_null() ? "" : value.shown(),
                             .problem = std::move(problem),
                             .remedy = std::move(remedy)});
    }

    JsonValue object(JsonValue from, const char* key, const std::string& field) const {
        const auto found = from.find_set(key);
        if (!found) throw fail(field, nullptr, "is missing");
        if (!found->is_object()) throw fail(field, *found, "is not an object");
        return *found;
    }
    JsonValue array(JsonValue from, const char* key, const std::string& field) const {
        const auto found = from.find_set(key);
        if (!found) throw fail(field, nullptr, "is missing");
        if (!found->is_array()) throw fail(field, *found, "is not an array");
        return *found;
    }
    std::string text_or(JsonValue from, const std::string& path, const char* key,
                        const std::string& otherwise) const {
        const auto found = from.find_set(key);
        if (!found) return otherwise;
        if (!found->is_string()) throw fail(path + "." + key, *found, "is not a string");
        return found->get<std::string>();
    }
    bool flag(JsonValue from, const std::string& path, const char* key, bool otherwise) const {
        const auto found = from.find_set(key);
        if (!found) return otherwise;
        if (!found->is_boolean()) throw fail(path + "." + key, *found, "is not true or false");
        return found->get<bool>();
    }
    std::int32_t token_id(JsonValue value, const std::string& field) const {
        if (!value.is_integer_in(0, (1 << 24) - 1)) {
            throw fail(field, value, "is not a token id from 0 to 2^24 - 1");
        }
        return value.get<std::int32_t>();
    }

    std::string name_;
};

struct JsonSteps {
    bool byte_level = false;
    bool replaces = false;   // a normalizer turns spaces into marks
    bool prepends = false;   // a normalizer puts a mark before the text
    bool metaspace = false;  // the pre-tokenizer does both
};

// Fills in what `data` says of its kind, normalization, words and spaces. Throws for what is not
// one of the known combinations.
JsonSteps read_steps(formats::JsonValue root, TokenizerData& data);

}  // namespace mr::text
