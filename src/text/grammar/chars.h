// Automata over characters, made from patterns, and their conversion to the bytes of JSON strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/network.h"

namespace mr::text::grammar {

// Deterministic; starts at node 0. Characters without an edge are not allowed.
struct CharAutomaton {
    struct Span {
        char32_t low, high;  // inclusive
        std::uint32_t to;
        bool operator==(const Span&) const = default;
    };
    struct Node {
        bool accepts = false;
        bool anything = false;      // accepts everything that follows; has no spans
        std::vector<Span> spans{};  // disjoint and in order
    };
    std::vector<Node> nodes;
};

// Accepts all strings except these.
CharAutomaton all_but(std::span<const std::string_view> names);

// A string with its quotes. Each character has one spelling: \" \\ \b \f \n \r \t where JSON
// requires an escape, else UTF-8; other control characters are not allowed. Where a node accepts
// anything, any spelling is allowed.
StateId quoted(Network& network, const CharAutomaton& automaton, StateId next);

// The text itself: characters as they are, of control characters only tabs and line ends.
StateId unquoted(Network& network, const CharAutomaton& automaton, StateId next);

}  // namespace mr::text::grammar
