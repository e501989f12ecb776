#include "text/grammar/network.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace mr::text::grammar {
namespace {

constexpr std::uint32_t kNoWay = kMostHeight + 1;

}  // namespace

Network::Network(std::string path) : path_(std::move(path)) {
    add({.kind = State::Kind::end});
    add_rule();
}

void Network::count_parts(std::size_t added) {
    if (states_.size() + edges_.size() + targets_.size() + added > kMostParts) {
        throw Error::input({.field = path_,
                            .problem = fmt::format("the schema's automaton has more than the {} "
                                                   "states and edges it may have",
                                                   kMostParts),
                            .remedy = "make enums, patterns or lists of properties shorter"});
    }
}

StateId Network::add(State state) {
    count_parts(1);
    states_.push_back(state);
    return static_cast<StateId>(states_.size() - 1);
}

RuleId Network::add_rule() {
    rules_.push_back(kNoState);
    return static_cast<RuleId>(rules_.size() - 1);
}

StateId Network::reserve() { return add({}); }

void Network::set_bytes(StateId state, std::span<const Edge> edges) {
    count_parts(edges.size());
    const std::size_t first = edges_.size();
    for (const Edge& edge : edges) {
        if (edge.to != kNoState) edges_.push_back(edge);
    }
    states_[state] = {.kind = State::Kind::bytes,
                      .first = static_cast<std::uint32_t>(first),
                      .count = static_cast<std::uint32_t>(edges_.size() - first)};
}

void Network::set_split(StateId state, std::span<const StateId> targets) {
    count_parts(targets.size());
    const std::size_t first = targets_.size();
    for (const StateId target : targets) {
        if (target != kNoState) targets_.push_back(target);
    }
    states_[state] = {.kind = State::Kind::split,
                      .first = static_cast<std::uint32_t>(first),
                      .count = static_cast<std::uint32_t>(targets_.size() - first)};
}

StateId Network::bytes(std::span<const Edge> edges) {
    const StateId state = reserve();
    set_bytes(state, edges);
    return state;
}

StateId Network::range(char low, char high, StateId next) {
    const Edge edge{static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(high), next};
    return bytes({&edge, 1});
}

StateId Network::split(std::span<const StateId> targets) {
    const StateId state = reserve();
    set_split(state, targets);
    return state;
}

StateId Network::call(RuleId rule, StateId next) {
    if (next == kNoState) return reserve();
    return add({.kind = State::Kind::call, .rule = rule, .next = next});
}

StateId Network::repeat(RuleId rule, std::uint32_t least, std::uint32_t most, StateId next) {
    if (next == kNoState) return reserve();
    return add(
        {.kind = State::Kind::repeat, .first = least, .count = most, .rule = rule, .next = next});
}

StateId Network::literal(std::string_view text, StateId next) {
    for (std::size_t i = text.size(); i-- > 0;) next = byte(text[i], next);
    return next;
}

StateId Network::literals(Literals texts) {
    std::stable_sort(texts.begin(), texts.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    // The states along the previous text, with their edges so far.
    struct Open {
        StateId state;
        std::vector<Edge> edges;
        std::vector<StateId> ends;  // successors of texts that end here
    };
    std::vector<Open> path;
    const StateId start = reserve();
    path.push_back({start, {}, {}});
    const auto close = [&](std::size_t depth) {
        while (path.size() > depth + 1) {
            Open& open = path.back();
            if (!open.ends.empty()) {
                if (!open.edges.empty()) open.ends.push_back(bytes(open.edges));
                set_split(open.state, open.ends);
            } else {
                set_bytes(open.state, open.edges);
            }
            path.pop_back();
        }
    };
    const std::string* before = nullptr;
    for (const auto& [text, next] : texts) {
        std::size_t shared = 0;
        while (before && shared < before->size() && shared < text.size() &&
               (*before)[shared] == text[shared]) {
            ++shared;
        }
        close(shared);
        for (std::size_t i = shared; i < text.size(); ++i) {
            const StateId state = reserve();
            const auto at = static_cast<std::uint8_t>(text[i]);
            path.back().edges.push_back({at, at, state});
            path.push_back({state, {}, {}});
        }
        path.back().ends.push_back(next);
        before = &text;
    }
    // A dummy before the first state, so that the first is closed like the others.
    path.insert(path.begin(), Open{start, {}, {}});
    close(0);
    return start;
}

StateId Network::string(std::uint32_t least, std::uint32_t most, StateId next) {
    return byte('"', repeat(character(), least, most, byte('"', next)));
}

RuleId Network::character() {
    if (character_ != ~RuleId{0}) return character_;
    character_ = add_rule();
    const auto hex = [&](StateId next) {
        const Edge edges[] = {{'0', '9', next}, {'A', 'F', next}, {'a', 'f', next}};
        return bytes(edges);
    };
    const StateId hex1 = hex(kEnd), hex2 = hex(hex1), hex3 = hex(hex2);
    // The second half of a surrogate pair: \uDC00 to \uDFFF.
    const Edge low_half[] = {{'C', 'F', hex2}, {'c', 'f', hex2}};
    const Edge d[] = {{'D', 'D', bytes(low_half)}, {'d', 'd', bytes(low_half)}};
    const StateId pair = literal("\\u", bytes(d));
    const StateId pair1 = hex(pair), pair2 = hex(pair1);
    const Edge after_d[] = {
        {'0', '7', hex2}, {'8', '9', pair2}, {'A', 'B', pair2}, {'a', 'b', pair2}};
    const StateId surrogate = bytes(after_d);
    const Edge code[] = {{'0', '9', hex3}, {'A', 'C', hex3}, {'D', 'D', surrogate},
                         {'E', 'F', hex3}, {'a', 'c', hex3}, {'d', 'd', surrogate},
                         {'e', 'f', hex3}};
    const Edge escape[] = {{'"', '"', kEnd}, {'/', '/', kEnd}, {'\\', '\\', kEnd},
                           {'b', 'b', kEnd}, {'f', 'f', kEnd}, {'n', 'n', kEnd},
                           {'r', 'r', kEnd}, {'t', 't', kEnd}, {'u', 'u', bytes(code)}};
    std::vector<Edge> first = {
        {0x20, 0x21, kEnd}, {0x23, 0x5B, kEnd}, {0x5C, 0x5C, bytes(escape)}, {0x5D, 0x7F, kEnd}};
    const std::vector<Edge> more = multibyte(kEnd);
    first.insert(first.end(), more.begin(), more.end());
    define(character_, bytes(first));
    return character_;
}

std::vector<Edge> Network::multibyte(StateId next) {
    const auto part = [&](int low, int high, StateId then) {
        return range(static_cast<char>(low), static_cast<char>(high), then);
    };
    const StateId one = part(0x80, 0xBF, next), two = part(0x80, 0xBF, one),
                  three = part(0x80, 0xBF, two);
    // No overlong forms, no surrogates, nothing past U+10FFFF.
    return {{0xC2, 0xDF, one},   {0xE0, 0xE0, part(0xA0, 0xBF, one)},
            {0xE1, 0xEC, two},   {0xED, 0xED, part(0x80, 0x9F, one)},
            {0xEE, 0xEF, two},   {0xF0, 0xF0, part(0x90, 0xBF, two)},
            {0xF1, 0xF3, three}, {0xF4, 0xF4, part(0x80, 0x8F, two)}};
}

std::uint32_t Network::need_of(const State& state) const {
    std::uint32_t need = kNoWay;
    switch (state.kind) {
        case State::Kind::end:
            return 0;
        case State::Kind::bytes:
            for (const Edge& edge : edges(state)) need = std::min(need, need_[edge.to]);
            return need;
        case State::Kind::split:
            for (const StateId target : targets(state)) need = std::min(need, need_[target]);
            return need;
        case State::Kind::call:
            need = need_[rules_[state.rule]];
            if (state.next == kEnd) return need;  // tail call: no frame to return to
            break;
        case State::Kind::repeat:
            if (state.least() == 0) return need_[state.next];
            need = need_[rules_[state.rule]];
            break;
    }
    return std::min(kNoWay, std::max(need + 1, need_[state.next]));
}

// The least fixed point, by Knuth's generalization of Dijkstra's algorithm: all needs start at "no
// way", and final values spread to preceding states in rising order.
void Network::finish() {
    const std::size_t count = states_.size();
    const auto each_after = [&](StateId id, const auto& tell_state) {
        const State& state = states_[id];
        const auto tell = [&](StateId to) {
            MR_CHECK(to < count, "a state leads to a state of its network");
            tell_state(to);
        };
        if (state.kind == State::Kind::bytes) {
            for (const Edge& edge : edges(state)) tell(edge.to);
        } else if (state.kind == State::Kind::split) {
            for (const StateId target : targets(state)) tell(target);
        } else if (state.kind != State::Kind::end) {
            tell(rules_[state.rule]);
            tell(state.next);
        }
    };
    std::vector<std::uint32_t> first(count + 1, 0);  // start of each state's row in `before`
    for (StateId id = 0; id < count; ++id) each_after(id, [&](StateId to) { ++first[to + 1]; });
    for (std::size_t i = 0; i < count; ++i) first[i + 1] += first[i];
    std::vector<StateId> before(first[count]);
    std::vector<std::uint32_t> filled(first.begin(), first.end() - 1);
    for (StateId id = 0; id < count; ++id) {
        each_after(id, [&](StateId to) { before[filled[to]++] = id; });
    }
    need_.assign(count, kNoWay);
    need_[kEnd] = 0;
    std::vector<StateId> fell[kMostHeight + 1] = {{kEnd}};  // by need; stale entries are skipped
    for (std::uint32_t level = 0; level <= kMostHeight; ++level) {
        while (!fell[level].empty()) {
            const StateId id = fell[level].back();
            fell[level].pop_back();
            if (need_[id] != level) continue;
            for (std::uint32_t i = first[id]; i < first[id + 1]; ++i) {
                const std::uint32_t need = need_of(states_[before[i]]);
                if (need >= need_[before[i]]) continue;
                need_[before[i]] = need;
                fell[need].push_back(before[i]);
            }
        }
    }
    if (need_[rules_[kMain]] > kMostHeight) {
        throw Error::input({.field = path_,
                            .problem = fmt::format("no value of at most {} levels fits this schema",
                                                   kMostHeight + 1),
                            .remedy = "look for required properties that contain themselves, and "
                                      "for keywords that exclude each other"});
    }
}

std::size_t Network::memory() const {
    return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
           targets_.capacity() * sizeof(StateId) + rules_.capacity() * sizeof(StateId) +
           need_.capacity() * sizeof(std::uint32_t);
}

}  // namespace mr::text::grammar
