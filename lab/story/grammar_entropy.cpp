// The exact entropy of a grammar, without drawing from it.
#include <cmath>
#include <map>

#include "lab/story/grammar.h"

namespace mr::story {

// Entropy of a derivation: H = sum over choices met of E[-ln p]. A choice may depend on
// records bound before it, so the pass carries the joint distribution of the bound records
// forward through the grammar, keeping only variables on which a later choice depends
// ("live"): usually none or one. Records that differ only in words are replaced by one
// representative, jointly over all live variables. Both keep the distribution small, and
// neither is an approximation.
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

    // A slot affects the entropy only if some record has a choice or a binding there.
    bool is_flat(const Grammar::Node& slot) {
        bool flat = true;
        for_each_child(slot, [&](uint32_t s) {
            summarize(s);
            flat = flat && !choices_[s] && binds_[s] == 0 && uses_[s] == 0;
        });
        return flat;
    }

    // For each sequence: variables that decide its choices, variables it binds, whether it has
    // choices.
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

    // Records of a table are peers if they have the same weight and all their own columns hold only
    // words: swapping two peers then changes no probability and no later choice.
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

    // Keeps only live variables, and renames their records: the first record met becomes the first
    // of its peers, the next one the second, and so on. This permutes peers, so it is exact.
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
        // If the rule is independent of its context, its entropy is one number.
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
        const bool kept = (live & bit(node.id)) != 0;
        if (!kept && node.exclude.empty()) {  // independent of the context: one number
            double nats = 0;
            for (size_t i = 0; i < table.weights.size(); ++i)
                nats += double(table.weights[i]) / table.total * table.nats[i];
            nats_ += mass(dist) * nats;
            return dist;
        }
        Dist out;
        std::vector<uint32_t> weights;
        for (const auto& [env, p] : dist) {
            weights = table.weights;
            double total = table.total;
            for (const uint32_t v : node.exclude) {
                if (env[v] == Grammar::kNone || g_.records_[env[v]].table != node.arg) continue;
                uint32_t& weight = weights[g_.records_[env[v]].row];
                total -= weight;
                weight = 0;
            }
            Grammar::Env bound = env;
            for (size_t i = 0; i < weights.size(); ++i) {
                if (weights[i] == 0) continue;
                const double q = weights[i] / total;
                nats_ -= p * q * std::log(q);
                if (!kept) continue;
                bound[node.id] = table.records[i];
                out[bound] += p * q;
            }
            if (!kept) out[env] += p;
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

}  // namespace mr::story
