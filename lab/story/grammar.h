// A weighted, context-aware text grammar whose exact entropy can be computed.
//
// A grammar is written as text (see storybook_*.cpp), in two kinds of blocks:
//
//   @rule NAME                    alternatives, one per line; a line that starts with two blanks
//   3* Hello, {who}!              continues the one before; "3*" is an integer weight (default 1);
//   Good [day|evening], {who}.    "-" is the empty alternative; [a|b|] is an inline, uniform choice
//
//   @table NAME: COL | COL | COL=constant template
//   first | second                one record per line (or several, separated by ';'), weights as
//   above
//
// Slots:  {rule}            expands a rule
//         {var=table.col}   draws a record, binds it to var, expands its column
//         {var=table.col!v} the same, never the record that v is bound to (several ! allowed)
//         {var.col}         expands a column of the bound record
//         {^...}            capital first letter; {a ...} with "a"/"an"; {A ...} with "A"/"An"
// The default column is the table's first. Columns are templates, too, so a record can hold the
// choices that only make sense for it: that is how beginnings decide endings. "//" is a newline.
// Runs of blanks collapse, and a blank before , . ! ? is dropped, so slots may expand to nothing.
//
// Every choice is made where the reader first sees its outcome, so a derivation can be read back
// from its text, left to right; `ambiguities` proves this for a whole grammar.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mr::story {

// Decides the outcome of each choice. Options of weight 0 must not be chosen.
class Chooser {
  public:
    virtual ~Chooser() = default;
    virtual size_t choose(std::span<const uint32_t> weights, uint32_t total) = 0;
};

// Counter-based: the n-th draw depends only on (seed, stream, n), on every platform.
class Dice final : public Chooser {
  public:
    Dice(uint64_t seed, uint64_t stream);
    size_t choose(std::span<const uint32_t> weights, uint32_t total) override;

  private:
    uint32_t below(uint32_t bound);  // exactly uniform in [0, bound)
    uint64_t key_;
    uint64_t counter_ = 0;
};

class Grammar {
  public:
    // Throws std::invalid_argument naming block and template if the source is malformed, has an
    // unknown reference, recurses, or puts a slot next to a letter.
    Grammar(std::string_view source, std::string_view start);

    // Appends the text of one derivation to `out`; returns -ln of its probability.
    double derive(Chooser& chooser, std::string& out) const;

    // Exact entropy of a derivation, in nats: forward recursion over the grammar, no sampling. It
    // is also the entropy of the text if `ambiguities` finds none.
    double entropy_nats() const;

    // All derivations of a text: how many, and -ln of the sum of their probabilities.
    struct Reading {
        uint64_t derivations = 0;
        double nats = 0;
    };
    Reading read(std::string_view text) const;

    // Static proof of unambiguity: empty if no two derivations share a text. Otherwise one line for
    // each choice whose outcomes may have the same text. Sound, not complete: it may report an
    // unambiguous grammar, but never misses an ambiguity.
    std::vector<std::string> ambiguities() const;

    // Bounds on the number of words (runs of letters or digits) of a text; never too narrow.
    struct Span {
        uint32_t least = 0, most = 0;
    };
    Span words() const;

    struct Size {
        size_t rules = 0, tables = 0, records = 0, alternatives = 0, words = 0;
    };
    Size size() const;

    // A column of a table, one text per record: only the literal text, without slots and choices.
    // For a reader that recognises stories by their topics.
    std::vector<std::string> column_texts(std::string_view table, std::string_view column) const;
    bool knows(std::string_view word) const;  // exact spelling

  private:
    friend class GrammarCompiler;
    friend class EntropyPass;
    friend class Reader;
    friend class AmbiguityPass;

    enum class Kind : uint8_t { kText, kRule, kBind, kSlot };
    enum Form : uint8_t { kPlain, kCapital, kArticle, kCapitalArticle, kForms };

    struct Node {
        Kind kind = Kind::kText;
        Form form = kPlain;
        uint32_t id = 0;                // text, rule, or variable
        uint32_t arg = 0;               // kBind: table; kSlot: attribute
        std::vector<uint32_t> exclude;  // kBind: variables whose records are excluded
    };
    using Sequence = std::vector<Node>;

    struct Text {
        std::string raw;
        std::vector<uint32_t> tokens;  // words and punctuation marks; blanks are ignored
    };
    struct Rule {
        std::string name;
        std::vector<uint32_t> weights;
        std::vector<uint32_t> sequences;
        uint32_t total = 0;
        std::vector<double> nats;  // -ln p of each alternative
    };
    struct Record {
        uint32_t table = 0, row = 0;
        std::vector<uint32_t> columns[kForms];  // sequence of each column; kNone: form impossible
    };
    struct Table {
        std::string name;
        std::vector<uint32_t> weights;
        std::vector<uint32_t> records;
        std::vector<uint32_t> column_of;  // attribute -> column, or kNone
        uint32_t total = 0;
        uint32_t own_columns = 0;  // columns before the constant ones
        std::vector<double> nats;
    };

    static constexpr uint32_t kNone = 0xffffffffu;
    static constexpr size_t kMaxVariables = 48;

    // Environment: the record bound to each variable, or kNone.
    using Env = std::vector<uint32_t>;

    uint32_t column(const Node& slot, uint32_t record) const;  // the sequence a slot expands to
    struct Walk;
    void expand(uint32_t sequence, Walk& walk) const;
    std::vector<uint32_t> tokenize(std::string_view text) const;

    std::vector<Text> texts_;
    std::vector<Sequence> sequences_;
    std::vector<Rule> rules_;
    std::vector<Table> tables_;
    std::vector<Record> records_;
    std::vector<std::string> variables_, attributes_, words_;
    std::vector<std::vector<uint32_t>> tables_of_;  // variable -> tables that can bind it
    std::vector<std::pair<std::string, uint32_t>> word_index_;  // sorted: word -> token
    uint32_t start_ = 0;
};

}  // namespace mr::story
