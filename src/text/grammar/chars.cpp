#include "text/grammar/chars.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/utf8.h"

namespace mr::text::grammar {
namespace {

using Span = CharAutomaton::Span;

struct Escape {
    char32_t code;
    char letter;
};
constexpr Escape kEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                               {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

// Converts the spans of one node at a time to states over bytes.
class Utf8Writer {
  public:
    // `quotes`: as in a JSON string.
    Utf8Writer(Network& network, std::span<const StateId> states, bool quotes)
        : network_(network), states_(states), quotes_(quotes) {}

    std::vector<Edge> edges_of(const std::vector<Span>& spans) {
        std::vector<Edge> edges;
        for (unsigned b = 0; b < 0x80; ++b) {
            const bool blank = b == '\t' || b == '\n' || b == '\r';
            if (b < 0x20 && (quotes_ || !blank)) continue;
            if (quotes_ && b == '"') continue;
            if (quotes_ && b == '\\') {
                add_escapes(edges, spans);
            } else if (const Span* span = find(spans, b)) {
                add(edges, b, states_[span->to]);
            }
        }
        const auto several = [&](unsigned from, unsigned to, int more, char32_t low,
                                 char32_t high) {
            const std::vector<Span> part = clipped(spans, low, high);
            for (unsigned b = from; b <= to && !part.empty(); ++b) {
                add(edges, b,
                    rest(part, more, static_cast<char32_t>(b - first_lead(more)) << 6 * more));
            }
        };
        several(0xC2, 0xDF, 1, 0x80, 0x7FF);
        several(0xE0, 0xEF, 2, 0x800, 0xFFFF);
        several(0xF0, 0xF4, 3, 0x10000, 0x10FFFF);
        return edges;
    }

  private:
    static unsigned first_lead(int more) { return more == 1 ? 0xC0 : more == 2 ? 0xE0 : 0xF0; }

    static void add(std::vector<Edge>& edges, unsigned byte, StateId to) {
        if (to == kNoState) return;
        if (!edges.empty() && edges.back().to == to && edges.back().high + 1u == byte) {
            edges.back().high = static_cast<std::uint8_t>(byte);
        } else {
            edges.push_back({static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(byte), to});
        }
    }

    static const Span* find(const std::vector<Span>& spans, char32_t code) {
        const auto at = std::lower_bound(spans.begin(), spans.end(), code,
                                         [](const Span& s, char32_t c) { return s.high < c; });
        return at != spans.end() && at->low <= code ? &*at : nullptr;
    }

    // The spans within low to high, without surrogates, which are no characters.
    static std::vector<Span> clipped(const std::vector<Span>& spans, char32_t low, char32_t high) {
        std::vector<Span> out;
        const auto cut = [&](const Span& span, char32_t from, char32_t to) {
            const Span part{std::max(span.low, from), std::min(span.high, to), span.to};
            if (part.low <= part.high) out.push_back(part);
        };
        for (const Span& span : spans) {
            cut(span, low, std::min<char32_t>(high, 0xD7FF));
            cut(span, std::max<char32_t>(low, 0xE000), high);
        }
        return out;
    }

    void add_escapes(std::vector<Edge>& edges, const std::vector<Span>& spans) {
        std::vector<std::pair<char, StateId>> letters;
        for (const Escape& escape : kEscapes) {
            const Span* span = find(spans, escape.code);
            if (span) letters.emplace_back(escape.letter, states_[span->to]);
        }
        if (letters.empty()) return;
        std::sort(letters.begin(), letters.end());
        auto [known, fresh] = escapes_.emplace(letters, kNoState);
        if (fresh) {
            std::vector<Edge> all;
            for (const auto& [letter, to] : letters) add(all, static_cast<unsigned>(letter), to);
            known->second = network_.bytes(all);
        }
        add(edges, '\\', known->second);
    }

    // Reads `more` bytes of the characters from `base` on; kNoState if none of them is in `spans`.
    StateId rest(const std::vector<Span>& spans, int more, char32_t base) {
        const char32_t last = base + (char32_t{1} << 6 * more) - 1;
        auto at = std::lower_bound(spans.begin(), spans.end(), base,
                                   [](const Span& s, char32_t c) { return s.high < c; });
        if (at == spans.end() || at->low > last) return kNoState;
        const bool alone = std::next(at) == spans.end() || std::next(at)->low > last;
        const Key key{more, std::max(at->low, base) - base, std::min(at->high, last) - base,
                      at->to};
        if (alone) {
            const auto known = alone_.find(key);
            if (known != alone_.end()) return known->second;
        }
        std::vector<Edge> edges;
        for (unsigned b = 0; b < 64; ++b) {
            const char32_t here = base + (char32_t{b} << 6 * (more - 1));
            StateId to = kNoState;
            if (more > 1) {
                to = rest(spans, more - 1, here);
            } else if (const Span* span = find(spans, here)) {
                to = states_[span->to];
            }
            add(edges, 0x80 + b, to);
        }
        const StateId state = network_.bytes(edges);
        if (alone) alone_.emplace(key, state);
        return state;
    }

    Network& network_;
    std::span<const StateId> states_;  // states of the nodes
    const bool quotes_;
    using Key = std::tuple<int, char32_t, char32_t, std::uint32_t>;
    std::map<Key, StateId> alone_;  // single spans, which often repeat
    std::map<std::vector<std::pair<char, StateId>>, StateId> escapes_;
};

}  // namespace

CharAutomaton all_but(std::span<const std::string_view> names) {
    CharAutomaton out;
    out.nodes.push_back({.accepts = true});
    constexpr std::uint32_t kFree = 1;
    out.nodes.push_back({.accepts = true, .anything = true});
    std::vector<std::map<char32_t, std::uint32_t>> children(2);
    for (const std::string_view name : names) {
        std::uint32_t at = 0;
        for (std::size_t i = 0; i < name.size();) {
            const Utf8Char c = utf8_at(name, i);
            i += c.size;
            const auto [child, fresh] =
                children[at].emplace(c.code, static_cast<std::uint32_t>(out.nodes.size()));
            at = child->second;
            if (!fresh) continue;
            out.nodes.push_back({.accepts = true});
            children.emplace_back();
        }
        out.nodes[at].accepts = false;
    }
    for (std::size_t i = 0; i < out.nodes.size(); ++i) {
        if (i == kFree) continue;
        char32_t from = 0;
        const auto until = [&](char32_t code) {
            if (from < code) out.nodes[i].spans.push_back({from, code - 1, kFree});
        };
        for (const auto& [code, to] : children[i]) {
            until(code);
            out.nodes[i].spans.push_back({code, code, to});
            from = code + 1;
        }
        until(0x110000);
    }
    return out;
}

StateId quoted(Network& network, const CharAutomaton& automaton, StateId next) {
    const StateId anything =
        network.repeat(network.character(), 0, kUnbounded, network.byte('"', next));
    std::vector<StateId> states;
    for (const auto& node : automaton.nodes) {
        states.push_back(node.anything ? anything : network.reserve());
    }
    Utf8Writer writer(network, states, true);
    for (std::size_t i = 0; i < automaton.nodes.size(); ++i) {
        const auto& node = automaton.nodes[i];
        if (node.anything) continue;
        std::vector<Edge> edges = writer.edges_of(node.spans);
        if (node.accepts) {
            const auto after = std::find_if(edges.begin(), edges.end(),
                                            [](const Edge& edge) { return edge.low > '"'; });
            edges.insert(after, Edge{'"', '"', next});
        }
        network.set_bytes(states[i], edges);
    }
    return network.byte('"', states.front());
}

StateId unquoted(Network& network, const CharAutomaton& automaton, StateId next) {
    std::vector<StateId> states;
    for (std::size_t i = 0; i < automaton.nodes.size(); ++i) states.push_back(network.reserve());
    Utf8Writer writer(network, states, false);
    for (std::size_t i = 0; i < automaton.nodes.size(); ++i) {
        const auto& node = automaton.nodes[i];
        MR_CHECK(!node.anything, "the automaton of a pattern has all its characters");
        const StateId more = network.bytes(writer.edges_of(node.spans));
        const StateId ways[] = {more, node.accepts ? next : kNoState};
        network.set_split(states[i], ways);
    }
    return states.front();
}

}  // namespace mr::text::grammar
