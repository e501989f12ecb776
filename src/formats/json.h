// The one reader of JSON. Files from outside become a flat document: one array of small nodes and
// one of string bytes, filled by a parser's events. There is no tree, so that freeing a document
// takes neither memory nor stack; sizes are limited.
//
// JSON that we write is trusted, and may be built with nlohmann's types.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mr::formats {

struct JsonItem;

// A value of a document, as cheap to copy as a pointer. It is valid as long as its document.
// Reading it as another type (get<bool>() of a string) breaks the contract: check is_...() first.
class JsonValue {
  public:
    JsonValue() = default;  // null
    JsonValue(std::nullptr_t) {}

    bool is_null() const { return kind() == Kind::null; }
    bool is_boolean() const { return kind() == Kind::boolean; }
    bool is_string() const { return kind() == Kind::string; }
    bool is_array() const { return kind() == Kind::array; }
    bool is_object() const { return kind() == Kind::object; }
    bool is_number() const { return kind() >= Kind::negative && kind() <= Kind::real; }
    bool is_number_integer() const { return is_number() && kind() != Kind::real; }
    bool is_number_unsigned() const { return kind() == Kind::natural; }
    // An integer written without fraction or exponent, from `lowest` to `highest`.
    bool is_integer_in(std::int64_t lowest, std::int64_t highest) const;
    const char* type_name() const;  // "object", "number", ...

    // T: bool, an arithmetic type (any number, converted as by a cast) or a string.
    template <class T>
    T get() const;
    std::string_view text() const;
    bool operator==(std::string_view other) const { return is_string() && text() == other; }

    // Elements of a list, members of an object; 0 for other types.
    std::size_t size() const;
    bool empty() const { return size() == 0; }

    // Lists only.
    template <std::integral I>
    JsonValue operator[](I i) const {
        return at(static_cast<std::size_t>(i));
    }
    JsonValue front() const { return at(0); }
    // The value of a key; empty if it is missing or this is no object. null counts as present.
    std::optional<JsonValue> find(std::string_view key) const;
    // The same, but null counts as absent, as in Hugging Face's files.
    std::optional<JsonValue> find_set(std::string_view key) const {
        const auto value = find(key);
        return value && !value->is_null() ? value : std::nullopt;
    }
    bool contains(std::string_view key) const { return find(key).has_value(); }
    // Null if missing.
    JsonValue operator[](const char* key) const { return find(key).value_or(JsonValue()); }

    // Iterates over a list.
    class Iterator;
    Iterator begin() const;
    Iterator end() const;
    // The members of an object: items() sorted by the bytes of the keys, or in file order.
    class Items;
    Items items() const;
    std::vector<JsonItem> items_in_file_order() const;

    // Compact JSON with sorted keys: for hashes. Numbers of more digits than a double holds are as
    // they were written.
    std::string dump() const;
    // The start of dump(), for messages: `most_bytes`, then "..." if there is more.
    std::string shown(std::size_t most_bytes = 200) const;

  private:
    friend class JsonDocument;
    enum class Kind : std::uint32_t {
        null,
        boolean,
        negative,
        natural,
        real,
        string,
        array,
        object
    };
    struct Node {
        Kind kind = Kind::null;
        // Bytes of a string, values of a list, members of an object; of a number whose digits a
        // double does not hold, the bytes of its text.
        std::uint32_t size = 0;
        std::uint64_t value = 0;  // a scalar's bits, or where its string or first child begins
    };
    struct Tape {
        std::vector<Node> nodes;  // children are adjacent: values of a list; key, value, key ...
        std::string bytes;        // of all strings, each followed by a zero; and of long numbers
    };

    JsonValue(const Tape* tape, std::uint64_t at) : tape_(tape), at_(at) {}
    const Node& node() const;
    Kind kind() const { return node().kind; }
    JsonValue child(std::uint64_t i) const { return {tape_, node().value + i}; }
    JsonValue at(std::size_t i) const;
    double real() const;
    std::uint64_t bits() const { return node().value; }
    void require(bool is, const char* what) const;
    void write(std::string& out, std::size_t most) const;

    const Tape* tape_ = nullptr;  // nullptr: this value is null
    std::uint64_t at_ = 0;
};

struct JsonItem {
    std::string_view key;
    JsonValue value;
};

class JsonValue::Iterator {
  public:
    JsonValue operator*() const { return list_.child(i_); }
    Iterator& operator++() {
        ++i_;
        return *this;
    }
    bool operator==(const Iterator& other) const { return i_ == other.i_; }

  private:
    friend class JsonValue;
    Iterator(JsonValue list, std::size_t i) : list_(list), i_(i) {}
    JsonValue list_;
    std::size_t i_;
};

class JsonValue::Items {
  public:
    class Iterator {
      public:
        JsonItem operator*() const {
            return {object_.child(2 * i_).text(), object_.child(2 * i_ + 1)};
        }
        Iterator& operator++() {
            ++i_;
            return *this;
        }
        bool operator==(const Iterator& other) const { return i_ == other.i_; }

      private:
        friend class Items;
        Iterator(JsonValue object, std::size_t i) : object_(object), i_(i) {}
        JsonValue object_;
        std::size_t i_;
    };
    Iterator begin() const { return {object_, 0}; }
    Iterator end() const { return {object_, object_.size()}; }

  private:
    friend class JsonValue;
    explicit Items(JsonValue object) : object_(object) {}
    JsonValue object_;
};

inline JsonValue::Iterator JsonValue::begin() const { return {*this, 0}; }
inline JsonValue::Iterator JsonValue::end() const { return {*this, is_array() ? size() : 0}; }
inline JsonValue::Items JsonValue::items() const {
    return Items(is_object() ? *this : JsonValue());
}

template <class T>
T JsonValue::get() const {
    if constexpr (std::same_as<T, bool>) {
        require(is_boolean(), "a boolean");
        return bits() != 0;
    } else if constexpr (std::is_arithmetic_v<T>) {
        require(is_number(), "a number");
        if (kind() == Kind::real) return static_cast<T>(real());
        if (kind() == Kind::natural) return static_cast<T>(bits());
        return static_cast<T>(static_cast<std::int64_t>(bits()));
    } else {
        return T(text());
    }
}

// `text` as a JSON string in quotes; invalid UTF-8 becomes U+FFFD.
std::string json_quoted(std::string_view text);

struct JsonLimits {
    int depth = 64;
    // The largest tokenizers have about three million.
    std::size_t values = std::size_t{1} << 23;  // object keys count, too
    bool repeated_keys = false;                 // allowed; the last one wins, as in Python
};

class JsonDocument {
  public:
    // Throws Error (input) naming `file`, and `field` if given, unless the text is one valid JSON
    // value within the limits. Repeated keys are an error by default.
    static JsonDocument parse(std::string_view text, const std::string& file,
                              std::string_view field = {}, JsonLimits limits = {});

    JsonDocument();  // null
    JsonValue root() const { return {tape_.get(), 0}; }
    std::size_t bytes() const;  // of memory: its values and strings

  private:
    friend class JsonReader;
    std::unique_ptr<JsonValue::Tape> tape_;  // on the heap: values hold its address
    using Node = JsonValue::Node;
    using Kind = JsonValue::Kind;
    using Tape = JsonValue::Tape;
};

}  // namespace mr::formats
