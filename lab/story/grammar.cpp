#include "lab/story/grammar.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace mr::story {

namespace {

// SplitMix64's finalizer: a bijection of 64 bits; every input bit affects every output bit.
uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

}  // namespace

Dice::Dice(uint64_t seed, uint64_t stream)
    : key_(mix(mix(seed + kGolden) + stream * kGolden + 0x632be59bd9b4e019ull)) {}

uint32_t Dice::below(uint32_t bound) {
    // Multiply-shift; the few draws that would favour small results are rejected.
    const uint32_t reject = (0u - bound) % bound;
    for (;;) {
        const uint64_t draw = mix(key_ + kGolden * ++counter_) >> 32;
        const uint64_t product = draw * bound;
        if (static_cast<uint32_t>(product) >= reject) return static_cast<uint32_t>(product >> 32);
    }
}

size_t Dice::choose(std::span<const uint32_t> weights, uint32_t total) {
    if (weights.size() == 1) return 0;
    uint32_t left = below(total);
    size_t i = 0;
    while (left >= weights[i]) left -= weights[i++];
    return i;
}

// State of one derivation in progress.
struct Grammar::Walk {
    Chooser& chooser;
    std::string& out;
    size_t begin = 0;    // where this derivation starts in `out`
    bool blank = false;  // a blank is due before the next word
    double nats = 0;
    Env env;
    std::vector<uint32_t> scratch;

    void write(const std::string& raw) {
        for (const char c : raw) {
            if (c == ' ') {
                blank = out.size() > begin && out.back() != '\n';
                continue;
            }
            const bool closes = c == ',' || c == '.' || c == '!' || c == '?' || c == '\n';
            if (blank && !closes) out.push_back(' ');
            blank = false;
            out.push_back(c);
        }
    }
};

double Grammar::derive(Chooser& chooser, std::string& out) const {
    Walk walk{chooser, out, out.size(), false, 0, Env(variables_.size(), kNone), {}};
    expand(start_, walk);
    return walk.nats;
}

uint32_t Grammar::column(const Node& slot, uint32_t record) const {
    const Record& r = records_[record];
    return r.columns[slot.form][tables_[r.table].column_of[slot.arg]];
}

void Grammar::expand(uint32_t sequence, Walk& walk) const {
    for (const Node& node : sequences_[sequence]) {
        switch (node.kind) {
            case Kind::kText:
                walk.write(texts_[node.id].raw);
                break;
            case Kind::kRule: {
                const Rule& rule = rules_[node.id];
                const size_t pick = walk.chooser.choose(rule.weights, rule.total);
                walk.nats += rule.nats[pick];
                expand(rule.sequences[pick], walk);
                break;
            }
            case Kind::kBind: {
                const Table& table = tables_[node.arg];
                size_t pick = 0;
                if (node.exclude.empty()) {
                    pick = walk.chooser.choose(table.weights, table.total);
                    walk.nats += table.nats[pick];
                } else {
                    walk.scratch = table.weights;
                    uint32_t total = table.total;
                    for (const uint32_t v : node.exclude) {
                        const uint32_t bound = walk.env[v];
                        if (bound == kNone || records_[bound].table != node.arg) continue;
                        uint32_t& weight = walk.scratch[records_[bound].row];
                        total -= weight;
                        weight = 0;
                    }
                    pick = walk.chooser.choose(walk.scratch, total);
                    walk.nats += std::log(double(total)) - std::log(double(walk.scratch[pick]));
                }
                walk.env[node.id] = table.records[pick];
                break;
            }
            case Kind::kSlot: {
                const uint32_t record = walk.env[node.id];
                if (record == kNone)
                    throw std::invalid_argument("grammar: variable '" + variables_[node.id] +
                                                "' is used before it is bound");
                expand(column(node, record), walk);
                break;
            }
        }
    }
}

Grammar::Size Grammar::size() const {
    Size size{rules_.size(), tables_.size(), records_.size(), records_.size(), words_.size()};
    for (const Rule& rule : rules_) size.alternatives += rule.sequences.size();
    return size;
}

std::vector<std::string> Grammar::column_texts(std::string_view table,
                                               std::string_view column) const {
    const auto attribute = std::find(attributes_.begin(), attributes_.end(), column);
    const auto found = std::find_if(tables_.begin(), tables_.end(),
                                    [&](const Table& t) { return t.name == table; });
    const auto at = static_cast<size_t>(attribute - attributes_.begin());
    if (found == tables_.end() || attribute == attributes_.end() || found->column_of[at] == kNone)
        throw std::invalid_argument("grammar: no column '" + std::string(column) +
                                    "' in a table '" + std::string(table) + "'");
    std::vector<std::string> texts;
    for (const uint32_t record : found->records) {
        std::string& text = texts.emplace_back();
        for (const Node& node : sequences_[records_[record].columns[kPlain][found->column_of[at]]])
            if (node.kind == Kind::kText) text.append(texts_[node.id].raw);
    }
    return texts;
}

bool Grammar::knows(std::string_view word) const {
    return std::binary_search(word_index_.begin(), word_index_.end(),
                              std::pair(std::string(word), 0u),
                              [](const auto& a, const auto& b) { return a.first < b.first; });
}

}  // namespace mr::story
