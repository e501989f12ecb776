// Python's arithmetic on template values, and `in`.
#include <algorithm>
#include <cmath>

#include "text/jinja/context.h"

namespace mr::text::jinja {
namespace {

[[noreturn]] void no_operation(std::string_view op, const Value& left, const Value& right) {
    throw Failure{"computes " + std::string(left.type_name()) + " " + std::string(op) + " " +
                  std::string(right.type_name())};
}

[[noreturn]] void too_large() {
    throw Failure{"computes an integer that does not fit into 64 bits"};
}

std::int64_t integer_power(std::int64_t base, std::int64_t exponent) {
    std::int64_t out = 1;
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(out, base, &out)) too_large();
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) too_large();
    }
    return out;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
    if (b == 0) throw Failure{"divides by 0"};
    if (b == -1) {
        std::int64_t out = 0;
        if (__builtin_sub_overflow(std::int64_t{0}, a, &out)) too_large();
        return out;
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value integers(std::string_view op, std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (op == "+") {
        if (__builtin_add_overflow(a, b, &out)) too_large();
    } else if (op == "-") {
        if (__builtin_sub_overflow(a, b, &out)) too_large();
    } else if (op == "*") {
        if (__builtin_mul_overflow(a, b, &out)) too_large();
    } else if (op == "//") {
        out = floor_divide(a, b);
    } else if (op == "%") {
        if (b == 0) throw Failure{"divides by 0"};
        if (b == -1) return 0;
        out = a % b;
        if (out != 0 && (out < 0) != (b < 0)) out += b;
    } else if (op == "**") {
        if (b < 0) {
            if (a == 0) throw Failure{"divides by 0"};
            return std::pow(static_cast<double>(a), static_cast<double>(b));
        }
        out = integer_power(a, b);
    } else {  // "/"
        if (b == 0) throw Failure{"divides by 0"};
        return static_cast<double>(a) / static_cast<double>(b);
    }
    return out;
}

Value reals(std::string_view op, double a, double b) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "**") return std::pow(a, b);
    if (b == 0) throw Failure{"divides by 0"};
    if (op == "/") return a / b;
    double rest = std::fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    if (op == "%") return rest;
    return std::floor((a - rest) / b + 0.5);
}

Value repeat(Context& context, const Value& value, std::int64_t count) {
    const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
    if (const MarkedText* text = value.as_text()) {
        MarkedText out;
        if (text->empty()) return out;
        for (std::size_t i = 0; i < times; ++i) {
            context.budget.make(text->size());
            out.append(*text);
        }
        return out;
    }
    const List& list = *value.as_list();
    std::vector<Value> items;
    if (!list.items.empty()) {
        for (std::size_t i = 0; i < times; ++i) {
            context.budget.hold(list.items.size());
            items.insert(items.end(), list.items.begin(), list.items.end());
        }
    }
    return Value::list(std::move(items), list.tuple);
}

}  // namespace

Value arithmetic(Context& context, std::string_view op, const Value& left, const Value& right) {
    need_defined(left);
    if (op == "%" && left.as_text()) return percent_format(context, *left.as_text(), right);
    need_defined(right);
    std::int64_t left_room = 0, right_room = 0;
    const std::int64_t* a = integer_of(left, left_room);
    const std::int64_t* b = integer_of(right, right_room);
    if (a && b) return integers(op, *a, *b);
    if (is_number(left) && is_number(right)) return reals(op, number_of(left), number_of(right));
    if (op == "+" && left.as_text() && right.as_text()) {
        context.budget.make(left.as_text()->size() + right.as_text()->size());
        MarkedText out = *left.as_text();
        out.append(*right.as_text());
        return out;
    }
    const List *first = left.as_list(), *second = right.as_list();
    if (op == "+" && first && second && first->tuple == second->tuple) {
        context.budget.hold(first->items.size() + second->items.size());
        std::vector<Value> items = first->items;
        items.insert(items.end(), second->items.begin(), second->items.end());
        return Value::list(std::move(items), first->tuple);
    }
    if (op == "*" && b && (left.as_text() || first)) return repeat(context, left, *b);
    if (op == "*" && a && (right.as_text() || second)) return repeat(context, right, *a);
    no_operation(op, left, right);
}

bool contains(Context& context, const Value& container, const Value& item) {
    if (const MarkedText* text = container.as_text()) {
        const MarkedText& part = need_text("'in' a string", item);
        context.budget.step(text->size() / 16);
        return text->bytes().find(part.bytes()) != std::string::npos;
    }
    if (const Map* map = container.as_map()) {
        return find_key(context.budget, *map, item) != nullptr;
    }
    if (const List* list = container.as_list()) {
        for (const Value& held : list->items) {
            if (equal(context.budget, held, item)) return true;
        }
        return false;
    }
    if (container.is_undefined()) return false;
    throw Failure{"looks for something in " + std::string(container.type_name())};
}

}  // namespace mr::text::jinja
