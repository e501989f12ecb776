// Reads texts back to derivations, and bounds the length of texts.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "lab/story/grammar.h"

namespace mr::story {

// Reads a text back: tries every choice, keeps those whose words match.
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
    struct Frame {  // the rest of a sequence, then the parent's
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

}  // namespace mr::story
