// A grammar as a recursive transition network: rules, each a small automaton over bytes that may
// call other rules. schema.h makes one from a schema; a Store (store.h) makes its states
// deterministic as text arrives.
//
// Networks are built backwards: a function takes the state that follows and returns the first
// state. What follows may be kNoState, where nothing fits: edges to it are left out as they are
// made, here and nowhere else, so that no state of a network leads to it. A state that is left
// without a way to the end is never entered (need()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mr::text::grammar {

using StateId = std::uint32_t;
using RuleId = std::uint32_t;
inline constexpr StateId kNoState = ~StateId{0};
inline constexpr std::uint32_t kUnbounded = ~std::uint32_t{0};

// Nesting of rules. Every list or object inside another is a rule, so texts nest at most 64 levels,
// which is as deep as formats/json.h reads.
inline constexpr std::uint32_t kMostHeight = 63;
// States, edges and targets together; some 20 bytes each.
inline constexpr std::size_t kMostParts = 1'000'000;

struct Edge {
    std::uint8_t low, high;  // inclusive
    StateId to;
};

struct State {
    enum class Kind : std::uint8_t {
        bytes,   // reads one byte: edges [first, first + count), disjoint and in order
        split,   // continues as any of the targets [first, first + count)
        call,    // reads the rule, then continues as `next`
        repeat,  // reads the rule `first` to `count` times, then continues as `next`
        end,     // end of the rule
    };
    Kind kind = Kind::bytes;
    std::uint32_t first = 0, count = 0;  // of `repeat`: the least and the most times
    RuleId rule = 0;
    StateId next = kNoState;

    std::uint32_t least() const { return first; }
    std::uint32_t most() const { return count; }
};

class Network {
  public:
    // `path`: the schema's place in the request, for errors.
    explicit Network(std::string path);

    static constexpr StateId kEnd = 0;
    static constexpr RuleId kMain = 0;  // the rule of the whole text

    RuleId add_rule();
    void define(RuleId rule, StateId start) {
        rules_[rule] = start == kNoState ? reserve() : start;
    }

    StateId bytes(std::span<const Edge> edges);
    StateId byte(char c, StateId next) { return range(c, c, next); }
    StateId range(char low, char high, StateId next);
    StateId split(std::span<const StateId> targets);
    StateId split(StateId a, StateId b) {
        const StateId both[] = {a, b};
        return split(both);
    }
    StateId call(RuleId rule, StateId next);
    StateId repeat(RuleId rule, std::uint32_t least, std::uint32_t most, StateId next);
    // For automata with cycles: a state that set_bytes() or set_split() defines later.
    StateId reserve();
    void set_bytes(StateId state, std::span<const Edge> edges);
    void set_split(StateId state, std::span<const StateId> targets);

    StateId literal(std::string_view text, StateId next);
    // At most one space.
    StateId blank(StateId next) { return split(byte(' ', next), next); }
    // One of several texts, each with its own successor. Shared prefixes share states.
    using Literals = std::vector<std::pair<std::string, StateId>>;
    StateId literals(Literals texts);

    // The edges of one UTF-8 character of several bytes.
    std::vector<Edge> multibyte(StateId next);
    // The rule of one character of a JSON string, in any spelling.
    RuleId character();
    // A string of `least` to `most` characters, with its quotes.
    StateId string(std::uint32_t least, std::uint32_t most, StateId next);

    // Call it when all rules are defined. Throws Error if no text fits.
    void finish();

    const State& state(StateId id) const { return states_[id]; }
    std::span<const Edge> edges(const State& state) const {
        return {edges_.data() + state.first, state.count};
    }
    std::span<const StateId> targets(const State& state) const {
        return {targets_.data() + state.first, state.count};
    }
    StateId start(RuleId rule) const { return rules_[rule]; }
    // How many nested rules it takes from this state to the end of its own; more than kMostHeight
    // if the end cannot be reached.
    std::uint32_t need(StateId id) const { return need_[id]; }
    std::size_t size() const { return states_.size(); }
    std::size_t memory() const;  // bytes
    const std::string& path() const { return path_; }
    bool is_character(RuleId rule) const { return rule == character_; }

  private:
    StateId add(State state);
    void count_parts(std::size_t added);
    std::uint32_t need_of(const State& state) const;

    std::string path_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<StateId> targets_;
    std::vector<StateId> rules_;  // start states
    std::vector<std::uint32_t> need_;
    RuleId character_ = ~RuleId{0};
};

}  // namespace mr::text::grammar
