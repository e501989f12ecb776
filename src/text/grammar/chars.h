// Automata over characters, as patterns give them, and their form over the bytes of JSON strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/network.h"

namespace mr::text::grammar {

// Deterministic, begins at node 0. Characters that no edge takes are not allowed.
struct CharAutomaton {
    struct Span {
        char32_t low, high;  // both included
        std::uint32_t to;
        bool operator==(const Span&) const = default;
    };
    struct Node {
        bool accepts = false;
        bool anything = false;      // whatever follows is accepted, and there are no spans
        std::vector<Span> spans{};  // disjoint and in order
    };
    std::vector<Node> nodes;
};

// All strings but these.
CharAutomaton all_but(std::span<const std::string_view> names);

// A string with its quotes. Characters are spelled in one way: \" \\ \b \f \n \r \t where JSON asks
// for an escape, and UTF-8; other control characters are left out. Where a node accepts anything,
// any spelling is allowed.
StateId quoted(Network& network, const CharAutomaton& automaton, StateId next);

}  // namespace mr::text::grammar
