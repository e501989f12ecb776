// What can be said of a grammar without drawing from it: its exact entropy, the derivations of a
// given text, and whether two derivations can ever share a text.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "train/grammar.h"

namespace mr::train {

// Entropy of a derivation H = sum over choices met of E[-ln p]. A choice may depend on records
// bound before it, so the pass carries the joint distribution of the bound records forward through
// the grammar, keeping only variables on which a later choice depends ("live"): for most places
// that is none or one. Records that differ in words alone are exchanged for one representative,
// jointly over all live variables. Both keep the distribution small, and neither approximates
// anything.
class EntropyPass {
  public:
    explicit EntropyPass(const Grammar& grammar)
        : g_(grammar),
          uses_(g_.sequences_.size()),
          binds_(g_.sequences_.size()),
          choices_(g_.sequences_.size()),
          known_(g_.sequences_.size(), false) {
        for (uint32_t s = 0; s < g_.sequences_.size(); ++s) summarize(s);
        find_peers();
    }

    double run() {
        Dist start;
        start[Grammar::Env(g_.variables_.size(), Grammar::kNone)] = 1.0;
        process(g_.start_, start, 0);
        return nats_;
    }

  private:
    using Dist = std::map<Grammar::Env, double>;
    using Mask = uint64_t;
    static_assert(Grammar::kMaxVariables <= 64);
    static Mask bit(uint32_t variable) { return Mask(1) << variable; }

    template <typename Visit>
    void for_each_child(const Grammar::Node& node, Visit visit) const {
        if (node.kind == Grammar::Kind::kRule)
            for (const uint32_t s : g_.rules_[node.id].sequences) visit(s);
        if (node.kind == Grammar::Kind::kSlot)
            for (const uint32_t t : g_.tables_of_[node.id])
                for (const uint32_t r : g_.tables_[t].records) visit(g_.column(node, r));
    }

    // A slot matters to the entropy only when some record puts a choice or a binding there.
    bool is_flat(const Grammar::Node& slot) {
        bool flat = true;
        for_each_child(slot, [&](uint32_t s) {
            summarize(s);
            flat = flat && !choices_[s] && binds_[s] == 0 && uses_[s] == 0;
        });
        return flat;
    }

    // For each sequence: variables that decide its choices, variables it binds, has it choices.
    void summarize(uint32_t sequence) {
        if (known_[sequence]) return;
        known_[sequence] = true;
        for (const Grammar::Node& node : g_.sequences_[sequence]) {
            Mask uses = 0, binds = 0;
            bool choices = false;
            if (node.kind == Grammar::Kind::kBind) {
                binds |= bit(node.id);
                for (const uint32_t v : node.exclude) uses |= bit(v);
                choices = true;
            } else {
                for_each_child(node, [&](uint32_t s) {
                    summarize(s);
                    uses |= uses_[s];
                    binds |= binds_[s];
                    choices = choices || choices_[s];
                });
                if (node.kind == Grammar::Kind::kSlot && !is_flat(node)) uses |= bit(node.id);
                if (node.kind == Grammar::Kind::kRule)
                    choices = choices || g_.rules_[node.id].sequences.size() > 1;
            }
            uses_[sequence] |= uses;
            binds_[sequence] |= binds;
            choices_[sequence] = choices_[sequence] || choices;
        }
    }

    // Records of a table are peers when they weigh the same and every column that is their own
    // holds mere words: swapping two peers then changes no probability and no later choice.
    void find_peers() {
        peers_.resize(g_.records_.size());
        for (const Grammar::Table& table : g_.tables_) {
            for (const uint32_t a : table.records) {
                for (const uint32_t b : table.records) {
                    const bool same =
                        table.weights[g_.records_[a].row] == table.weights[g_.records_[b].row];
                    if (a == b || (same && wordy(table, a) && wordy(table, b)))
                        peers_[a].push_back(b);
                }
            }
        }
    }

    bool wordy(const Grammar::Table& table, uint32_t record) const {
        for (uint32_t c = 0; c < table.own_columns; ++c) {
            const uint32_t s = g_.records_[record].columns[Grammar::kPlain][c];
            if (choices_[s] || uses_[s] != 0 || binds_[s] != 0) return false;
        }
        return true;
    }

    // Keeps live variables only, and renames their records: the first of a kind met becomes the
    // first of its peers, the next one the second, and so on. A permutation of peers, so exact.
    Grammar::Env canonical(const Grammar::Env& env, Mask live) const {
        Grammar::Env out(env.size(), Grammar::kNone);
        for (uint32_t v = 0; v < env.size(); ++v) {
            if (!(live & bit(v)) || env[v] == Grammar::kNone) continue;
            const std::vector<uint32_t>& peers = peers_[env[v]];
            size_t used = 0;
            for (uint32_t w = 0; w < v && out[v] == Grammar::kNone; ++w) {
                if (out[w] == Grammar::kNone) continue;
                if (env[w] == env[v]) out[v] = out[w];
                if (first_time(env, live, w) && peers_[env[w]] == peers) ++used;
            }
            if (out[v] == Grammar::kNone) out[v] = peers[used];
        }
        return out;
    }

    static bool first_time(const Grammar::Env& env, Mask live, uint32_t w) {
        for (uint32_t u = 0; u < w; ++u)
            if ((live & bit(u)) && env[u] == env[w]) return false;
        return true;
    }

    Dist reduce(const Dist& dist, Mask live) const {
        Dist out;
        for (const auto& [env, p] : dist) out[canonical(env, live)] += p;
        return out;
    }

    Mask uses_of(const Grammar::Node& node) {
        Mask uses = 0;
        if (node.kind == Grammar::Kind::kBind)
            for (const uint32_t v : node.exclude) uses |= bit(v);
        for_each_child(node, [&](uint32_t s) { uses |= uses_[s]; });
        if (node.kind == Grammar::Kind::kSlot && !is_flat(node)) uses |= bit(node.id);
        return uses;
    }

    static double mass(const Dist& dist) {
        double sum = 0;
        for (const auto& [env, p] : dist) sum += p;
        return sum;
    }

    static void add(Dist& to, const Dist& from) {
        for (const auto& [env, p] : from) to[env] += p;
    }

    // Carries `dist` through a sequence; `live` are the variables needed after it.
    Dist process(uint32_t sequence, Dist dist, Mask live) {
        const Grammar::Sequence& nodes = g_.sequences_[sequence];
        const Mask keep = live | uses_[sequence];
        dist = reduce(dist, keep);
        std::vector<Mask> after(nodes.size(), live);
        for (size_t i = nodes.size(); i-- > 1;) after[i - 1] = after[i] | uses_of(nodes[i]);
        for (size_t i = 0; i < nodes.size(); ++i) {
            dist = reduce(step(nodes[i], dist, after[i]), after[i]);
        }
        return dist;
    }

    Dist step(const Grammar::Node& node, const Dist& dist, Mask live) {
        switch (node.kind) {
            case Grammar::Kind::kText:
                return dist;
            case Grammar::Kind::kRule:
                return step_rule(node, dist, live);
            case Grammar::Kind::kBind:
                return step_bind(node, dist, live);
            case Grammar::Kind::kSlot:
                break;
        }
        if (is_flat(node)) return dist;
        std::map<uint32_t, Dist> by_sequence;
        for (const auto& [env, p] : dist) by_sequence[g_.column(node, env[node.id])][env] += p;
        Dist out;
        for (auto& [sequence, part] : by_sequence) add(out, process(sequence, part, live));
        return out;
    }

    Dist step_rule(const Grammar::Node& node, const Dist& dist, Mask live) {
        const Grammar::Rule& rule = g_.rules_[node.id];
        Mask uses = 0, binds = 0;
        for (const uint32_t s : rule.sequences) {
            uses |= uses_[s];
            binds |= binds_[s];
        }
        const double total = mass(dist);
        // Does the rule stand alone, its entropy is one number, whatever came before.
        const bool alone = uses == 0 && (binds & live) == 0;
        if (alone) {
            const auto known = alone_.find(node.id);
            if (known != alone_.end()) {
                nats_ += total * known->second;
                return dist;
            }
        }
        const double before = nats_;
        Dist out;
        for (size_t i = 0; i < rule.sequences.size(); ++i) {
            const double p = double(rule.weights[i]) / rule.total;
            nats_ += total * p * rule.nats[i];
            Dist scaled = dist;
            for (auto& [env, q] : scaled) q *= p;
            add(out, process(rule.sequences[i], std::move(scaled), live));
        }
        if (alone) alone_[node.id] = (nats_ - before) / total;
        return out;
    }

    Dist step_bind(const Grammar::Node& node, const Dist& dist, Mask live) {
        const Grammar::Table& table = g_.tables_[node.arg];
        Dist out;
        for (const auto& [env, p] : dist) {
            std::vector<uint32_t> weights = table.weights;
            double total = table.total;
            for (const uint32_t v : node.exclude) {
                if (env[v] == Grammar::kNone || g_.records_[env[v]].table != node.arg) continue;
                uint32_t& weight = weights[g_.records_[env[v]].row];
                total -= weight;
                weight = 0;
            }
            for (size_t i = 0; i < weights.size(); ++i) {
                if (weights[i] == 0) continue;
                const double q = weights[i] / total;
                nats_ -= p * q * std::log(q);
                Grammar::Env bound = env;
                if (live & bit(node.id)) bound[node.id] = table.records[i];
                out[bound] += p * q;
            }
        }
        return out;
    }

    const Grammar& g_;
    std::vector<Mask> uses_, binds_;
    std::vector<bool> choices_, known_;
    std::vector<std::vector<uint32_t>>
        peers_;  // record -> interchangeable records, itself included
    std::map<uint32_t, double> alone_;
    double nats_ = 0;
};

double Grammar::entropy_nats() const { return EntropyPass(*this).run(); }

// Reads a text back: tries every choice, keeps those whose words agree.
class Reader {
  public:
    Reader(const Grammar& grammar, std::vector<uint32_t> tokens)
        : g_(grammar), tokens_(std::move(tokens)), env_(g_.variables_.size(), Grammar::kNone) {}

    Grammar::Reading run() {
        const Frame start{g_.start_, 0, nullptr};
        follow(&start, 0, 0.0);
        reading_.nats = -std::log(probability_);
        return reading_;
    }

  private:
    struct Frame {  // what is still to be read: the rest of a sequence, then the parent's
        uint32_t sequence;
        size_t next;
        const Frame* parent;
    };

    void follow(const Frame* frame, size_t at, double nats) {
        while (frame && frame->next == g_.sequences_[frame->sequence].size()) frame = frame->parent;
        if (!frame) {
            if (at != tokens_.size()) return;
            ++reading_.derivations;
            probability_ += std::exp(-nats);
            return;
        }
        const Grammar::Node& node = g_.sequences_[frame->sequence][frame->next];
        const Frame rest{frame->sequence, frame->next + 1, frame->parent};
        switch (node.kind) {
            case Grammar::Kind::kText: {
                const auto& words = g_.texts_[node.id].tokens;
                if (tokens_.size() - at < words.size() ||
                    !std::equal(words.begin(), words.end(), tokens_.begin() + at))
                    return;
                follow(&rest, at + words.size(), nats);
                return;
            }
            case Grammar::Kind::kRule: {
                const Grammar::Rule& rule = g_.rules_[node.id];
                for (size_t i = 0; i < rule.sequences.size(); ++i) {
                    const Frame inner{rule.sequences[i], 0, &rest};
                    follow(&inner, at, nats + rule.nats[i]);
                }
                return;
            }
            case Grammar::Kind::kBind: {
                const Grammar::Table& table = g_.tables_[node.arg];
                std::vector<uint32_t> weights = table.weights;
                double total = table.total;
                for (const uint32_t v : node.exclude) {
                    const uint32_t bound = env_[v];
                    if (bound == Grammar::kNone || g_.records_[bound].table != node.arg) continue;
                    total -= weights[g_.records_[bound].row];
                    weights[g_.records_[bound].row] = 0;
                }
                const uint32_t saved = env_[node.id];
                for (size_t i = 0; i < weights.size(); ++i) {
                    if (weights[i] == 0) continue;
                    env_[node.id] = table.records[i];
                    follow(&rest, at, nats + std::log(total) - std::log(double(weights[i])));
                }
                env_[node.id] = saved;
                return;
            }
            case Grammar::Kind::kSlot: {
                const Frame inner{g_.column(node, env_[node.id]), 0, &rest};
                follow(&inner, at, nats);
                return;
            }
        }
    }

    const Grammar& g_;
    std::vector<uint32_t> tokens_;
    Grammar::Env env_;
    Grammar::Reading reading_;
    double probability_ = 0;
};

Grammar::Reading Grammar::read(std::string_view text) const {
    return Reader(*this, tokenize(text)).run();
}

// Two derivations of one text agree up to a first choice at which they part. So it suffices to
// show, at every choice and for every two outcomes, that the texts which can follow must differ.
// The pass walks both continuations a word at a time and in lockstep, all possibilities of either
// side, until they disagree. If they instead come to the same remaining nodes, or to the end of the
// story, without having differed, the choice was not visible in the text, and that is reported.
// Slots of variables bound after the parting are taken to hold any record: this only adds
// possibilities, so an empty report stays a proof.
class AmbiguityPass {
  public:
    explicit AmbiguityPass(const Grammar& grammar) : g_(grammar) {}

    std::vector<std::string> run() {
        visit(frame(g_.start_, 0, kEnd), 0);
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
    struct Frame {
        uint32_t sequence, next, parent;
        uint32_t word;  // position inside a text node
    };

    // Equal continuations get equal ids, so that they can be compared and remembered.
    uint32_t frame(uint32_t sequence, uint32_t next, uint32_t parent, uint32_t word = 0) {
        if (next == g_.sequences_[sequence].size()) return parent;  // which is normal, or the end
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

    // Continuations after each way to expand the node at `id`.
    std::vector<uint32_t> expansions(uint32_t id) {
        const Grammar::Node& node = node_of(id);
        const uint32_t rest = rest_of(id);
        std::vector<uint32_t> out;
        const auto enter = [&](uint32_t sequence) { out.push_back(frame(sequence, 0, rest)); };
        if (node.kind == Grammar::Kind::kRule)
            for (const uint32_t s : g_.rules_[node.id].sequences) enter(s);
        if (node.kind == Grammar::Kind::kBind) return records_of(id);
        if (node.kind == Grammar::Kind::kSlot)
            for (const uint32_t t : g_.tables_of_[node.id])
                for (const uint32_t r : g_.tables_[t].records) enter(g_.column(node, r));
        return out;
    }

    // The same for a binding, one for each record. The compiler puts the slot that prints the
    // record right behind its binding, so the two are expanded as one.
    std::vector<uint32_t> records_of(uint32_t id) {
        const Grammar::Table& table = g_.tables_[node_of(id).arg];
        const uint32_t at = rest_of(id);
        const Grammar::Node& slot = node_of(at);
        const uint32_t after = rest_of(at);
        std::vector<uint32_t> out;
        for (const uint32_t r : table.records) out.push_back(frame(g_.column(slot, r), 0, after));
        return out;
    }

    // Visits every choice of the grammar in each of its contexts.
    void visit(uint32_t id, Mask bound) {
        if (id == kEnd || !seen_.insert({id, bound}).second) return;
        const Grammar::Node& node = node_of(id);
        const uint32_t rest = rest_of(id);
        switch (node.kind) {
            case Grammar::Kind::kText:
                visit(rest, bound);
                return;
            case Grammar::Kind::kRule: {
                const Grammar::Rule& rule = g_.rules_[node.id];
                std::vector<uint32_t> starts;
                for (const uint32_t s : rule.sequences) starts.push_back(frame(s, 0, rest));
                part(starts, bound, rule.name);
                for (const uint32_t s : starts) visit(s, bound);
                return;
            }
            case Grammar::Kind::kBind: {
                const Mask now = bound | Mask(1) << node.id;
                if (now == bound) report_.insert(g_.variables_[node.id] + ": bound twice");
                const std::vector<uint32_t> starts = records_of(id);
                part(starts, bound, g_.tables_[node.arg].name);
                for (const uint32_t s : starts) visit(s, now);
                return;
            }
            case Grammar::Kind::kSlot:
                for (const uint32_t next : expansions(id)) visit(next, bound);
                return;
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

    // The words a node can begin with, as a set; `maybe_empty` when it may also print nothing.
    struct First {
        std::vector<bool> words;
        bool maybe_empty = false;
    };

    const First& first(const Grammar::Node& node) {
        const auto found = firsts_.find(&node);
        if (found != firsts_.end()) return found->second;
        First out{std::vector<bool>(g_.words_.size(), false), false};
        const auto join = [&](uint32_t sequence) {
            const Grammar::Sequence& nodes = g_.sequences_[sequence];
            for (size_t i = 0; i < nodes.size(); ++i) {
                if (nodes[i].kind == Grammar::Kind::kBind) ++i;  // its slot speaks for it, loosely
                const First& next = first(nodes[i]);
                for (size_t w = 0; w < next.words.size(); ++w)
                    if (next.words[w]) out.words[w] = true;
                if (!next.maybe_empty) return;
            }
            out.maybe_empty = true;
        };
        switch (node.kind) {
            case Grammar::Kind::kText: {
                const auto& tokens = g_.texts_[node.id].tokens;
                if (tokens.empty()) {
                    out.maybe_empty = true;
                } else {
                    out.words[tokens[0]] = true;
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

    // The common case, not worth remembering: no word can begin both.
    bool part_at_once(uint32_t a, uint32_t b) {
        const auto token_at = [&](uint32_t id) {
            const Grammar::Node& node = node_of(id);
            if (node.kind != Grammar::Kind::kText) return Grammar::kNone;
            const auto& tokens = g_.texts_[node.id].tokens;
            return frames_[id].word < tokens.size() ? tokens[frames_[id].word] : Grammar::kNone;
        };
        const uint32_t x = token_at(a), y = token_at(b);
        if (x != Grammar::kNone && y != Grammar::kNone) return x != y;
        if (x == Grammar::kNone && y == Grammar::kNone) return false;
        const First& other = first(node_of(x == Grammar::kNone ? a : b));
        return !other.maybe_empty && !other.words[x == Grammar::kNone ? y : x];
    }

    // Can this continuation only end with more words? Conservative: an expansion might be empty.
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
            if (g_.texts_[x.id].tokens.empty()) return differ(rest_of(a), b);  // a text of blanks
            if (g_.texts_[y.id].tokens.empty()) return differ(a, rest_of(b));
            return differ(step(a), step(b));
        }
        // The same variable, bound before the parting: both sides print the same record.
        if (x.kind == Grammar::Kind::kSlot && y.kind == Grammar::Kind::kSlot && x.id == y.id &&
            x.arg == y.arg && x.form == y.form && (walked_bound_ >> x.id & 1) && plain(x))
            return differ(rest_of(a), rest_of(b));
        for (const uint32_t next : text_a ? expansions(b) : expansions(a))
            if (!differ(text_a ? a : next, text_a ? next : b)) return false;
        return true;
    }

    uint32_t step(uint32_t id) {
        const Frame f = frames_[id];
        const Grammar::Text& text = g_.texts_[node_of(id).id];
        if (f.word + 1 < text.tokens.size()) return frame(f.sequence, f.next, f.parent, f.word + 1);
        return rest_of(id);
    }

    // Does every record put mere words into this slot?
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
    std::unordered_set<Key, Hash> seen_;
    using Walked = std::unordered_map<Key, bool, Hash>;
    std::map<Mask, Walked> walked_by_bound_;  // what is known of two continuations
    Walked* walked_ = nullptr;
    Mask walked_bound_ = 0;  // variables bound before the parting
    std::unordered_map<const Grammar::Node*, First> firsts_;
    std::set<std::string> report_;
};

Grammar::Span Grammar::words() const {
    std::vector<Span> known(sequences_.size(), Span{0, 0});
    std::vector<bool> done(sequences_.size(), false);
    const auto visit = [&](const auto& self, uint32_t sequence) -> Span {
        if (done[sequence]) return known[sequence];
        Span sum;
        for (const Node& node : sequences_[sequence]) {
            Span span{std::numeric_limits<uint32_t>::max(), 0};
            const auto option = [&](const Span& s) {
                span = {std::min(span.least, s.least), std::max(span.most, s.most)};
            };
            if (node.kind == Kind::kText) {
                const auto& tokens = texts_[node.id].tokens;
                const auto is_word = [&](uint32_t t) { return std::isalnum(words_[t][0]) != 0; };
                const auto n = std::count_if(tokens.begin(), tokens.end(), is_word);
                option({static_cast<uint32_t>(n), static_cast<uint32_t>(n)});
            } else if (node.kind == Kind::kRule) {
                for (const uint32_t s : rules_[node.id].sequences) option(self(self, s));
            } else if (node.kind == Kind::kSlot) {
                for (const uint32_t t : tables_of_[node.id])
                    for (const uint32_t r : tables_[t].records) option(self(self, column(node, r)));
            } else {
                option({0, 0});
            }
            sum = {sum.least + span.least, sum.most + span.most};
        }
        done[sequence] = true;
        return known[sequence] = sum;
    };
    return visit(visit, start_);
}

std::vector<std::string> Grammar::ambiguities() const { return AmbiguityPass(*this).run(); }

}  // namespace mr::train
