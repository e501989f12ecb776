#include "formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/decimal.h"
#include "core/error.h"
#include "formats/bytes.h"

namespace mr::formats {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;
// Numbers of so few bytes, without an exponent, are a double's shortest digits.
constexpr std::size_t kShortNumber = 16;

}  // namespace

std::string json_quoted(std::string_view text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Receives nlohmann's events. The children of an open list or object wait on a stack; when it ends
// they go to the tape next to each other. An object's members are sorted by key, which reveals
// repeated keys and lets find() use binary search.
class JsonReader {
  public:
    using Node = JsonDocument::Node;
    using Kind = JsonDocument::Kind;

    JsonReader(JsonDocument::Tape& tape, const std::string& file, std::string_view field,
               JsonLimits limits)
        : tape_(tape), file_(file), field_(field), limits_(limits) {
        tape_.nodes.emplace_back();  // reserved for the root
    }

    bool null() { return add({}); }
    bool boolean(bool value) { return add({Kind::boolean, 0, value}); }
    bool number_integer(std::int64_t value) {
        return add({Kind::negative, 0, static_cast<std::uint64_t>(value)});
    }
    bool number_unsigned(std::uint64_t value) { return add({Kind::natural, 0, value}); }
    // Where the shortest digits of the double say something else, the text is kept: 8 bytes of the
    // double, then the number as it was written.
    bool number_float(double value, const std::string& written) {
        const auto bits = std::bit_cast<std::uint64_t>(value);
        if (written.size() <= kShortNumber && written.find_first_of("eE") == written.npos) {
            return add({Kind::real, 0, bits});
        }
        std::string text = written;
        for (char& c : text) {  // the parser puts the locale's point there
            if (std::string_view("0123456789+-eE").find(c) == std::string_view::npos) c = '.';
        }
        if (read_decimal(text) == read_decimal(nlohmann::json(value).dump())) {
            return add({Kind::real, 0, bits});
        }
        const std::uint64_t at = tape_.bytes.size();
        tape_.bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
        tape_.bytes += text;
        return add({Kind::real, static_cast<std::uint32_t>(text.size()), at});
    }
    bool string(const std::string& value) {
        const std::uint64_t at = tape_.bytes.size();
        tape_.bytes.append(value.c_str(), value.size() + 1);
        return add({Kind::string, static_cast<std::uint32_t>(value.size()), at});
    }
    bool key(const std::string& name) { return string(name); }
    bool binary(std::vector<std::uint8_t>&) { return false; }  // never occurs in JSON
    bool start_object(std::size_t) { return open(); }
    bool start_array(std::size_t) { return open(); }
    bool end_array() { return close(Kind::array, stack_.size() - open_.back()); }
    bool end_object() {
        const std::size_t count =
            sort_members(stack_.data() + open_.back(), (stack_.size() - open_.back()) / 2);
        stack_.resize(open_.back() + 2 * count);
        return close(Kind::object, count);
    }
    bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception& error) {
        // The library begins with a name of its own: "[json.exception.parse_error.101] ".
        std::string_view what = error.what();
        const std::size_t end = what.find("] ");
        if (what.starts_with('[') && end != what.npos) what.remove_prefix(end + 2);
        throw fail({}, fmt::format("is not valid JSON at byte {}: {}", byte, printable(what, 200)));
    }

    Error fail(std::string value, std::string problem) const {
        return Error::input({.file = file_,
                             .field = std::string(field_),
                             .value = std::move(value),
                             .problem = std::move(problem)});
    }

  private:
    struct Member {
        Node key, value;
    };

    bool add(Node node) {
        if (open_.empty()) {
            tape_.nodes.front() = node;
            return true;
        }
        if (++values_ > limits_.values) {
            throw fail({}, fmt::format("has more than the {} values that a JSON file may have",
                                       limits_.values));
        }
        stack_.push_back(node);
        return true;
    }

    bool open() {
        if (open_.size() >= static_cast<std::size_t>(limits_.depth)) {
            throw fail({}, fmt::format("JSON is nested deeper than {}", limits_.depth));
        }
        open_.push_back(stack_.size());
        return true;
    }

    bool close(Kind kind, std::size_t count) {
        const Node done{kind, static_cast<std::uint32_t>(count), tape_.nodes.size()};
        const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(open_.back());
        tape_.nodes.insert(tape_.nodes.end(), first, stack_.end());
        stack_.erase(first, stack_.end());
        open_.pop_back();
        return add(done);
    }

    std::string_view text(const Node& node) const {
        return std::string_view(tape_.bytes).substr(node.value, node.size);
    }

    // Returns the number of members kept.
    std::size_t sort_members(Node* nodes, std::size_t count) {
        static_assert(sizeof(Member) == 2 * sizeof(Node));
        order_.resize(count);
        for (std::size_t i = 0; i < count; ++i) order_[i] = {nodes[2 * i], nodes[2 * i + 1]};
        const auto before = [this](const Member& a, const Member& b) {
            const int order = text(a.key).compare(text(b.key));
            return order < 0 || (order == 0 && a.key.value < b.key.value);
        };
        if (!std::is_sorted(order_.begin(), order_.end(), before)) {
            std::sort(order_.begin(), order_.end(), before);
        }
        std::size_t kept = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const bool again = i > 0 && text(order_[i].key) == text(order_[i - 1].key);
            if (again && !limits_.repeated_keys) {
                throw fail("'" + printable(text(order_[i].key)) + "'",
                           "JSON has this key twice in one object");
            }
            if (again) --kept;
            nodes[2 * kept] = order_[i].key;
            nodes[2 * kept + 1] = order_[i].value;
            ++kept;
        }
        return kept;
    }

    JsonDocument::Tape& tape_;
    const std::string& file_;
    std::string_view field_;
    const JsonLimits limits_;
    std::vector<Node> stack_;
    std::vector<std::size_t> open_;  // index on the stack where each open list or object begins
    std::vector<Member> order_;
    std::size_t values_ = 0;
};

JsonDocument::JsonDocument() : tape_(std::make_unique<Tape>()) { tape_->nodes.emplace_back(); }

JsonDocument JsonDocument::parse(std::string_view text, const std::string& file,
                                 std::string_view field, JsonLimits limits) {
    JsonDocument out;
    out.tape_->nodes.clear();
    JsonReader reader(*out.tape_, file, field, limits);
    if (text.size() > kMostBytes) {
        throw reader.fail({}, fmt::format("is larger than {} bytes", kMostBytes));
    }
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) {
        throw reader.fail({}, "is not valid JSON");
    }
    return out;
}

std::size_t JsonDocument::bytes() const {
    return tape_->nodes.capacity() * sizeof(Node) + tape_->bytes.capacity();
}

const JsonValue::Node& JsonValue::node() const {
    static constexpr Node kNull{};
    return tape_ ? tape_->nodes[at_] : kNull;
}

void JsonValue::require(bool is, const char* what) const {
    if (!is) throw ContractError(fmt::format("a JSON {} was asked for as {}", type_name(), what));
}

double JsonValue::real() const {
    if (node().size == 0) return std::bit_cast<double>(bits());
    double value = 0;
    std::memcpy(&value, tape_->bytes.data() + bits(), sizeof(value));
    return value;
}

bool JsonValue::is_integer_in(std::int64_t lowest, std::int64_t highest) const {
    if (!is_number_integer()) return false;
    if (kind() == Kind::natural && bits() > INT64_MAX) return false;
    const auto value = static_cast<std::int64_t>(bits());
    return value >= lowest && value <= highest;
}

const char* JsonValue::type_name() const {
    switch (kind()) {
        case Kind::null:
            return "null";
        case Kind::boolean:
            return "boolean";
        case Kind::string:
            return "string";
        case Kind::array:
            return "array";
        case Kind::object:
            return "object";
        default:
            return "number";
    }
}

std::string_view JsonValue::text() const {
    require(is_string(), "a string");
    return std::string_view(tape_->bytes).substr(node().value, node().size);
}

std::size_t JsonValue::size() const { return is_array() || is_object() ? node().size : 0; }

JsonValue JsonValue::at(std::size_t i) const {
    require(is_array() && i < size(), "a list with more values");
    return child(i);
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
    if (!is_object()) return std::nullopt;
    std::uint64_t from = 0, to = size();
    while (from < to) {
        const std::uint64_t middle = from + (to - from) / 2;
        const int order = child(2 * middle).text().compare(key);
        if (order == 0) return child(2 * middle + 1);
        (order < 0 ? from : to) = order < 0 ? middle + 1 : middle;
    }
    return std::nullopt;
}

std::vector<JsonItem> JsonValue::items_in_file_order() const {
    std::vector<JsonItem> out;
    out.reserve(size());
    for (const JsonItem item : items()) out.push_back(item);
    std::sort(out.begin(), out.end(), [](const JsonItem& a, const JsonItem& b) {
        return std::less<>()(a.key.data(), b.key.data());
    });
    return out;
}

// Appends the JSON text, or at least its first `most` bytes. The reader limits the depth.
void JsonValue::write(std::string& out, std::size_t most) const {
    const auto children = [&](char open, char close, const auto& one) {
        out += open;
        for (std::size_t i = 0; i < size() && out.size() < most; ++i) {
            if (i > 0) out += ',';
            one(i);
        }
        out += close;
    };
    const auto text_of = [&](std::string_view text) { out += json_quoted(text.substr(0, most)); };
    switch (kind()) {
        case Kind::null:
            out += "null";
            break;
        case Kind::boolean:
            out += get<bool>() ? "true" : "false";
            break;
        case Kind::negative:
            out += fmt::format("{}", static_cast<std::int64_t>(bits()));
            break;
        case Kind::natural:
            out += fmt::format("{}", bits());
            break;
        case Kind::real:
            if (node().size > 0) {
                out += std::string_view(tape_->bytes).substr(bits() + sizeof(double), node().size);
            } else {
                out += nlohmann::json(real()).dump();
            }
            break;
        case Kind::string:
            text_of(text());
            break;
        case Kind::array:
            children('[', ']', [&](std::size_t i) { child(i).write(out, most); });
            break;
        case Kind::object:
            children('{', '}', [&](std::size_t i) {
                text_of(child(2 * i).text());
                out += ':';
                child(2 * i + 1).write(out, most);
            });
            break;
    }
}

std::string JsonValue::dump() const {
    std::string out;
    write(out, SIZE_MAX);
    return out;
}

std::string JsonValue::shown(std::size_t most_bytes) const {
    std::string out;
    write(out, most_bytes + 1);
    if (out.size() <= most_bytes) return out;
    while (most_bytes > 0 && (out[most_bytes] & 0xC0) == 0x80) --most_bytes;  // whole characters
    out.resize(most_bytes);
    return out + "...";
}

}  // namespace mr::formats
