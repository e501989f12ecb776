// Values as text: Python's str() and repr().
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "text/jinja/value.h"
#include "text/unicode.h"

namespace mr::text::jinja {
namespace {

void put(Budget& budget, std::string_view piece, MarkedText& out) {
    budget.make(piece.size());
    out.append(piece, false);
}

// Characters that repr() does not escape. Compared with Python's classes, only unassigned code
// points are treated differently.
bool printable(char32_t c) {
    if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) return false;
    if (c >= 0x2000 && c <= 0x200F) return false;
    if (c >= 0x2028 && c <= 0x202F) return false;
    if (c >= 0x205F && c <= 0x206F) return false;
    if (c == 0x1680 || c == 0x3000 || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB)) return false;
    if (c >= 0xE000 && c <= 0xF8FF) return false;
    return c < 0xE0000;
}

void write_quoted(Budget& budget, const MarkedText& text, MarkedText& out) {
    const std::string& bytes = text.bytes();
    budget.make(bytes.size() + 2);
    const bool single =
        bytes.find('\'') == std::string::npos || bytes.find('"') != std::string::npos;
    const char quote = single ? '\'' : '"';
    out.append({&quote, 1}, false);
    for (std::size_t i = 0; i < bytes.size();) {
        const Char c = char_at(bytes, i);
        const bool user = text.any_user(i, i + c.size);
        std::string escaped;
        if (c.code == '\n')
            escaped = "\\n";
        else if (c.code == '\r')
            escaped = "\\r";
        else if (c.code == '\t')
            escaped = "\\t";
        else if (c.code == '\\')
            escaped = "\\\\";
        else if (c.code == static_cast<char32_t>(quote))
            escaped = {'\\', quote};
        else if (!printable(c.code)) {
            const auto code = static_cast<std::uint32_t>(c.code);
            escaped = code < 0x100     ? fmt::format("\\x{:02x}", code)
                      : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                       : fmt::format("\\U{:08x}", code);
        }
        if (escaped.empty()) {
            out.append(text, i, i + c.size);
        } else {
            out.append(escaped, user);
            budget.make(escaped.size());
        }
        i += c.size;
    }
    out.append({&quote, 1}, false);
}

}  // namespace

// The shortest digits that read back as the same number; with exponent below 1e-4 and from 1e16.
std::string float_text(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    char buffer[64];
    const auto done =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
    std::string_view shown(buffer, static_cast<std::size_t>(done.ptr - buffer));
    const std::size_t e = shown.find('e');
    const int exponent = std::atoi(std::string(shown.substr(e + 1)).c_str());
    const bool minus = shown.front() == '-';
    std::string digits;
    for (char c : shown.substr(0, e)) {
        if (c >= '0' && c <= '9') digits += c;
    }
    std::string out = minus ? "-" : "";
    if (exponent < -4 || exponent >= 16) {
        out += digits.substr(0, 1);
        if (digits.size() > 1) out += "." + digits.substr(1);
        return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
    }
    if (exponent < 0) {
        return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
    }
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() <= whole)
        return out + digits + std::string(whole - digits.size(), '0') + ".0";
    return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void write_repr(Budget& budget, const Value& value, MarkedText& out) {
    budget.step();
    if (const MarkedText* text = value.as_text()) return write_quoted(budget, *text, out);
    if (const List* list = value.as_list()) {
        put(budget, list->tuple ? "(" : "[", out);
        for (std::size_t i = 0; i < list->items.size(); ++i) {
            if (i > 0) put(budget, ", ", out);
            write_repr(budget, list->items[i], out);
        }
        if (list->tuple) return put(budget, list->items.size() == 1 ? ",)" : ")", out);
        return put(budget, "]", out);
    }
    if (const Map* map = value.as_map()) {
        put(budget, "{", out);
        for (std::size_t i = 0; i < map->entries.size(); ++i) {
            if (i > 0) put(budget, ", ", out);
            write_repr(budget, map->entries[i].first, out);
            put(budget, ": ", out);
            write_repr(budget, map->entries[i].second, out);
        }
        return put(budget, "}", out);
    }
    if (value.is_undefined()) return put(budget, "Undefined", out);
    write_text(budget, value, out);
}

void write_text(Budget& budget, const Value& value, MarkedText& out) {
    budget.step();
    if (const MarkedText* text = value.as_text()) {
        budget.make(text->size());
        return out.append(*text);
    }
    if (value.is_undefined()) return;
    if (value.is_none()) return put(budget, "None", out);
    if (const bool* b = value.get<bool>()) return put(budget, *b ? "True" : "False", out);
    if (const auto* i = value.get<std::int64_t>()) return put(budget, std::to_string(*i), out);
    if (const auto* d = value.get<double>()) return put(budget, float_text(*d), out);
    if (value.as_list() || value.as_map()) return write_repr(budget, value, out);
    throw Failure{"writes a value of type " + std::string(value.type_name())};
}

MarkedText to_text(Budget& budget, const Value& value) {
    MarkedText out;
    write_text(budget, value, out);
    return out;
}

}  // namespace mr::text::jinja
