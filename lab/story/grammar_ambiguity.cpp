// Checks whether two derivations of a grammar can have the same text.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lab/story/grammar.h"

namespace mr::story {

// Two derivations of one text agree up to a first choice at which they diverge. So it suffices to
// show, for every choice and every two outcomes, that the texts that can follow must differ. The
// pass walks both continuations word by word in lockstep, over all possibilities of both sides,
// until they differ. If instead they reach the same remaining nodes, or the end of the story,
// without a difference, the choice is not visible in the text, and is reported. Slots of variables
// bound after the divergence may hold any record: this only adds possibilities, so an empty report
// is still a proof.
class AmbiguityPass {
  public:
    explicit AmbiguityPass(const Grammar& grammar) : g_(grammar) {}

    std::vector<std::string> run() {
        const uint32_t start = frame(g_.start_, 0, kEnd);
        collect(start);
        // Topological order: all predecessors of a place come before it.
        std::map<uint32_t, Bound> bound;
        bound[start] = {0, 0};
        for (size_t i = order_.size(); i-- > 0;) {
            const uint32_t id = order_[i];
            const Bound here = bound.at(id);
            check(id, here);
            const Mask adds = node_of(id).kind == Grammar::Kind::kBind ? bit(node_of(id).id) : 0;
            for (const uint32_t next : expansions(id)) {
                if (next == kEnd) continue;
                Bound& there = bound.try_emplace(next, Bound{~Mask(0), 0}).first->second;
                there.surely &= here.surely | adds;
                there.maybe |= here.maybe | adds;
            }
        }
        return {report_.begin(), report_.end()};
    }

  private:
    using Mask = uint64_t;
    using Key = std::pair<uint64_t, uint64_t>;
    struct Hash {
        size_t operator()(const Key& k) const {
            const uint64_t h = (k.first ^ k.second << 21) * 0x9e3779b97f4a7c15ull + k.second;
            return static_cast<size_t>(h ^ h >> 29);
        }
    };
    static constexpr uint32_t kEnd = 0xffffffffu;
    static Mask bit(uint32_t variable) { return Mask(1) << variable; }
    struct Frame {
        uint32_t sequence, next, parent;
        uint32_t word;  // position inside a text node
    };

    // Equal continuations get equal ids, so that they can be compared and remembered.
    uint32_t frame(uint32_t sequence, uint32_t next, uint32_t parent, uint32_t word = 0) {
        if (next == g_.sequences_[sequence].size()) return parent;  // normalised, or the end
        const Key key{uint64_t(sequence) << 32 | next, uint64_t(parent) << 32 | word};
        const auto [it, added] = ids_.emplace(key, static_cast<uint32_t>(frames_.size()));
        if (added) frames_.push_back({sequence, next, parent, word});
        return it->second;
    }

    uint32_t rest_of(uint32_t id) {
        const Frame f = frames_[id];
        return frame(f.sequence, f.next + 1, f.parent);
    }

    const Grammar::Node& node_of(uint32_t id) const {
        return g_.sequences_[frames_[id].sequence][frames_[id].next];
    }

    // The sequences that the node at `id` may expand to, and what follows them. A text has none.
    // The compiler puts the slot that prints a record right after its binding, so the two are
    // expanded as one.
    std::vector<uint32_t> children(uint32_t id, uint32_t& rest) {
        const Grammar::Node& node = node_of(id);
        rest = rest_of(id);
        if (node.kind == Grammar::Kind::kRule) return g_.rules_[node.id].sequences;
        std::vector<uint32_t> out;
        if (node.kind == Grammar::Kind::kBind) {
            const Grammar::Node& slot = node_of(rest);
            rest = rest_of(rest);
            for (const uint32_t r : g_.tables_[node.arg].records) out.push_back(g_.column(slot, r));
        }
        if (node.kind == Grammar::Kind::kSlot)
            for (const uint32_t t : g_.tables_of_[node.id])
                for (const uint32_t r : g_.tables_[t].records) out.push_back(g_.column(node, r));
        if (node.kind == Grammar::Kind::kSlot) {  // no choice: equal spellings count once
            std::sort(out.begin(), out.end());
            out.erase(std::unique(out.begin(), out.end()), out.end());
        }
        return out;
    }

    // Continuations after each way to expand the node at `id`.
    std::vector<uint32_t> expansions(uint32_t id) {
        uint32_t rest = 0;
        std::vector<uint32_t> out = children(id, rest);
        for (uint32_t& sequence : out) sequence = frame(sequence, 0, rest);
        if (node_of(id).kind == Grammar::Kind::kText) out.push_back(rest);
        return out;
    }

    // Every place of the grammar in each of its contexts, later ones first.
    void collect(uint32_t id) {
        if (id == kEnd || !seen_.insert(id).second) return;
        for (const uint32_t next : expansions(id)) collect(next);
        order_.push_back(id);
    }

    // Variables bound when a place is reached: on every path to it, on some path to it.
    struct Bound {
        Mask surely = 0, maybe = 0;
    };

    void check(uint32_t id, const Bound& bound) {
        const Grammar::Node& node = node_of(id);
        if (node.kind == Grammar::Kind::kRule)
            part(expansions(id), bound.surely, g_.rules_[node.id].name);
        if (node.kind == Grammar::Kind::kBind) {
            if (bound.maybe & bit(node.id))
                report_.insert(g_.variables_[node.id] + ": bound twice");
            part(expansions(id), bound.surely, g_.tables_[node.arg].name);
        }
    }

    void part(const std::vector<uint32_t>& starts, Mask bound, const std::string& name) {
        walked_bound_ = bound;
        walked_ = &walked_by_bound_[bound];
        for (size_t i = 0; i < starts.size(); ++i)
            for (size_t j = i + 1; j < starts.size(); ++j)
                if (!differ(starts[i], starts[j]))
                    report_.insert(name + ": outcomes " + std::to_string(i + 1) + " and " +
                                   std::to_string(j + 1));
    }

    // Must every text of continuation `a` differ from every text of `b`?
    bool differ(uint32_t a, uint32_t b) {
        if (a == b) return false;
        if (a == kEnd || b == kEnd) return only_text(a == kEnd ? b : a);
        if (a > b) std::swap(a, b);
        if (part_at_once(a, b)) return true;
        const auto [it, added] = walked_->emplace(Key{a, b}, true);
        if (!added) return it->second;
        const bool result = differ_now(a, b);
        (*walked_)[Key{a, b}] = result;
        return result;
    }

    // The words a node or a sequence can begin with, as a bit set; `maybe_empty` if it may also
    // print nothing.
    struct First {
        std::vector<uint64_t> words;
        bool maybe_empty = false;

        bool has(uint32_t word) const { return words[word / 64] >> word % 64 & 1; }
        void add(const First& other) {
            for (size_t i = 0; i < words.size(); ++i) words[i] |= other.words[i];
        }
        bool meets(const First& other) const {
            for (size_t i = 0; i < words.size(); ++i)
                if (words[i] & other.words[i]) return true;
            return false;
        }
    };
    First no_words() const { return {std::vector<uint64_t>(g_.words_.size() / 64 + 1, 0), false}; }

    const First& first_of(uint32_t sequence) {
        const auto found = sequence_firsts_.find(sequence);
        if (found != sequence_firsts_.end()) return found->second;
        First out = no_words();
        const Grammar::Sequence& nodes = g_.sequences_[sequence];
        out.maybe_empty = true;
        for (size_t i = 0; i < nodes.size() && out.maybe_empty; ++i) {
            if (nodes[i].kind == Grammar::Kind::kBind) ++i;  // its slot stands for it
            const First& next = first(nodes[i]);
            out.add(next);
            out.maybe_empty = next.maybe_empty;
        }
        return sequence_firsts_.emplace(sequence, std::move(out)).first->second;
    }

    const First& first(const Grammar::Node& node) {
        const auto found = firsts_.find(&node);
        if (found != firsts_.end()) return found->second;
        First out = no_words();
        const auto join = [&](uint32_t sequence) {
            const First& next = first_of(sequence);
            out.add(next);
            out.maybe_empty = out.maybe_empty || next.maybe_empty;
        };
        switch (node.kind) {
            case Grammar::Kind::kText: {
                const auto& tokens = g_.texts_[node.id].tokens;
                if (tokens.empty()) {
                    out.maybe_empty = true;
                } else {
                    out.words[tokens[0] / 64] |= uint64_t(1) << tokens[0] % 64;
                }
                break;
            }
            case Grammar::Kind::kRule:
                for (const uint32_t s : g_.rules_[node.id].sequences) join(s);
                break;
            case Grammar::Kind::kBind:
                out.maybe_empty = true;
                break;
            case Grammar::Kind::kSlot:
                for (const uint32_t t : g_.tables_of_[node.id])
                    for (const uint32_t r : g_.tables_[t].records) join(g_.column(node, r));
                break;
        }
        return firsts_.emplace(&node, std::move(out)).first->second;
    }

    // The word a continuation begins with, if it begins with a text; else kNone.
    uint32_t token_at(uint32_t id) const {
        const Grammar::Node& node = node_of(id);
        if (node.kind != Grammar::Kind::kText) return Grammar::kNone;
        const auto& tokens = g_.texts_[node.id].tokens;
        return frames_[id].word < tokens.size() ? tokens[frames_[id].word] : Grammar::kNone;
    }

    // The common case, not worth caching: no word can begin both.
    bool part_at_once(uint32_t a, uint32_t b) {
        const uint32_t x = token_at(a), y = token_at(b);
        if (x != Grammar::kNone && y != Grammar::kNone) return x != y;
        if (x != Grammar::kNone) return lacks(first(node_of(b)), x);
        if (y != Grammar::kNone) return lacks(first(node_of(a)), y);
        const First &of_a = first(node_of(a)), &of_b = first(node_of(b));
        return !of_a.maybe_empty && !of_b.maybe_empty && !of_a.meets(of_b);
    }
    static bool lacks(const First& first, uint32_t word) {
        return !first.maybe_empty && !first.has(word);
    }

    // Whether this continuation must print more words. Conservative: an expansion might be empty.
    bool only_text(uint32_t id) {
        if (id == kEnd) return false;
        const Grammar::Node& node = node_of(id);
        if (node.kind == Grammar::Kind::kText)
            return !g_.texts_[node.id].tokens.empty() || only_text(rest_of(id));
        for (const uint32_t next : expansions(id))
            if (!only_text(next)) return false;
        return true;
    }

    bool differ_now(uint32_t a, uint32_t b) {
        const Grammar::Node& x = node_of(a);
        const Grammar::Node& y = node_of(b);
        const bool text_a = x.kind == Grammar::Kind::kText, text_b = y.kind == Grammar::Kind::kText;
        if (text_a && text_b) {
            if (g_.texts_[x.id].tokens.empty()) return differ(rest_of(a), b);  // only blanks
            if (g_.texts_[y.id].tokens.empty()) return differ(a, rest_of(b));
            return differ(step(a), step(b));
        }
        // The same variable, bound before the divergence: both sides print the same record.
        if (x.kind == Grammar::Kind::kSlot && y.kind == Grammar::Kind::kSlot && x.id == y.id &&
            x.arg == y.arg && x.form == y.form && (walked_bound_ >> x.id & 1) && plain(x))
            return differ(rest_of(a), rest_of(b));
        // Expands one side. Expansions that cannot begin like the other side are dropped.
        const uint32_t opened = text_a ? b : a, other = text_a ? a : b;
        const uint32_t word = token_at(other);
        const First* begin = word == Grammar::kNone ? &first(node_of(other)) : nullptr;
        uint32_t rest = 0;
        for (const uint32_t sequence : children(opened, rest)) {
            const First& here = first_of(sequence);
            const bool apart = begin
                                   ? !here.maybe_empty && !begin->maybe_empty && !here.meets(*begin)
                                   : lacks(here, word);
            if (!apart && !differ(frame(sequence, 0, rest), other)) return false;
        }
        return true;
    }

    uint32_t step(uint32_t id) {
        const Frame f = frames_[id];
        const Grammar::Text& text = g_.texts_[node_of(id).id];
        if (f.word + 1 < text.tokens.size()) return frame(f.sequence, f.next, f.parent, f.word + 1);
        return rest_of(id);
    }

    // Whether every record has only words in this slot.
    bool plain(const Grammar::Node& slot) {
        for (const uint32_t t : g_.tables_of_[slot.id])
            for (const uint32_t r : g_.tables_[t].records)
                for (const Grammar::Node& node : g_.sequences_[g_.column(slot, r)])
                    if (node.kind != Grammar::Kind::kText) return false;
        return true;
    }

    const Grammar& g_;
    std::deque<Frame> frames_;
    std::unordered_map<Key, uint32_t, Hash> ids_;
    std::unordered_set<uint32_t> seen_;
    std::vector<uint32_t> order_;
    using Walked = std::unordered_map<Key, bool, Hash>;
    std::map<Mask, Walked> walked_by_bound_;  // cached results
    Walked* walked_ = nullptr;
    Mask walked_bound_ = 0;  // variables bound before the divergence
    std::unordered_map<const Grammar::Node*, First> firsts_;
    std::unordered_map<uint32_t, First> sequence_firsts_;
    std::set<std::string> report_;
};

std::vector<std::string> Grammar::ambiguities() const { return AmbiguityPass(*this).run(); }

}  // namespace mr::story
