// A grammar as a recursive transition network: rules, each a small automaton over bytes that may
// call other rules. Schemas become one (schema.h); a Store (store.h) makes deterministic states of
// it as text comes.
//
// Networks are built backwards: a function is given the state that follows and returns the state
// that begins.
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

// Rules inside of each other. Every list or object inside of another is one, so texts nest 64
// levels at most, which is as deep as formats/json.h reads.
inline constexpr std::uint32_t kMostHeight = 63;
// Of states, edges and targets together; some 20 bytes each.
inline constexpr std::size_t kMostParts = 1'000'000;

struct Edge {
    std::uint8_t low, high;  // both included
    StateId to;
};

struct State {
    enum class Kind : std::uint8_t {
        bytes,   // reads one byte: edges [first, first + count), disjoint and in order
        split,   // goes on as any of the targets [first, first + count)
        call,    // reads the rule, then goes on as `next`
        repeat,  // reads the rule `first` to `count` times, then goes on as `next`
        end,     // the rule is read
    };
    Kind kind = Kind::bytes;
    std::uint32_t first = 0, count = 0;
    RuleId rule = 0;
    StateId next = kNoState;

    std::uint32_t least() const { return first; }
    std::uint32_t most() const { return count; }
};

class Network {
  public:
    // `path` is what errors name: the place of the schema in the request.
    explicit Network(std::string path);

    static constexpr StateId kEnd = 0;
    static constexpr RuleId kMain = 0;  // the whole text

    RuleId add_rule();
    void define(RuleId rule, StateId start) { rules_[rule] = start; }

    StateId bytes(std::span<const Edge> edges);
    StateId byte(char c, StateId next) { return range(c, c, next); }
    StateId range(char low, char high, StateId next);
    // Targets of kNoState are left out.
    StateId split(std::span<const StateId> targets);
    StateId split(StateId a, StateId b) {
        const StateId both[] = {a, b};
        return split(both);
    }
    StateId call(RuleId rule, StateId next);
    StateId repeat(RuleId rule, std::uint32_t least, std::uint32_t most, StateId next);
    // For automata with circles: a state that set_bytes() or set_split() makes later.
    StateId reserve();
    void set_bytes(StateId state, std::span<const Edge> edges);
    void set_split(StateId state, std::span<const StateId> targets);

    StateId literal(std::string_view text, StateId next);
    // At most one blank.
    StateId blank(StateId next) { return split(byte(' ', next), next); }
    // One of several texts, each with what follows it. One state for each beginning they share.
    using Literals = std::vector<std::pair<std::string, StateId>>;
    StateId literals(Literals texts);

    // The edges of a character of several bytes in UTF-8.
    std::vector<Edge> multibyte(StateId next);
    // The rule of one character of a JSON string, in any spelling.
    RuleId character();
    // A string of `least` to `most` characters, with its quotes.
    StateId string(std::uint32_t least, std::uint32_t most, StateId next);

    // When all rules are defined. Throws Error where no text fits.
    void finish();

    const State& state(StateId id) const { return states_[id]; }
    std::span<const Edge> edges(const State& state) const {
        return {edges_.data() + state.first, state.count};
    }
    std::span<const StateId> targets(const State& state) const {
        return {targets_.data() + state.first, state.count};
    }
    StateId start(RuleId rule) const { return rules_[rule]; }
    // How many rules inside of each other it takes from this state to the end of its own; more than
    // kMostHeight where there is no way.
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
    std::vector<StateId> rules_;  // where they start
    std::vector<std::uint32_t> need_;
    RuleId character_ = ~RuleId{0};
};

}  // namespace mr::text::grammar
