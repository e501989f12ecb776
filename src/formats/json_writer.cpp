#include "formats/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "core/utf8.h"

namespace mr::formats {

void append_quoted(std::string& out, std::string_view text) {
    out += '"';
    std::size_t plain = 0;  // text before this index is already in `out`
    const auto replace = [&](std::size_t at, std::size_t size, std::string_view by) {
        out += text.substr(plain, at - plain);
        out += by;
        plain = at + size;
    };
    for (std::size_t i = 0; i < text.size();) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte >= 0x80) {
            const Utf8Char c = utf8_at(text, i);
            if (!c.valid) replace(i, c.size, "\xEF\xBF\xBD");
            i += c.size;
            continue;
        }
        if (byte == '"') {
            replace(i, 1, "\\\"");
        } else if (byte == '\\') {
            replace(i, 1, "\\\\");
        } else if (byte == '\n') {
            replace(i, 1, "\\n");
        } else if (byte < 0x20 || byte == 0x7F) {
            replace(i, 1, fmt::format("\\u{:04x}", byte));
        }
        ++i;
    }
    out += text.substr(plain);
    out += '"';
}

// The last byte tells whether a comma is needed: a value never ends with one of these.
void JsonWriter::separate() {
    if (out_.empty()) return;
    const char last = out_.back();
    if (last != '{' && last != '[' && last != ':') out_ += ',';
}

JsonWriter& JsonWriter::open(char mark) {
    separate();
    out_ += mark;
    return *this;
}

JsonWriter& JsonWriter::close(char mark) {
    out_ += mark;
    return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
    separate();
    append_quoted(out_, name);
    out_ += ':';
    return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
    separate();
    append_quoted(out_, text);
    return *this;
}

JsonWriter& JsonWriter::value(bool is) { return raw(is ? "true" : "false"); }

JsonWriter& JsonWriter::value(double number) {
    if (!std::isfinite(number)) return null();
    separate();
    fmt::format_to(std::back_inserter(out_), "{}", number);
    return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
    separate();
    out_ += json;
    return *this;
}

}  // namespace mr::formats
