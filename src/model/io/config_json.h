// config.json of a Hugging Face folder, value by value, with errors that name file and field.
// Internal to the loaders.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "formats/bytes.h"
#include "formats/json.h"

namespace mr::model {

// An object of config.json. A null value counts as absent, as in transformers.
class Config {
  public:
    Config(formats::JsonValue object, std::string file, std::string prefix = {})
        : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

    std::optional<formats::JsonValue> find(const char* key) const { return object_.find_set(key); }
    std::optional<int> find_int(const char* key) const {
        const auto value = find(key);
        if (!value) return std::nullopt;
        // Some writers store integers as 64.0.
        const double number = value->is_number() ? value->get<double>() : std::nan("");
        if (!(number == std::floor(number)) || number < 0 || number > 1 << 28) {
            fail(key, "must be a whole number from 0 to 2^28");
        }
        return static_cast<int>(number);
    }
    int need_int(const char* key) const {
        const auto value = find_int(key);
        if (!value) fail(key, "the field is missing");
        return *value;
    }
    std::optional<double> find_float(const char* key) const {
        const auto value = find(key);
        if (!value) return std::nullopt;
        if (!value->is_number()) fail(key, "must be a number");
        return value->get<double>();
    }
    double need_float(const char* key) const {
        const auto value = find_float(key);
        if (!value) fail(key, "the field is missing");
        return *value;
    }
    bool get_bool(const char* key, bool fallback) const {
        const auto value = find(key);
        if (!value) return fallback;
        if (!value->is_boolean()) fail(key, "must be true or false");
        return value->get<bool>();
    }
    std::string get_string(const char* key, const char* fallback) const {
        const auto value = find(key);
        if (!value) return fallback;
        if (!value->is_string()) fail(key, "must be a string");
        return value->get<std::string>();
    }
    std::optional<Config> find_object(const char* key) const {
        const auto value = find(key);
        if (!value) return std::nullopt;
        if (!value->is_object()) fail(key, "must be an object");
        return Config(*value, file_, prefix_ + key + ".");
    }
    [[noreturn]] void fail(const char* key, std::string problem, std::string remedy = {}) const {
        const auto value = find(key);
        throw Error::input({.file = file_,
                            .field = prefix_ + key,
                            .value = value ? formats::printable(value->shown()) : "",
                            .problem = std::move(problem),
                            .remedy = std::move(remedy)});
    }
    formats::JsonValue object() const { return object_; }

  private:
    formats::JsonValue object_;
    std::string file_;
    std::string prefix_;
};

}  // namespace mr::model
