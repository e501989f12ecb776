#include "text/grammar/numbers.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace mr::text::grammar {
namespace {

// A bound without its sign.
struct SizeBound {
    explicit SizeBound(const NumberBound& bound)
        : whole(bound.value.whole()), fraction(bound.value.fraction()), included(bound.included) {}

    std::string whole, fraction;
    bool included;
};

// How a number compares with a bound, by the digits read so far.
int compare_digit(int before, char digit, const std::string& bound, std::size_t place) {
    if (place >= bound.size()) return 1;  // more digits
    return before != 0 || digit == bound[place] ? before : digit < bound[place] ? -1 : 1;
}

// Unsigned numbers between `low` and `high`.
class SizeWriter {
  public:
    SizeWriter(Network& network, const NumberBound& low, const std::optional<NumberBound>& high,
               bool fractions, bool exponents, StateId next)
        : network_(network), low_(low), fractions_(fractions), next_(next) {
        if (high) high_.emplace(*high);
        const std::size_t high_whole = high_ ? high_->whole.size() : 0;
        most_whole_ = std::max(
            {kMostDigits, std::min(high_whole, kMostDigitsToBound), low_.whole.size() + 1});
        // One more than two bounds have, so that there is a number between them.
        most_fraction_ = std::max({kMostDigits, low_.fraction.size() + 1,
                                   high_ ? high_->fraction.size() + 1 : std::size_t{0}});
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
        add(edges, '0', after({}, {}));
        for (char c = '1'; c <= '9'; ++c) add(edges, c, whole(followed({}, c)));
        return joined(edges, kNoState);
    }

  private:
    // The digits before the point that were read, and how they compare with those of the bounds:
    // below, the same so far, above.
    struct Read {
        std::size_t count = 0;
        int low = 0, high = 0;
        auto operator<=>(const Read&) const = default;
    };

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

    Read followed(const Read& read, char c) const {
        return {read.count + 1, compare_digit(read.low, c, low_.whole, read.count),
                high_ ? compare_digit(read.high, c, high_->whole, read.count) : -1};
    }

    StateId whole(const Read& read) {
        if (high_ && read.count > high_->whole.size()) return kNoState;
        const auto known = wholes_made_.find(read);
        if (known != wholes_made_.end()) return known->second;
        std::vector<Edge> edges;
        for (char c = '0'; c <= '9' && read.count < most_whole_; ++c) {
            add(edges, c, whole(followed(read, c)));
        }
        const StateId state = after(read, std::move(edges));
        wholes_made_.emplace(read, state);
        return state;
    }

    // The digits before the point may end here; `edges` are for further ones.
    StateId after(const Read& read, std::vector<Edge> edges) {
        const int low = read.count < low_.whole.size() ? -1 : read.low;
        const int high = !high_ || read.count < high_->whole.size() ? -1 : read.high;
        StateId end = kNoState;
        if (low >= 0 && high <= 0) {
            if (fractions_) {
                std::vector<Edge> point;
                add(point, '.', fraction(low == 0, high == 0, 0));
                edges.insert(edges.begin(), point.begin(), point.end());
            }
            if (fits(low == 0, high == 0, 0)) end = next_;
        }
        return joined(edges, end);
    }

    // Whether a number may end here that equals, in all its digits, the bounds it is at.
    bool fits(bool at_low, bool at_high, std::size_t digits) const {
        if (at_low && (low_.fraction.size() > digits || !low_.included)) return false;
        return !at_high || high_->fraction.size() > digits || high_->included;
    }

    // After `count` digits of the fraction.
    StateId fraction(bool at_low, bool at_high, std::size_t count) {
        const auto key = std::make_tuple(at_low, at_high, count);
        const auto known = fractions_made_.find(key);
        if (known != fractions_made_.end()) return known->second;
        const auto digit_of = [&](const std::string& digits) {
            return count < digits.size() ? digits[count] : '0';
        };
        const char low = at_low ? digit_of(low_.fraction) : '0';
        const char high = at_high ? digit_of(high_->fraction) : '9';
        std::vector<Edge> edges;
        for (char c = low; c <= high && count < most_fraction_; ++c) {
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
    const SizeBound low_;
    std::optional<SizeBound> high_;
    const bool fractions_;
    std::size_t most_whole_, most_fraction_;
    StateId next_;
    std::map<Read, StateId> wholes_made_;
    std::map<std::tuple<bool, bool, std::size_t>, StateId> fractions_made_;
};

}  // namespace

StateId number(Network& network, const NumberBounds& bounds, StateId next) {
    const auto& [low, high, fractions] = bounds;
    const bool exponents = fractions && !low && !high;
    const auto below_zero = [](const NumberBound& bound) {
        return bound.value.negative && !bound.value.zero();
    };
    std::vector<StateId> starts;
    if (!high || !below_zero(*high)) {
        const NumberBound from = low && !below_zero(*low) ? *low : NumberBound{};
        starts.push_back(SizeWriter(network, from, high, fractions, exponents, next).write());
    }
    if (!low || below_zero(*low)) {
        // The integer 0 has no sign.
        NumberBound from{.value = {}, .included = fractions};
        if (high && (below_zero(*high) || (high->value.zero() && !high->included))) from = *high;
        const StateId size = SizeWriter(network, from, low, fractions, exponents, next).write();
        if (size != kNoState) starts.push_back(network.byte('-', size));
    }
    std::erase(starts, kNoState);
    return starts.empty() ? kNoState : network.split(starts);
}

}  // namespace mr::text::grammar
