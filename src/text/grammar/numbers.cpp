#include "text/grammar/numbers.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "core/read_double.h"

namespace mr::text::grammar {
namespace {

constexpr std::uint64_t kWholeEnd = 1'000'000'000'000'000'000;  // 10^18

int compare_sizes(const Decimal& a, const Decimal& b) {
    if (a.whole != b.whole) return a.whole < b.whole ? -1 : 1;
    const int order = a.fraction.compare(b.fraction);  // without trailing zeros
    return order < 0 ? -1 : order > 0 ? 1 : 0;
}

// Unsigned numbers between `low` and `high`.
class SizeWriter {
  public:
    SizeWriter(Network& network, NumberBound low, NumberBound high, bool fractions, bool exponents,
               StateId next)
        : network_(network),
          low_(std::move(low)),
          high_(std::move(high)),
          fractions_(fractions),
          next_(next) {
        if (exponents) {
            const StateId second = network.split(digit(next), next);
            const StateId first = digit(second);
            const Edge sign[] = {{'+', '+', first}, {'-', '-', first}, {'0', '9', second}};
            const StateId after_e = network.bytes(sign);
            const Edge e[] = {{'E', 'E', after_e}, {'e', 'e', after_e}};
            next_ = network.split(next, network.bytes(e));
        }
    }

    StateId write() {
        std::vector<Edge> edges;
        // A leading zero is not followed by digits.
        if (low_.value.whole == 0) add(edges, '0', after(0, {}));
        for (unsigned d = 1; d < 10; ++d) add(edges, static_cast<char>('0' + d), digits(d, 1));
        return network_.bytes(edges);
    }

  private:
    StateId digit(StateId to) { return network_.range('0', '9', to); }
    static void add(std::vector<Edge>& edges, char c, StateId to) {
        const auto byte = static_cast<std::uint8_t>(c);
        if (to == kNoState) return;
        if (!edges.empty() && edges.back().to == to && edges.back().high + 1 == byte) {
            edges.back().high = byte;
        } else {
            edges.push_back({byte, byte, to});
        }
    }

    // After `count` digits with this `value`. If no number with this prefix touches the bounds,
    // only the number of further digits matters.
    StateId digits(std::uint64_t value, int count) {
        std::uint32_t inside = 0;
        bool edge = false;
        std::uint64_t from = value, width = 1;
        for (int more = 0; more <= kMostDigits - count; ++more, from *= 10, width *= 10) {
            const std::uint64_t last = from + width - 1;
            const std::uint64_t low = low_.value.whole, high = high_.value.whole;
            if (last < low || from > high) continue;
            if (from > low && last < high) {
                inside |= 1u << more;
            } else {
                edge = true;
            }
        }
        if (!edge) return free_digits(inside);
        std::vector<Edge> edges;
        for (unsigned d = 0; d < 10 && count < kMostDigits; ++d) {
            add(edges, static_cast<char>('0' + d), digits(value * 10 + d, count + 1));
        }
        return after(value, edges);
    }

    // Bit i of `lengths`: i more digits are allowed.
    StateId free_digits(std::uint32_t lengths) {
        if (lengths == 0) return kNoState;
        const auto known = free_.find(lengths);
        if (known != free_.end()) return known->second;
        std::vector<Edge> edges;
        const StateId more = free_digits(lengths >> 1);
        if (more != kNoState) edges.push_back({'0', '9', more});
        StateId end = kNoState;
        if (lengths & 1) {
            end = next_;
            if (fractions_) add_point(edges, false, false);
        }
        const StateId state = joined(edges, end);
        free_.emplace(lengths, state);
        return state;
    }

    // The integer part is `value`, at the bounds or outside; `edges` are for further digits.
    StateId after(std::uint64_t value, std::vector<Edge> edges) {
        const bool at_low = value == low_.value.whole, at_high = value == high_.value.whole;
        StateId end = kNoState;
        if (value >= low_.value.whole && value <= high_.value.whole) {
            if (fractions_) add_point(edges, at_low, at_high);
            if (fits(at_low, at_high, 0)) end = next_;
        }
        return joined(edges, end);
    }

    void add_point(std::vector<Edge>& edges, bool at_low, bool at_high) {
        edges.insert(edges.begin(), {'.', '.', fraction(at_low, at_high, 0)});
    }

    // Whether a number may end here that equals, in all its digits, the bounds it is at.
    bool fits(bool at_low, bool at_high, std::size_t digits) const {
        if (at_low && (low_.value.fraction.size() > digits || !low_.included)) return false;
        return !at_high || high_.value.fraction.size() > digits || high_.included;
    }

    // After `count` digits of the fraction.
    StateId fraction(bool at_low, bool at_high, std::size_t count) {
        const auto key = std::make_tuple(at_low, at_high, count);
        const auto known = fractions_made_.find(key);
        if (known != fractions_made_.end()) return known->second;
        const auto digit_of = [&](const NumberBound& bound) {
            const std::string& digits = bound.value.fraction;
            return count < digits.size() ? digits[count] : '0';
        };
        std::vector<Edge> edges;
        for (char c = '0'; c <= '9' && count < kMostDigits; ++c) {
            const char low = digit_of(low_), high = digit_of(high_);
            if ((at_low && c < low) || (at_high && c > high)) continue;
            add(edges, c, fraction(at_low && c == low, at_high && c == high, count + 1));
        }
        const bool ends = count > 0 && fits(at_low, at_high, count);
        const StateId state = joined(edges, ends ? next_ : kNoState);
        fractions_made_.emplace(key, state);
        return state;
    }

    StateId joined(const std::vector<Edge>& edges, StateId end) {
        if (edges.empty()) return end;
        const StateId state = network_.bytes(edges);
        return end == kNoState ? state : network_.split(state, end);
    }

    Network& network_;
    const NumberBound low_, high_;
    const bool fractions_;
    StateId next_;
    std::map<std::uint32_t, StateId> free_;
    std::map<std::tuple<bool, bool, std::size_t>, StateId> fractions_made_;
};

}  // namespace

std::optional<Decimal> Decimal::of(std::int64_t value) {
    Decimal out;
    out.negative = value < 0;
    out.whole =
        out.negative ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    if (out.whole >= kWholeEnd) return std::nullopt;
    return out;
}

std::optional<Decimal> Decimal::of(double value) {
    if (!std::isfinite(value) || std::fabs(value) >= 1e18) return std::nullopt;
    // The shortest digits of the number, such as 1.25e-07; then the point is moved.
    std::string digits;
    int exponent = 0;
    for (int precision = 0; precision < 18; ++precision) {
        const std::string shorter = fmt::format("{:.{}e}", std::fabs(value), precision);
        if (read_double(shorter) != std::fabs(value)) continue;
        const std::size_t e = shorter.find('e');
        for (const char c : shorter.substr(0, e)) {
            if (c != '.') digits += c;
        }
        exponent = std::stoi(shorter.substr(e + 1));
        break;
    }
    while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
    Decimal out;
    out.negative = std::signbit(value) && value != 0;
    if (value == 0) return out;
    if (exponent < 0) digits.insert(0, static_cast<std::size_t>(-exponent), '0');
    const auto whole = static_cast<std::size_t>(exponent < 0 ? 1 : exponent + 1);
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    out.whole = std::stoull(digits.substr(0, whole));
    out.fraction = digits.substr(whole);
    if (out.fraction.size() > kMostDigits) return std::nullopt;
    return out;
}

int compare(const Decimal& a, const Decimal& b) {
    if (a.zero() && b.zero()) return 0;
    if (a.negative != b.negative) return a.negative ? -1 : 1;
    return a.negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

StateId number(Network& network, const NumberBounds& bounds, StateId next) {
    const auto& [low, high, fractions] = bounds;
    const bool exponents = fractions && !low && !high;
    const NumberBound largest{{.whole = kWholeEnd - 1, .fraction = std::string(kMostDigits, '9')}};
    const auto size = [](NumberBound bound) {
        bound.value.negative = false;
        return bound;
    };
    const auto below_zero = [](const NumberBound& bound) {
        return bound.value.negative && !bound.value.zero();
    };
    StateId positive = kNoState, negative = kNoState;
    if (!high || !below_zero(*high)) {
        const NumberBound from = low && !below_zero(*low) ? *low : NumberBound{};
        positive =
            SizeWriter(network, from, high.value_or(largest), fractions, exponents, next).write();
    }
    if (!low || below_zero(*low)) {
        // The integer 0 has no sign.
        NumberBound from{.value = {}, .included = fractions};
        if (high && (below_zero(*high) || (high->value.zero() && !high->included))) {
            from = size(*high);
        }
        negative = SizeWriter(network, from, low ? size(*low) : largest, fractions, exponents, next)
                       .write();
        negative = network.byte('-', negative);
    }
    return network.split(positive, negative);
}

}  // namespace mr::text::grammar
