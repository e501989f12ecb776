// json.dumps with transformers' options: non-ASCII characters kept, ", " and ": " as separators.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/context.h"
#include "text/unicode.h"

namespace mr::text::jinja {
namespace {

struct Style {
    MarkedText indent;  // of one level of nesting
    bool lines = false;
    MarkedText between, colon;
    bool sorted = false;
    bool ascii = false;  // escape everything else
};

class JsonWriter {
  public:
    JsonWriter(Context& context, const Style& style) : budget_(context.budget), style_(style) {}

    void value(const Value& value, std::size_t level) {
        budget_.step();
        if (const MarkedText* text = value.as_text()) return string(*text);
        if (const List* list = value.as_list()) return array(*list, level);
        if (const Map* map = value.as_map()) return object(*map, level);
        put(scalar(need_defined(value)));
    }

    MarkedText out;

  private:
    void put(std::string_view piece) {
        budget_.make(piece.size());
        out.append(piece, false);
    }
    void put(const MarkedText& piece) {
        budget_.make(piece.size());
        out.append(piece);
    }

    static std::string scalar(const Value& value) {
        if (value.is_none()) return "null";
        if (const bool* b = value.get<bool>()) return *b ? "true" : "false";
        if (const auto* i = value.get<std::int64_t>()) return std::to_string(*i);
        if (const auto* d = value.get<double>()) {
            if (std::isnan(*d)) return "NaN";
            if (std::isinf(*d)) return *d < 0 ? "-Infinity" : "Infinity";
            return float_text(*d);
        }
        throw Failure{"tojson of " + std::string(value.type_name())};
    }

    void string(const MarkedText& text) {
        const std::string& bytes = text.bytes();
        budget_.make(bytes.size() + 2);
        out.append("\"", false);
        std::size_t plain = 0;  // start of the pending unescaped run
        for (std::size_t i = 0; i < bytes.size(); i = std::max(i + 1, plain)) {
            const auto c = static_cast<unsigned char>(bytes[i]);
            if (c >= 0x20 && c != '"' && c != '\\' && !(style_.ascii && c >= 0x7F)) continue;
            out.append(text, plain, i);
            if (c >= 0x80) {
                const Char wide = char_at(bytes, i);
                plain = i + wide.size;
                const std::string units = utf16_escapes(wide.code);
                budget_.make(units.size());
                out.append(units, text.any_user(i, plain));
                continue;
            }
            plain = i + 1;
            std::string escaped = c == '"'    ? "\\\""
                                  : c == '\\' ? "\\\\"
                                  : c == '\n' ? "\\n"
                                  : c == '\r' ? "\\r"
                                  : c == '\t' ? "\\t"
                                  : c == '\f' ? "\\f"
                                  : c == '\b' ? "\\b"
                                              : fmt::format("\\u{:04x}", c);
            budget_.make(escaped.size());
            out.append(escaped, text.user_at(i));
        }
        out.append(text, plain, bytes.size());
        out.append("\"", false);
    }

    static std::string utf16_escapes(char32_t code) {
        const auto c = static_cast<std::uint32_t>(code >= kBadByte ? 0xFFFD : code);
        if (c < 0x10000) return fmt::format("\\u{:04x}", c);
        return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10),
                           0xDC00 + ((c - 0x10000) & 0x3FF));
    }

    void line(std::size_t level) {
        if (!style_.lines) return;
        put("\n");
        for (std::size_t i = 0; i < level; ++i) put(style_.indent);
    }

    void array(const List& list, std::size_t level) {
        if (list.items.empty()) return put("[]");
        put("[");
        for (std::size_t i = 0; i < list.items.size(); ++i) {
            if (i > 0) put(style_.between);
            line(level + 1);
            value(list.items[i], level + 1);
        }
        line(level);
        put("]");
    }

    void object(const Map& map, std::size_t level) {
        if (map.entries.empty()) return put("{}");
        std::vector<const std::pair<Value, Value>*> entries;
        for (const auto& entry : map.entries) entries.push_back(&entry);
        if (style_.sorted) sort(entries);
        put("{");
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (i > 0) put(style_.between);
            line(level + 1);
            const Value& key = entries[i]->first;
            string(key.as_text() ? *key.as_text() : MarkedText(scalar(need_defined(key))));
            put(style_.colon);
            value(entries[i]->second, level + 1);
        }
        line(level);
        put("}");
    }

    // Keys are few, and an insertion sort may be left by an exception halfway.
    void sort(std::vector<const std::pair<Value, Value>*>& entries) {
        for (std::size_t i = 1; i < entries.size(); ++i) {
            for (std::size_t k = i; k > 0; --k) {
                if (!less(budget_, entries[k]->first, entries[k - 1]->first)) break;
                std::swap(entries[k], entries[k - 1]);
            }
        }
    }

    Budget& budget_;
    const Style& style_;
};

}  // namespace

Value to_json(Context& context, const Value& value, const Args& args) {
    const auto a = args.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
    Style style;
    style.ascii = a[0].truthy();
    if (a[1].as_text()) {
        style.indent = *a[1].as_text();
        style.lines = true;
    } else if (!a[1].is_undefined() && !a[1].is_none()) {
        const std::int64_t width = need_integer("tojson", a[1]);
        if (width > 100) throw Failure{"tojson indents by " + std::to_string(width)};
        style.indent.append(
            std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' '), false);
        style.lines = true;
    }
    style.between.append(style.lines ? "," : ", ", false);
    style.colon.append(": ", false);
    if (!a[2].is_undefined() && !a[2].is_none()) {
        const List* list = a[2].as_list();
        if (!list || list->items.size() != 2) throw Failure{"tojson wants two separators"};
        style.between = need_text("tojson", list->items[0]);
        style.colon = need_text("tojson", list->items[1]);
    }
    style.sorted = a[3].truthy();
    JsonWriter writer(context, style);
    writer.value(value, 0);
    return std::move(writer.out);
}

}  // namespace mr::text::jinja
