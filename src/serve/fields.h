// The fields of requests: one table for each route, used to check requests and to generate the
// tables of docs/server.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace mr::serve {

// JSON values of a request's body at most: its lists' entries, and keys.
inline constexpr std::size_t kMostValues = std::size_t{1} << 21;

enum class FieldKind {
    boolean,
    integer,
    number,
    text,
    texts,  // a text, or a list of texts
    list,
    object,
    mixed,    // several types; the table says which
    ignored,  // accepted from clients, without effect
};

struct Field {
    const char* name;
    FieldKind kind;
    // A number's value, a text's bytes, or a list's entries.
    double least = 0, most = 0;
    const char* fallback = "";  // default; "required": it must be given
    const char* about = "";
};

// "chat", "completions", "embeddings", "messages", "count_tokens", "tokenize", "detokenize",
// "apply_template"
std::span<const Field> fields_of(std::string_view route);
std::vector<std::string_view> routes_with_fields();
// As Markdown, one line per row.
std::string field_table(std::string_view route);

// A request's body, checked against the table of its route. Null counts as absent.
class Fields {
  public:
    // A key that the table does not have. What a client wrote is cut and escaped.
    struct Unknown {
        std::string name{};
        std::string meant{};  // a field whose name is near; empty: none
    };

    Fields() = default;  // for a request without a body
    // Throws Failure (400) naming a field that is missing, or has a wrong type or size.
    Fields(formats::JsonValue body, std::string_view route);

    // The first few of them, and how many there are.
    const std::vector<Unknown>& unknown() const { return unknown_; }
    std::size_t unknown_count() const { return unknown_count_; }

    bool given(const char* name) const { return find(name).has_value(); }
    std::optional<formats::JsonValue> find(const char* name) const;
    bool flag(const char* name, bool fallback = false) const;
    std::int64_t integer(const char* name, std::int64_t fallback) const;
    double number(const char* name, double fallback) const;
    std::string text(const char* name, std::string fallback = {}) const;
    std::vector<std::string> texts(const char* name) const;  // also for a single text

  private:
    formats::JsonValue body_;
    std::span<const Field> table_;
    std::vector<Unknown> unknown_;
    std::size_t unknown_count_ = 0;
};

}  // namespace mr::serve
