// The tests of the `is` operator.
#include "text/jinja/filters.h"
#include "text/jinja/text_ops.h"

namespace mr::text::jinja {
namespace {

template <bool (*Holds)(const Value&)>
bool simple(Context&, const Value& input, const Args& args) {
    args.bind("the test", {});
    return Holds(input);
}

const Value& other(const Args& args, std::vector<Value>& room) {
    room = args.bind("the test", {"other"}, 1);
    return room[0];
}

bool is_integer(const Value& v) { return v.get<std::int64_t>(); }
bool is_sequence(const Value& v) {
    return v.as_text() || v.as_list() || v.as_map() || v.is_undefined();
}

std::int64_t whole_number(const Value& value) { return need_integer("the test", value); }

// Compares as < or == do; `swap`: the other way round, `invert`: the opposite.
enum class Order { eq, ne, lt, le, gt, ge };
template <Order Kind>
bool ordered(Context& context, const Value& a, const Args& args) {
    std::vector<Value> room;
    const Value& b = other(args, room);
    Budget& budget = context.budget;
    switch (Kind) {
        case Order::eq:
            return equal(budget, a, b);
        case Order::ne:
            return !equal(budget, a, b);
        case Order::lt:
            return less(budget, a, b);
        case Order::le:
            return less(budget, a, b) || equal(budget, a, b);
        case Order::gt:
            return less(budget, b, a);
        case Order::ge:
            return less(budget, b, a) || equal(budget, a, b);
    }
    return false;
}

bool in_test(Context& context, const Value& input, const Args& args) {
    std::vector<Value> room;
    return contains(context, other(args, room), input);
}

bool divisible_test(Context&, const Value& input, const Args& args) {
    const auto a = args.bind("divisibleby", {"num"}, 1);
    const std::int64_t by = whole_number(a[0]);
    if (by == 0) throw Failure{"divides by 0"};
    return by == -1 || whole_number(input) % by == 0;
}

template <MarkedText (*Map)(Budget&, const MarkedText&),
          MarkedText (*Other)(Budget&, const MarkedText&)>
bool case_test(Context& context, const Value& input, const Args& args) {
    args.bind("the test", {});
    const MarkedText text = to_text(context.budget, input);
    return Map(context.budget, text).bytes() == text.bytes() &&
           Other(context.budget, text).bytes() != text.bytes();
}

bool same_test(Context& context, const Value& input, const Args& args) {
    std::vector<Value> room;
    const Value& b = other(args, room);
    return input.data().index() == b.data().index() && equal(context.budget, input, b);
}

struct TestEntry {
    std::string_view name;
    Test call;
};

constexpr TestEntry kTests[] = {
    {"!=", ordered<Order::ne>},
    {"<", ordered<Order::lt>},
    {"<=", ordered<Order::le>},
    {"==", ordered<Order::eq>},
    {">", ordered<Order::gt>},
    {">=", ordered<Order::ge>},
    {"boolean", simple<[](const Value& v) { return v.get<bool>() != nullptr; }>},
    {"callable", simple<[](const Value& v) { return v.is_callable(); }>},
    {"defined", simple<[](const Value& v) { return !v.is_undefined(); }>},
    {"divisibleby", divisible_test},
    {"eq", ordered<Order::eq>},
    {"equalto", ordered<Order::eq>},
    {"even", simple<[](const Value& v) { return whole_number(v) % 2 == 0; }>},
    {"false", simple<[](const Value& v) { return v.get<bool>() && !*v.get<bool>(); }>},
    {"float", simple<[](const Value& v) { return v.get<double>() != nullptr; }>},
    {"ge", ordered<Order::ge>},
    {"greaterthan", ordered<Order::gt>},
    {"gt", ordered<Order::gt>},
    {"in", in_test},
    {"integer", simple<is_integer>},
    {"iterable", simple<is_sequence>},
    {"le", ordered<Order::le>},
    {"lessthan", ordered<Order::lt>},
    {"lower", case_test<lower, upper>},
    {"lt", ordered<Order::lt>},
    {"mapping", simple<[](const Value& v) { return v.as_map() != nullptr; }>},
    {"ne", ordered<Order::ne>},
    {"none", simple<[](const Value& v) { return v.is_none(); }>},
    {"number", simple<is_number>},
    {"odd", simple<[](const Value& v) { return whole_number(v) % 2 != 0; }>},
    {"sameas", same_test},
    {"sequence", simple<is_sequence>},
    {"string", simple<[](const Value& v) { return v.as_text() != nullptr; }>},
    {"true", simple<[](const Value& v) { return v.get<bool>() && *v.get<bool>(); }>},
    {"undefined", simple<[](const Value& v) { return v.is_undefined(); }>},
    {"upper", case_test<upper, lower>},
};

}  // namespace

Test find_test(std::string_view name) {
    for (const TestEntry& entry : kTests) {
        if (entry.name == name) return entry.call;
    }
    return nullptr;
}

}  // namespace mr::text::jinja
