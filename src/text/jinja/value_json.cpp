#include "text/jinja/value_json.h"

#include <nlohmann/json.hpp>

namespace mr::text::jinja {
namespace {

// Events of nlohmann's parser to values; no tree in between.
class ValueBuilder {
  public:
    explicit ValueBuilder(bool user) : user_(user) {}

    bool null() { return take(None{}); }
    bool boolean(bool value) { return take(value); }
    bool number_integer(std::int64_t value) { return take(value); }
    bool number_unsigned(std::uint64_t value) {
        if (value > INT64_MAX) throw Failure{"has an integer that does not fit into 64 bits"};
        return take(static_cast<std::int64_t>(value));
    }
    bool number_float(double value, const std::string&) { return take(value); }
    bool string(std::string& value) { return take(MarkedText(std::move(value), user_)); }
    bool binary(std::vector<std::uint8_t>&) { return false; }
    bool start_object(std::size_t) { return open(true); }
    bool start_array(std::size_t) { return open(false); }
    bool key(std::string& name) {
        open_.back().key = MarkedText(std::move(name), user_);
        return true;
    }
    bool end_object() { return close(); }
    bool end_array() { return close(); }
    bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception&) {
        throw Failure{"is not valid JSON at byte " + std::to_string(byte)};
    }

    Value result;

  private:
    struct Open {
        bool object = false;
        Value key{};
        std::vector<Value> items{};
        std::vector<std::pair<Value, Value>> entries{};
    };

    bool open(bool object) {
        if (open_.size() >= kMaxValueDepth) throw Failure{"nests too deep"};
        open_.push_back({.object = object});
        return true;
    }

    bool close() {
        Open done = std::move(open_.back());
        open_.pop_back();
        return take(done.object ? Value::map(std::move(done.entries))
                                : Value::list(std::move(done.items)));
    }

    bool take(Value value) {
        if (open_.empty()) {
            result = std::move(value);
        } else if (Open& top = open_.back(); top.object) {
            top.entries.emplace_back(std::move(top.key), std::move(value));
        } else {
            top.items.push_back(std::move(value));
        }
        return true;
    }

    bool user_;
    std::vector<Open> open_;
};

}  // namespace

Value value_of_json(std::string_view json, bool user) {
    ValueBuilder builder(user);
    if (!nlohmann::json::sax_parse(json.begin(), json.end(), &builder)) {
        throw Failure{"is not valid JSON"};
    }
    return std::move(builder.result);
}

}  // namespace mr::text::jinja
