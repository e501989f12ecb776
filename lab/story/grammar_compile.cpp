// Compiles a grammar's source text to nodes. All errors in a source are found here, so that
// deriving and analysing can assume a well-formed grammar.
#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "lab/story/grammar.h"

namespace mr::story {

namespace {

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

std::string_view trim(std::string_view s) {
    while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
    while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
    return s;
}

// Splits at `mark` outside of brackets and braces.
std::vector<std::string> split(std::string_view s, char mark) {
    std::vector<std::string> parts(1);
    int depth = 0;
    for (const char c : s) {
        if (c == '[' || c == '{') ++depth;
        if (c == ']' || c == '}') --depth;
        if (c == mark && depth == 0) {
            parts.emplace_back();
        } else {
            parts.back().push_back(c);
        }
    }
    for (std::string& part : parts) part = std::string(trim(part));
    return parts;
}

// Words (runs of letters and digits) and single marks, blanks dropped.
template <typename Visit>
void for_each_token(std::string_view text, Visit visit) {
    for (size_t i = 0; i < text.size();) {
        size_t end = i + 1;
        if (text[i] == ' ') {
            i = end;
            continue;
        }
        if (is_word(text[i]))
            while (end < text.size() && is_word(text[end])) ++end;
        visit(text.substr(i, end - i));
        i = end;
    }
}

struct Block {
    bool is_table = false;
    std::string name;
    std::string columns;             // tables
    std::vector<std::string> lines;  // continued lines already joined
};

std::vector<Block> read_blocks(std::string_view source) {
    std::vector<Block> blocks;
    while (!source.empty()) {
        const size_t end = std::min(source.find('\n'), source.size());
        std::string_view line = source.substr(0, end);
        source.remove_prefix(std::min(end + 1, source.size()));
        const bool continues = line.substr(0, 2) == "  ";
        line = trim(line);
        if (line.empty() || line[0] == '#') continue;
        if (line.substr(0, 6) == "@rule ") {
            blocks.push_back({false, std::string(trim(line.substr(6))), "", {}});
        } else if (line.substr(0, 7) == "@table ") {
            const size_t colon = std::min(line.find(':'), line.size() - 1);
            blocks.push_back({true,
                              std::string(trim(line.substr(7, colon - 7))),
                              std::string(trim(line.substr(colon + 1))),
                              {}});
        } else if (blocks.empty()) {
            throw std::invalid_argument("grammar: text before the first block: " +
                                        std::string(line));
        } else if (continues && blocks.back().lines.empty() && blocks.back().is_table) {
            blocks.back().columns += " " + std::string(line);
        } else if (continues && !blocks.back().lines.empty()) {
            blocks.back().lines.back() += " " + std::string(line);
        } else {
            blocks.back().lines.emplace_back(line);
        }
    }
    return blocks;
}

// Takes "12* " off the front of a line; 1 without it.
uint32_t take_weight(std::string& line) {
    size_t digits = 0;
    while (digits < line.size() && line[digits] >= '0' && line[digits] <= '9') ++digits;
    if (digits == 0 || digits > 6 || digits >= line.size() || line[digits] != '*') return 1;
    const uint32_t weight = static_cast<uint32_t>(std::stoul(line.substr(0, digits)));
    line = std::string(trim(std::string_view(line).substr(digits + 1)));
    return weight;
}

}  // namespace

class GrammarCompiler {
  public:
    explicit GrammarCompiler(Grammar& grammar) : g_(grammar) {}

    void compile(std::string_view source, std::string_view start) {
        const std::vector<Block> blocks = read_blocks(source);
        attribute("");  // the first column of any table
        for (const Block& block : blocks) declare(block);
        for (const Block& block : blocks) {
            where_ = block.name;
            block.is_table ? fill_table(block) : fill_rule(block);
        }
        where_ = start;
        const auto found = rules_.find(std::string(start));
        if (found == rules_.end()) fail("the start rule is missing", start);
        g_.start_ = add_sequence({rule_node(found->second)});
        link();
    }

  private:
    using Node = Grammar::Node;
    using Kind = Grammar::Kind;
    static constexpr uint32_t kNone = Grammar::kNone;

    [[noreturn]] void fail(const std::string& what, std::string_view text) const {
        throw std::invalid_argument("grammar: in '" + where_ + "': " + what + ": " +
                                    std::string(text));
    }

    void declare(const Block& block) {
        where_ = block.name;
        auto& index = block.is_table ? tables_ : rules_;
        const size_t next = block.is_table ? g_.tables_.size() : g_.rules_.size();
        if (!index.emplace(block.name, static_cast<uint32_t>(next)).second)
            fail("declared twice", block.name);
        if (!block.is_table) {
            g_.rules_.push_back({block.name, {}, {}, 0, {}});
            return;
        }
        g_.tables_.push_back({block.name, {}, {}, {}, 0, 0, {}});
        for (const std::string& column : split(block.columns, '|'))
            attribute(std::string(trim(column.substr(0, column.find('=')))));
    }

    void fill_rule(const Block& block) {
        std::vector<std::pair<uint32_t, std::string>> alternatives;
        for (std::string line : block.lines) {
            const uint32_t weight = take_weight(line);
            alternatives.emplace_back(weight, line == "-" ? "" : line);
        }
        std::vector<uint32_t> weights, sequences;
        for (const auto& [weight, text] : alternatives) {
            weights.push_back(weight);
            sequences.push_back(parse(text));
        }
        set_rule(rules_.at(block.name), std::move(weights), std::move(sequences));
    }

    void set_rule(uint32_t id, std::vector<uint32_t> weights, std::vector<uint32_t> sequences) {
        Grammar::Rule& rule = g_.rules_[id];
        rule.weights = std::move(weights);
        rule.sequences = std::move(sequences);
        finish_weights(rule.weights, rule.total, rule.nats);
    }

    void finish_weights(const std::vector<uint32_t>& weights, uint32_t& total,
                        std::vector<double>& nats) {
        if (weights.empty()) fail("nothing to choose from", where_);
        for (const uint32_t w : weights) {
            if (w == 0) fail("a weight of 0", where_);
            total += w;
        }
        for (const uint32_t w : weights)
            nats.push_back(std::log(double(total)) - std::log(double(w)));
    }

    void fill_table(const Block& block) {
        const uint32_t id = tables_.at(block.name);
        std::vector<std::string> names, constants;  // constants follow the row's own columns
        for (const std::string& column : split(block.columns, '|')) {
            const size_t equals = column.find('=');
            const std::string name(trim(column.substr(0, equals)));
            if (equals == std::string::npos && !constants.empty())
                fail("constant columns come last", column);
            names.push_back(name);
            if (equals != std::string::npos)
                constants.emplace_back(trim(std::string_view(column).substr(equals + 1)));
        }
        g_.tables_[id].column_of.assign(g_.attributes_.size(), kNone);
        g_.tables_[id].column_of[0] = 0;
        g_.tables_[id].own_columns = static_cast<uint32_t>(names.size() - constants.size());
        for (uint32_t i = 0; i < names.size(); ++i)
            g_.tables_[id].column_of[attribute(names[i])] = i;
        for (const std::string& line : block.lines)
            for (const std::string& row : split(line, ';'))
                if (!row.empty()) add_record(id, row, names.size(), constants);
        Grammar::Table& table = g_.tables_[id];
        finish_weights(table.weights, table.total, table.nats);
    }

    void add_record(uint32_t table, std::string row, size_t columns,
                    const std::vector<std::string>& constants) {
        const uint32_t weight = take_weight(row);
        std::vector<std::string> cells = split(row, '|');
        cells.insert(cells.end(), constants.begin(), constants.end());
        if (cells.size() != columns)
            fail("a record of " + std::to_string(cells.size()) + " columns, not " +
                     std::to_string(columns),
                 row);
        Grammar::Record record;
        record.table = table;
        record.row = static_cast<uint32_t>(g_.tables_[table].records.size());
        for (std::string& cell : cells) {
            if (cell == "-") cell.clear();
            for (uint8_t form = 0; form < Grammar::kForms; ++form)
                record.columns[form].push_back(cell_form(cell, static_cast<Grammar::Form>(form)));
        }
        g_.tables_[table].weights.push_back(weight);
        g_.tables_[table].records.push_back(static_cast<uint32_t>(g_.records_.size()));
        g_.records_.push_back(std::move(record));
    }

    // Cells with the same spelling share one sequence: a walk of the grammar visits it once.
    uint32_t cell_form(const std::string& cell, Grammar::Form form) {
        const auto [it, added] = cells_.try_emplace({cell, form}, 0);
        if (added) {
            const uint32_t sequence = parse_form(cell, form);
            it->second = sequence;
        }
        return it->second;
    }

    // A cell in another form; only plain words can be capitalised or given an article.
    uint32_t parse_form(std::string cell, Grammar::Form form) {
        if (form == Grammar::kPlain || cell.empty()) return parse(cell);
        if (cell.find_first_of("{[") != std::string::npos) return kNone;
        if (form == Grammar::kCapital) {
            if (cell[0] >= 'a' && cell[0] <= 'z') cell[0] = static_cast<char>(cell[0] - 'a' + 'A');
            return parse(cell);
        }
        const bool vowel = std::string_view("aeiouAEIOU").find(cell[0]) != std::string_view::npos;
        return parse(std::string(form == Grammar::kArticle ? "a" : "A") + (vowel ? "n " : " ") +
                     cell);
    }

    // Parses a template into a sequence of nodes; returns the sequence's index.
    uint32_t parse(const std::string& text) {
        Grammar::Sequence nodes;
        std::string literal;
        const auto flush = [&] {
            if (!literal.empty())
                nodes.push_back({Kind::kText, Grammar::kPlain, add_text(literal), 0, {}});
            literal.clear();
        };
        for (size_t i = 0; i < text.size();) {
            const char c = text[i];
            if (c == '{' || c == '[') {
                const size_t end = matching(text, i);
                const auto touches = [&](char x) {
                    return is_word(x) || x == '{' || x == '[' || x == '}' || x == ']';
                };
                // Otherwise two words could run together, and the text could be read in two ways.
                if ((i > 0 && touches(text[i - 1])) ||
                    (end + 1 < text.size() && touches(text[end + 1])))
                    fail("a slot touches a letter or another slot", text);
                flush();
                const std::string inside = text.substr(i + 1, end - i - 1);
                c == '{' ? parse_slot(inside, nodes) : parse_choice(inside, nodes);
                i = end + 1;
            } else if (c == '}' || c == ']' || c < ' ' || c > '~') {
                fail("unbalanced bracket or a character that is not plain ASCII", text);
            } else if (text.compare(i, 2, "//") == 0) {
                literal.push_back('\n');
                i += 2;
            } else {
                literal.push_back(c);
                ++i;
            }
        }
        flush();
        return add_sequence(std::move(nodes));
    }

    size_t matching(const std::string& text, size_t open) const {
        int depth = 0;
        for (size_t i = open; i < text.size(); ++i) {
            if (text[i] == '{' || text[i] == '[') ++depth;
            if ((text[i] == '}' || text[i] == ']') && --depth == 0) return i;
        }
        fail("a bracket is never closed", text);
    }

    void parse_choice(const std::string& inside, Grammar::Sequence& nodes) {
        std::vector<uint32_t> sequences;
        for (const std::string& part : split(inside, '|')) sequences.push_back(parse(part));
        const uint32_t id = static_cast<uint32_t>(g_.rules_.size());
        g_.rules_.push_back({where_ + ": [" + inside + "]", {}, {}, 0, {}});
        std::vector<uint32_t> weights(sequences.size(), 1);
        set_rule(id, std::move(weights), std::move(sequences));
        nodes.push_back(rule_node(id));
    }

    void parse_slot(std::string_view inside, Grammar::Sequence& nodes) {
        const std::string_view whole = inside;
        Grammar::Form form = Grammar::kPlain;
        if (inside.substr(0, 1) == "^") {
            form = Grammar::kCapital;
            inside.remove_prefix(1);
        } else if (inside.substr(0, 2) == "a " || inside.substr(0, 2) == "A ") {
            form = inside[0] == 'a' ? Grammar::kArticle : Grammar::kCapitalArticle;
            inside.remove_prefix(2);
        }
        const size_t equals = inside.find('=');
        if (equals == std::string_view::npos) {
            const auto rule = rules_.find(std::string(inside));
            if (rule != rules_.end()) {
                if (form != Grammar::kPlain) fail("a rule has no other form", whole);
                nodes.push_back(rule_node(rule->second));
                return;
            }
            const size_t dot = std::min(inside.find('.'), inside.size());
            add_slot(inside.substr(0, dot), inside.substr(std::min(dot + 1, inside.size())), form,
                     whole, nodes);
            return;
        }
        const std::string_view name = inside.substr(0, equals);
        std::vector<std::string> parts = split(inside.substr(equals + 1), '!');
        const size_t dot = std::min(parts[0].find('.'), parts[0].size());
        const auto table = tables_.find(parts[0].substr(0, dot));
        if (table == tables_.end()) fail("no such table", whole);
        Node bind{Kind::kBind, Grammar::kPlain, variable(name), table->second, {}};
        for (size_t i = 1; i < parts.size(); ++i) bind.exclude.push_back(variable(parts[i]));
        auto& tables = g_.tables_of_[bind.id];
        if (std::find(tables.begin(), tables.end(), bind.arg) == tables.end())
            tables.push_back(bind.arg);
        nodes.push_back(bind);
        add_slot(name, dot < parts[0].size() ? parts[0].substr(dot + 1) : "", form, whole, nodes);
    }

    void add_slot(std::string_view var, std::string_view attr, Grammar::Form form,
                  std::string_view whole, Grammar::Sequence& nodes) {
        const auto found =
            std::find(g_.attributes_.begin(), g_.attributes_.end(), std::string(attr));
        if (found == g_.attributes_.end()) fail("no table has this column", whole);
        const uint32_t arg = static_cast<uint32_t>(found - g_.attributes_.begin());
        nodes.push_back({Kind::kSlot, form, variable(var), arg, {}});
        slots_.push_back({nodes.back(), where_ + "': '{" + std::string(whole) + "}"});
    }

    Node rule_node(uint32_t id) const { return {Kind::kRule, Grammar::kPlain, id, 0, {}}; }

    uint32_t add_sequence(Grammar::Sequence nodes) {
        g_.sequences_.push_back(std::move(nodes));
        return static_cast<uint32_t>(g_.sequences_.size() - 1);
    }

    uint32_t add_text(const std::string& raw) {
        Grammar::Text text{raw, {}};
        for_each_token(raw, [&](std::string_view word) {
            const auto [it, added] = words_.emplace(word, static_cast<uint32_t>(words_.size()));
            if (added) g_.words_.emplace_back(word);
            text.tokens.push_back(it->second);
        });
        g_.texts_.push_back(std::move(text));
        return static_cast<uint32_t>(g_.texts_.size() - 1);
    }

    uint32_t attribute(const std::string& name) { return intern(g_.attributes_, name); }

    uint32_t variable(std::string_view name) {
        if (rules_.count(std::string(name)) != 0 || name.empty())
            fail("no such rule, or a variable named like one", name);
        const uint32_t id = intern(g_.variables_, std::string(name));
        if (g_.variables_.size() > Grammar::kMaxVariables) fail("too many variables", name);
        g_.tables_of_.resize(g_.variables_.size());
        return id;
    }

    static uint32_t intern(std::vector<std::string>& names, const std::string& name) {
        const auto it = std::find(names.begin(), names.end(), name);
        if (it != names.end()) return static_cast<uint32_t>(it - names.begin());
        names.push_back(name);
        return static_cast<uint32_t>(names.size() - 1);
    }

    void link() {
        g_.word_index_.assign(words_.begin(), words_.end());
        for (Grammar::Table& table : g_.tables_)
            table.column_of.resize(g_.attributes_.size(), kNone);
        for (const auto& [slot, where] : slots_) {
            where_ = where;
            if (g_.tables_of_[slot.id].empty()) fail("never bound", g_.variables_[slot.id]);
            for (const uint32_t t : g_.tables_of_[slot.id]) {
                const Grammar::Table& table = g_.tables_[t];
                if (table.column_of[slot.arg] == kNone) fail("no such column in table", table.name);
                for (const uint32_t record : table.records)
                    if (g_.column(slot, record) == kNone)
                        fail("a form is asked of a cell that is not plain words, in table",
                             table.name);
            }
        }
        colours_.assign(g_.sequences_.size(), 0);
        for (uint32_t s = 0; s < g_.sequences_.size(); ++s) refuse_recursion(s);
    }

    // A grammar without recursion derives finitely many texts, so every pass over it ends.
    void refuse_recursion(uint32_t sequence) {
        if (colours_[sequence] == 2) return;
        if (colours_[sequence] == 1) fail("the grammar calls itself", where_);
        colours_[sequence] = 1;
        for (const Node& node : g_.sequences_[sequence]) {
            if (node.kind == Kind::kRule) {
                where_ = g_.rules_[node.id].name;
                for (const uint32_t s : g_.rules_[node.id].sequences) refuse_recursion(s);
            } else if (node.kind == Kind::kSlot) {
                for (const uint32_t t : g_.tables_of_[node.id])
                    for (const uint32_t r : g_.tables_[t].records)
                        refuse_recursion(g_.column(node, r));
            }
        }
        colours_[sequence] = 2;
    }

    Grammar& g_;
    std::string where_;
    std::map<std::string, uint32_t> rules_, tables_, words_;
    std::map<std::pair<std::string, Grammar::Form>, uint32_t> cells_;
    std::vector<std::pair<Node, std::string>> slots_;
    std::vector<uint8_t> colours_;
};

Grammar::Grammar(std::string_view source, std::string_view start) {
    GrammarCompiler(*this).compile(source, start);
}

std::vector<uint32_t> Grammar::tokenize(std::string_view text) const {
    std::vector<uint32_t> tokens;
    for_each_token(text, [&](std::string_view word) {
        const auto it =
            std::lower_bound(word_index_.begin(), word_index_.end(), word,
                             [](const auto& entry, std::string_view w) { return entry.first < w; });
        tokens.push_back(it != word_index_.end() && it->first == word ? it->second : kNone);
    });
    return tokens;
}

}  // namespace mr::story
