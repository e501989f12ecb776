// The fields that requests may have: one table for each route, from which requests are checked and
// the tables of docs/server.md are made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace mr::serve {

enum class FieldKind {
    boolean,
    integer,
    number,
    text,
    texts,  // a text, or a list of texts
    list,
    object,
    mixed,    // several; the table says which in words
    ignored,  // clients send it; it changes nothing here
};

struct Field {
    const char* name;
    FieldKind kind;
    // Of a number its value; of a text its bytes, of a list its entries.
    double least = 0, most = 0;
    const char* fallback = "";  // where it is not given; "required": it must be
    const char* about = "";
};

// "chat", "completions", "embeddings", "messages", "count_tokens", "tokenize", "detokenize",
// "apply_template"
std::span<const Field> fields_of(std::string_view route);
std::vector<std::string_view> routes_with_fields();
// As Markdown, with a line end behind each row.
std::string field_table(std::string_view route);

// A request's body, held to the table of its route. Null counts as absent.
class Fields {
  public:
    Fields() = default;  // of a request without a body
    // Throws Failure (400) naming the field that is unknown, missing, or of another type or size.
    Fields(formats::JsonValue body, std::string_view route);

    bool given(const char* name) const { return find(name).has_value(); }
    std::optional<formats::JsonValue> find(const char* name) const;
    bool flag(const char* name, bool fallback = false) const;
    std::int64_t integer(const char* name, std::int64_t fallback) const;
    double number(const char* name, double fallback) const;
    std::string text(const char* name, std::string fallback = {}) const;
    std::vector<std::string> texts(const char* name) const;  // of one text as well

  private:
    formats::JsonValue body_;
    std::span<const Field> table_;
};

}  // namespace mr::serve
