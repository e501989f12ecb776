// Writes JSON piece by piece, for frequent output and for widely included headers: no tree, and no
// header that takes seconds to compile.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace mr::formats {

// Adds commas by itself. Invalid UTF-8 becomes U+FFFD, and a number that is not finite becomes
// null.
class JsonWriter {
  public:
    JsonWriter& begin_object() { return open('{'); }
    JsonWriter& end_object() { return close('}'); }
    JsonWriter& begin_array() { return open('['); }
    JsonWriter& end_array() { return close(']'); }
    JsonWriter& key(std::string_view name);

    JsonWriter& value(std::string_view text);
    JsonWriter& value(const char* text) { return value(std::string_view(text)); }
    JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
    JsonWriter& value(bool is);
    JsonWriter& value(double number);
    template <std::integral T>
    requires(!std::same_as<T, bool>) JsonWriter& value(T number) {
        return raw(std::to_string(number));
    }
    JsonWriter& null() { return raw("null"); }
    // A value that is already JSON.
    JsonWriter& raw(std::string_view json);
    // key() and value() in one call.
    template <typename T>
    JsonWriter& member(std::string_view name, const T& what) {
        key(name);
        return value(what);
    }

    const std::string& text() const { return out_; }
    std::string take() { return std::move(out_); }

  private:
    JsonWriter& open(char mark);
    JsonWriter& close(char mark);
    void separate();

    std::string out_;
};

// Appends `text` in quotes.
void append_quoted(std::string& out, std::string_view text);

}  // namespace mr::formats
