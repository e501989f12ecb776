#include "text/grammar/regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "text/grammar/regex_parse.h"

namespace mr::text::grammar {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

void spend(RegexBudget& budget, std::uint64_t steps) {
    if (steps > budget.steps) {
        throw BadPattern{"the patterns of this schema take too many steps; make them simpler"};
    }
    budget.steps -= steps;
}

// Thompson's automaton: a state reads a character of `set` and goes to `a`, or forks to both.
struct CharState {
    const CharRanges* set = nullptr;
    std::uint32_t a = kNone, b = kNone;
};

// Converts the syntax tree from its end, as networks are built.
class ThompsonWriter {
  public:
    // `anchored`: every alternative is bound at both ends.
    ThompsonWriter(const RegexSyntax& syntax, RegexBudget& budget, bool anchored)
        : syntax_(syntax), budget_(budget), anchored_(anchored) {}

    static constexpr std::uint32_t kAccepts = 0;
    std::vector<CharState> states;

    std::uint32_t write() {
        states.emplace_back();  // kAccepts
        const std::uint32_t root = syntax_.root;
        const RegexNode& node = syntax_.nodes[root];
        if (node.kind != RegexNode::Kind::any) return whole(root);
        std::uint32_t start = kNone;
        for (const std::uint32_t part : node.parts) start = both(whole(part), start);
        return start;
    }

  private:
    using Kind = RegexNode::Kind;

    std::uint32_t add(CharState state) {
        if (states.size() >= kMostPatternStates) {
            throw BadPattern{
                fmt::format("has more than {} states when its counts are written out; "
                            "make them smaller",
                            kMostPatternStates)};
        }
        states.push_back(state);
        return static_cast<std::uint32_t>(states.size() - 1);
    }
    std::uint32_t both(std::uint32_t a, std::uint32_t b) {
        return b == kNone ? a : add({.a = a, .b = b});
    }
    std::uint32_t loop(std::uint32_t next, const auto& body) {
        const std::uint32_t here = add({.b = next});
        const std::uint32_t inside = body(here);  // may move `states`
        states[here].a = inside;
        return here;
    }

    // An alternative of the whole pattern; where it is not anchored, anything may surround it.
    std::uint32_t whole(std::uint32_t id) {
        static const CharRanges kAnything = {{0, 0x10FFFF}};
        std::vector<std::uint32_t> parts = syntax_.nodes[id].kind == Kind::all
                                               ? syntax_.nodes[id].parts
                                               : std::vector<std::uint32_t>{id};
        const auto kind = [&](std::uint32_t part) { return syntax_.nodes[part].kind; };
        bool begins = !parts.empty() && kind(parts.front()) == Kind::begin;
        if (begins) parts.erase(parts.begin());
        bool ends = !parts.empty() && kind(parts.back()) == Kind::end;
        if (ends) parts.pop_back();
        begins = begins || anchored_;
        ends = ends || anchored_;
        const auto anything = [&](std::uint32_t here) { return add({&kAnything, here}); };
        std::uint32_t next = ends ? kAccepts : loop(kAccepts, anything);
        for (std::size_t i = parts.size(); i-- > 0;) next = written(parts[i], next);
        return begins ? next : loop(next, anything);
    }

    // Recursion is bounded by the nesting of groups.
    std::uint32_t written(std::uint32_t id, std::uint32_t next) {
        spend(budget_, 1);
        const RegexNode& node = syntax_.nodes[id];
        switch (node.kind) {
            case Kind::set:
                return add({&node.ranges, next});
            case Kind::all:
                for (std::size_t i = node.parts.size(); i-- > 0;) {
                    next = written(node.parts[i], next);
                }
                return next;
            case Kind::any: {
                std::uint32_t start = kNone;
                for (const std::uint32_t part : node.parts) {
                    start = both(written(part, next), start);
                }
                return start;
            }
            case Kind::repeat: {
                if (node.most == kUnbounded) {
                    next = loop(next,
                                [&](std::uint32_t here) { return written(node.parts[0], here); });
                } else {
                    const std::uint32_t after = next;
                    for (std::uint32_t i = node.least; i < node.most; ++i) {
                        next = both(written(node.parts[0], next), after);
                    }
                }
                for (std::uint32_t i = 0; i < node.least; ++i) {
                    next = written(node.parts[0], next);
                }
                return next;
            }
            case Kind::begin:
            case Kind::end:
                break;
        }
        throw BadPattern{
            "has ^ or $ inside; they are supported at the ends of the pattern, or of its "
            "alternatives outside of groups"};
    }

    const RegexSyntax& syntax_;
    RegexBudget& budget_;
    const bool anchored_;
};

// Subset construction, combined with the number
// of characters read, as far as it matters.
class SubsetWriter {
  public:
    SubsetWriter(const std::vector<CharState>& states, std::uint32_t least, std::uint32_t most,
                 RegexBudget& budget)
        : states_(states), least_(least), most_(most), budget_(budget), seen_(states.size(), 0) {}

    CharAutomaton write(std::uint32_t start) {
        node_of({start}, 0);
        for (std::size_t i = 0; i < todo_.size(); ++i) {
            const Key key = todo_[i]->first;
            const std::uint32_t id = todo_[i]->second;
            if (key.second < most_) out_.nodes[id].spans = spans_of(key);
        }
        return std::move(out_);
    }

  private:
    using Key = std::pair<std::vector<std::uint32_t>, std::uint32_t>;

    std::vector<std::uint32_t> closed(std::vector<std::uint32_t> work) {
        ++turn_;
        std::vector<std::uint32_t> out;
        while (!work.empty()) {
            const std::uint32_t id = work.back();
            work.pop_back();
            if (id == kNone || seen_[id] == turn_) continue;
            seen_[id] = turn_;
            spend(budget_, 1);
            const CharState& state = states_[id];
            if (state.set || id == ThompsonWriter::kAccepts) {
                out.push_back(id);
            } else {
                work.push_back(state.a);
                work.push_back(state.b);
            }
        }
        std::sort(out.begin(), out.end());
        return out;
    }

    std::uint32_t node_of(std::vector<std::uint32_t> from, std::uint32_t count) {
        // Without an upper limit, a count beyond `least` makes no difference.
        if (most_ == kUnbounded) count = std::min(count, least_);
        const auto [at, fresh] = known_.emplace(Key(closed(std::move(from)), count),
                                                static_cast<std::uint32_t>(out_.nodes.size()));
        if (!fresh) return at->second;
        if (out_.nodes.size() >= kMostPatternNodes) {
            throw BadPattern{
                fmt::format("becomes an automaton of more than {} states; make the "
                            "pattern, or minLength and maxLength beside it, smaller",
                            kMostPatternNodes)};
        }
        const auto& set = at->first.first;
        out_.nodes.push_back(
            {.accepts = !set.empty() && set[0] == ThompsonWriter::kAccepts && count >= least_});
        todo_.push_back(&*at);
        return at->second;
    }

    std::vector<CharAutomaton::Span> spans_of(const Key& key) {
        // Where the ranges of the set begin and end, and the state each leads to.
        std::vector<std::tuple<char32_t, bool, std::uint32_t>> edges;
        for (const std::uint32_t id : key.first) {
            if (!states_[id].set) continue;
            for (const auto& [low, high] : *states_[id].set) {
                edges.emplace_back(low, true, states_[id].a);
                edges.emplace_back(high + 1, false, states_[id].a);
            }
        }
        spend(budget_, edges.size());
        std::sort(edges.begin(), edges.end());
        std::map<std::uint32_t, int> inside;
        std::vector<CharAutomaton::Span> spans;
        for (std::size_t i = 0; i < edges.size();) {
            const char32_t at = std::get<0>(edges[i]);
            for (; i < edges.size() && std::get<0>(edges[i]) == at; ++i) {
                const auto& [code, begins, to] = edges[i];
                if ((inside[to] += begins ? 1 : -1) == 0) inside.erase(to);
            }
            if (inside.empty()) continue;
            spend(budget_, 1 + inside.size());
            std::vector<std::uint32_t> targets;
            targets.reserve(inside.size());
            for (const auto& [to, times] : inside) targets.push_back(to);
            const std::uint32_t to = node_of(std::move(targets), key.second + 1);
            const char32_t last = std::get<0>(edges[i]) - 1;
            if (!spans.empty() && spans.back().to == to && spans.back().high + 1 == at) {
                spans.back().high = last;
            } else {
                spans.push_back({at, last, to});
            }
        }
        return spans;
    }

    const std::vector<CharState>& states_;
    const std::uint32_t least_, most_;
    RegexBudget& budget_;
    std::vector<std::uint32_t> seen_;
    std::uint32_t turn_ = 0;
    CharAutomaton out_;
    std::map<Key, std::uint32_t> known_;
    std::vector<const std::pair<const Key, std::uint32_t>*> todo_;
};

}  // namespace

CharAutomaton automaton_of_pattern(std::string_view pattern, std::uint32_t least,
                                   std::uint32_t most, RegexBudget& budget, bool whole) {
    const RegexSyntax syntax = parse_pattern(pattern);
    ThompsonWriter thompson(syntax, budget, whole);
    const std::uint32_t start = thompson.write();
    return SubsetWriter(thompson.states, least, most, budget).write(start);
}

}  // namespace mr::text::grammar
