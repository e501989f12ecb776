#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/printable.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

namespace mr::text {
namespace {

constexpr std::size_t kLongestPiece = 1024;
constexpr std::size_t kMostAddedBytes =
    16u << 20;  // of all added tokens: the search has a node for each

constexpr std::string_view kEndMarks[] = {
    "</s>",       "<|endoftext|>", "<|end_of_text|>", "<|im_end|>",    "<|eot_id|>",
    "<|eom_id|>", "<|end|>",       "<eos>",           "<end_of_turn>", "<|end_of_turn|>",
};

}  // namespace

std::string with_spaces(std::string_view token) {
    std::string out;
    for (std::size_t i = 0; i < token.size();) {
        if (token.substr(i, kSpaceMark.size()) == kSpaceMark) {
            out += ' ';
            i += kSpaceMark.size();
        } else {
            out += token[i++];
        }
    }
    return out;
}

std::string normalized_form(const TokenizerData& data, const AddedToken& token) {
    const std::string text = data.nfc ? nfc(token.text) : token.text;
    return data.normalizes_spaces() ? with_spaces(text) : text;
}

std::vector<bool> made_by_text(const TokenizerData& data, bool merges) {
    std::vector<bool> out(data.tokens.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
        const std::string& token = data.tokens[i];
        if (token.empty() || char_at(token, 0).size != token.size()) continue;
        out[i] = data.model == TokenizerModel::sentencepiece_bpe || bytes_of_token(token);
    }
    if (!merges) return out;
    StringIndex ids;
    ids.reserve(out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
        ids.insert(data.tokens[i], static_cast<std::int32_t>(i));
    }
    for (const Merge& m : data.merges) {
        const std::int32_t made = ids.find(data.tokens[static_cast<std::size_t>(m.left)] +
                                           data.tokens[static_cast<std::size_t>(m.right)]);
        if (made >= 0) out[static_cast<std::size_t>(made)] = true;
    }
    return out;
}

Tokenizer::Impl::Impl(TokenizerData source) : data(std::move(source)) {
    byte_ids.fill(-1);
    check();
    index_tokens();
    index_added();
    if (data.model == TokenizerModel::bytes) return;
    joins[128][128] = true;  // both may be bytes of one character
    if (data.merges.empty() && data.model == TokenizerModel::sentencepiece_bpe) {
        take_scores();
    } else {
        take_merges();
    }
    const bool by_scores = data.merges.empty() && !pairs.empty();
    merges_whole =
        data.model == TokenizerModel::sentencepiece_bpe && !by_scores && unknown_reaches_far();
}

// Without `unk` the characters beside an unknown one become neighbours. With both `unk` and bytes,
// an `unk` comes after the bytes that follow it. An `unk` that is text, too, may merge.
bool Tokenizer::Impl::unknown_reaches_far() const {
    if (has_all_bytes()) return false;
    if (!data.unk) return true;
    return std::any_of(byte_ids.begin(), byte_ids.end(), [](auto id) { return id >= 0; }) ||
           made_by_text(data, true)[static_cast<std::size_t>(*data.unk)] ||
           std::any_of(data.merges.begin(), data.merges.end(),
                       [&](const Merge& m) { return m.left == *data.unk || m.right == *data.unk; });
}

void Tokenizer::Impl::check() const {
    const auto fail = [&](std::string field, std::string value, std::string problem) {
        return Error::input({.file = data.name,
                             .field = std::move(field),
                             .value = std::move(value),
                             .problem = std::move(problem)});
    };
    const std::size_t n = data.tokens.size();
    if (n == 0) throw fail("vocabulary", "", "is empty");
    if (n > (1u << 24)) throw fail("vocabulary", std::to_string(n), "has more than 2^24 tokens");
    if (data.types.size() != n) {
        throw fail("token types", std::to_string(data.types.size()),
                   fmt::format("are not as many as the {} tokens", n));
    }
    const bool by_scores = data.model == TokenizerModel::sentencepiece_bpe && data.merges.empty();
    if (by_scores && data.scores.size() != n) {
        throw fail("scores", std::to_string(data.scores.size()),
                   fmt::format("are not as many as the {} tokens", n));
    }
    const auto in_range = [&](std::int32_t id) {
        return id >= 0 && static_cast<std::size_t>(id) < n;
    };
    const auto check_id = [&](const char* field, std::int32_t id) {
        if (!in_range(id)) {
            throw fail(field, std::to_string(id), fmt::format("is not below the {} tokens", n));
        }
    };
    if (data.bos) check_id("bos token id", *data.bos);
    if (data.eos) check_id("eos token id", *data.eos);
    if (data.unk) check_id("unknown token id", *data.unk);
    if (data.pad) check_id("padding token id", *data.pad);
    if (data.end_of_turn) check_id("end of turn token id", *data.end_of_turn);
    for (std::int32_t id : data.prefix) check_id("token before the text", id);
    for (std::int32_t id : data.suffix) check_id("token after the text", id);
    for (const AddedToken& token : data.added) check_id("added token", token.id);
    for (const Merge& m : data.merges) {
        check_id("merges", m.left);
        check_id("merges", m.right);
    }
}

void Tokenizer::Impl::index_tokens() {
    const std::size_t n = data.tokens.size();
    prints.resize(n);
    special.resize(n);
    added.resize(n);
    ends_generation.resize(n);
    piece.resize(n);
    in_text.resize(n);
    for (const AddedToken& token : data.added) {
        const auto i = static_cast<std::size_t>(token.id);
        piece[i] = token.piece && data.types[i] != TokenType::byte;
        // A plain one of SentencePiece is always found before any merging, unless it is the mark of
        // a space.
        in_text[i] = token.piece && !token.special &&
                     (data.model == TokenizerModel::byte_level_bpe || token.single_word ||
                      token.text.find(kSpaceMark) != std::string::npos);
    }
    by_token.reserve(n);
    by_bytes.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
        const std::string& token = data.tokens[i];
        const TokenType type = data.types[i];
        const auto id = static_cast<std::int32_t>(i);
        special[i] = type == TokenType::control || type == TokenType::unknown;
        by_token.insert(token, id);
        if (type == TokenType::normal) piece[i] = 1;
        bool mergeable = piece[i];
        prints[i] = type == TokenType::unused ? std::string() : token;  // an unused id
        if (data.model == TokenizerModel::bytes) {
            mergeable = false;
            if (i < 256) prints[i] = std::string(1, static_cast<char>(i));
            if (i < 256) byte_ids[i] = id;
        } else if (data.model == TokenizerModel::byte_level_bpe) {
            // Other added tokens are stored as they are.
            if (piece[i]) {
                if (auto bytes = bytes_of_token(token)) {
                    prints[i] = std::move(*bytes);
                } else {
                    mergeable = false;
                }
            }
        } else if (type == TokenType::byte) {
            const int byte = byte_of_name(token);
            if (byte < 0) {
                throw Error::input(
                    {.file = data.name,
                     .field = fmt::format("token {}", i),
                     .value = token,
                     .problem = "is marked as a byte but is not of the form <0xNN>"});
            }
            prints[i] = std::string(1, static_cast<char>(byte));
            // Texts become bytes by the usual names alone: <0xC3>, not <0xc3>.
            if (token == fmt::format("<0x{:02X}>", byte) &&
                byte_ids[static_cast<std::size_t>(byte)] < 0) {
                byte_ids[static_cast<std::size_t>(byte)] = id;
            }
        } else if (piece[i]) {
            prints[i] = with_spaces(token);
            // In a text every space is a mark before it is merged.
            if (token.find(' ') != std::string::npos) mergeable = false;
        }
        if (mergeable && !prints[i].empty()) by_bytes.insert(prints[i], id);
    }
    if (data.model == TokenizerModel::byte_level_bpe) {
        for (unsigned b = 0; b < 256; ++b) {
            const char c = static_cast<char>(b);
            byte_ids[b] = by_bytes.find({&c, 1});
        }
        const auto kind = pre_tokenizer_of_name(data.pre);
        if (!kind) {
            throw Error::input({.file = data.name,
                                .field = "pre-tokenizer",
                                .value = data.pre,
                                .problem = "is not supported",
                                .remedy = std::string("supported are ") + kSupportedPreTokenizers});
        }
        pre = *kind;
    }
    for (const AddedToken& token : data.added) {
        if (token.special) special[static_cast<std::size_t>(token.id)] = 1;
    }
    if (data.eos) ends_generation[static_cast<std::size_t>(*data.eos)] = 1;
    if (data.end_of_turn) ends_generation[static_cast<std::size_t>(*data.end_of_turn)] = 1;
    for (std::string_view mark : kEndMarks) {
        const std::int32_t id = by_token.find(mark);
        if (id >= 0 && special[static_cast<std::size_t>(id)]) {
            ends_generation[static_cast<std::size_t>(id)] = 1;
        }
    }
}

std::int32_t Tokenizer::Impl::whole_piece(std::string_view text) const {
    const std::int32_t id = by_bytes.find(text);
    if (id >= 0 || byte_of_name(text) < 0) return id;
    const std::int32_t byte = by_token.find(text);
    const bool is_byte = byte >= 0 && data.types[static_cast<std::size_t>(byte)] == TokenType::byte;
    return is_byte ? byte : -1;
}

void Tokenizer::Impl::index_added() {
    cuttable =
        data.model == TokenizerModel::byte_level_bpe && data.space_prefix == SpacePrefix::never;
    for (const AddedToken& token : data.added) {
        const std::string& t = token.text;
        for (std::size_t i = 1; i < t.size(); ++i) {
            if (t[i] == ' ' && is_letter(t[i - 1])) cuttable = false;  // may span a cut
        }
        if (token.rstrip && !t.empty() && is_letter(t.back())) cuttable = false;
        added[static_cast<std::size_t>(token.id)] = 1;
        // A byte or a piece that is also an added token still prints as such.
        const auto i = static_cast<std::size_t>(token.id);
        AddedToken searched = token;
        if (token.normalized) searched.text = normalized_form(data, token);
        if (data.types[i] != TokenType::byte && !piece[i]) prints[i] = searched.text;
        if (token.normalized) {
            if (data.prepends()) searched.text.insert(0, 1, ' ');
            normalized_added.insert(searched);
        } else {
            raw_added.insert(token);
        }
    }
    if (std::size_t bytes = 0;
        std::any_of(data.added.begin(), data.added.end(), [&](const AddedToken& token) {
            return (bytes += token.text.size()) > kMostAddedBytes;
        })) {
        throw Error::input({.file = data.name,
                            .field = "added_tokens",
                            .problem = fmt::format("have more than {} MiB of text together",
                                                   kMostAddedBytes >> 20)});
    }
    raw_added.finish();
    normalized_added.finish();
}

void Tokenizer::Impl::take_merges() {
    pairs.reserve(data.merges.size());
    std::string joined;
    for (std::size_t rank = 0; rank < data.merges.size(); ++rank) {
        const Merge m = data.merges[rank];
        joined = data.tokens[static_cast<std::size_t>(m.left)];
        joined += data.tokens[static_cast<std::size_t>(m.right)];
        const std::int32_t merged = by_token.find(joined);
        if (merged < 0) {
            throw Error::input({.file = data.name,
                                .field = fmt::format("merges[{}]", rank),
                                .value = data.merge_text(m),
                                .problem = "makes a token that the vocabulary does not have"});
        }
        pairs.set(m.left, m.right, {static_cast<std::uint32_t>(rank), merged});
    }
    if (data.model != TokenizerModel::sentencepiece_bpe) return;
    for (const Merge& m : data.merges) {
        join(prints[static_cast<std::size_t>(m.left)], prints[static_cast<std::size_t>(m.right)]);
    }
}

void Tokenizer::Impl::join(std::string_view left, std::string_view right) {
    if (left.empty() || right.empty()) return;
    joins[byte_class(left.back())][byte_class(right.front())] = true;
}

std::int32_t Tokenizer::Impl::symbol_of(std::string_view character) {
    std::int32_t id = by_bytes.find(character);
    if (id >= 0) return id;
    id = partial_ids.find(character);
    if (id >= 0) return id;
    id = static_cast<std::int32_t>(data.tokens.size() + partial_chars.size());
    partial_chars.emplace_back(character);
    // The key must outlive the index. `character` points into `prints`, which stays; strings in
    // partial_chars may move as it grows.
    partial_ids.insert(character, id);
    return id;
}

// SentencePiece merges any two neighbours whose joined text is a token, highest score first. That
// equals merging by rank with every way to cut every token in two.
void Tokenizer::Impl::take_scores() {
    std::vector<float> order;
    for (std::size_t i = 0; i < data.scores.size(); ++i) {
        if (!std::isfinite(data.scores[i])) {
            throw Error::input({.file = data.name,
                                .field = fmt::format("scores[{}]", i),
                                .value = fmt::format("{}", data.scores[i]),
                                .problem = "is not a finite number"});
        }
        if (piece[i]) order.push_back(data.scores[i]);
    }
    std::sort(order.begin(), order.end(), std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    for (std::size_t i = 0; i < prints.size(); ++i) {
        const std::string& text = prints[i];
        const auto id = static_cast<std::int32_t>(i);
        if (!piece[i] || by_bytes.find(text) != id) continue;
        if (text.size() > kLongestPiece) {  // the cuts below take time quadratic in it
            throw Error::input({.file = data.name,
                                .field = fmt::format("token {}", i),
                                .value = fmt::format("{} bytes", text.size()),
                                .problem = fmt::format("is longer than {}", kLongestPiece)});
        }
        const auto rank = static_cast<std::uint32_t>(
            std::lower_bound(order.begin(), order.end(), data.scores[i], std::greater<>()) -
            order.begin());
        const std::size_t first = char_at(text, 0).size;
        for (std::size_t cut = first; cut < text.size(); cut += char_at(text, cut).size) {
            const std::string_view left = std::string_view(text).substr(0, cut);
            const std::string_view right = std::string_view(text).substr(cut);
            const bool left_is_char = cut == first;
            const bool right_is_char = cut + char_at(text, cut).size == text.size();
            const std::int32_t a = left_is_char ? symbol_of(left) : by_bytes.find(left);
            const std::int32_t b = right_is_char ? symbol_of(right) : by_bytes.find(right);
            if (a < 0 || b < 0) continue;
            pairs.set(a, b, {rank, id});
            join(left, right);
        }
    }
}

Tokenizer::Tokenizer(TokenizerData data) : impl_(std::make_unique<Impl>(std::move(data))) {}
Tokenizer::~Tokenizer() = default;

Tokenizer::Ptr Tokenizer::from_data(TokenizerData data) {
    return Ptr(new Tokenizer(std::move(data)));
}

Tokenizer::Ptr Tokenizer::bytes(std::int32_t vocab_size) {
    TokenizerData data;
    data.name = "bytes";
    data.model = TokenizerModel::bytes;
    for (std::int32_t i = 0; i < vocab_size; ++i) data.tokens.push_back(fmt::format("<{}>", i));
    data.types.assign(data.tokens.size(), TokenType::normal);
    return from_data(std::move(data));
}

const TokenizerData& Tokenizer::data() const { return impl_->data; }

std::int32_t Tokenizer::vocab_size() const {
    return static_cast<std::int32_t>(impl_->data.tokens.size());
}

bool Tokenizer::is_special(std::int32_t id) const {
    return id >= 0 && id < vocab_size() && impl_->special[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_end_of_generation(std::int32_t id) const {
    return id >= 0 && id < vocab_size() && impl_->ends_generation[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::find(std::string_view piece) const {
    std::int32_t id = impl_->by_token.find(piece);
    if (id < 0) id = impl_->by_bytes.find(piece);
    return id < 0 ? std::nullopt : std::optional(id);
}

std::string Tokenizer::kind() const {
    switch (data().model) {
        case TokenizerModel::byte_level_bpe:
            return fmt::format("byte-level BPE ({})", pre_tokenizer_name(impl_->pre));
        case TokenizerModel::sentencepiece_bpe:
            return "SentencePiece BPE";
        case TokenizerModel::bytes:
            return "bytes";
    }
    return "";
}

std::string Tokenizer::piece(std::int32_t id) const {
    return id >= 0 && id < vocab_size() ? impl_->prints[static_cast<std::size_t>(id)] : "";
}

std::string Tokenizer::display(std::int32_t id) const {
    if (id < 0 || id >= vocab_size()) return fmt::format("<{}>", id);
    const std::string& bytes = impl_->prints[static_cast<std::size_t>(id)];
    std::string out;
    for (std::size_t i = 0; i < bytes.size();) {
        const Char c = char_at(bytes, i);
        const std::string_view one = std::string_view(bytes).substr(i, c.size);
        if (c.code == '\n') {
            out += "\\n";
        } else if (c.code == '\r') {
            out += "\\r";
        } else if (c.code == '\t') {
            out += "\\t";
        } else if (c.code == '\\') {
            out += "\\\\";
        } else if (c.code >= kBadByte || is_unprintable(c.code)) {
            for (char b : one) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(b));
        } else {
            out += one;
        }
        i += c.size;
    }
    return out;
}

void Tokenizer::append_piece(std::int32_t id, bool skip_special, bool& at_start,
                             std::string& out) const {
    if (id < 0 || id >= vocab_size()) return;
    const auto i = static_cast<std::size_t>(id);
    if ((impl_->added[i] || impl_->special[i]) && !impl_->in_text[i]) {
        if (!(skip_special && impl_->special[i])) out += impl_->prints[i];
        // If unknown characters become `unk`, it stands for text, and no space follows it. Nor does
        // one follow a byte token, unless it was in the text.
        const bool in_text =
            (id == data().unk && !impl_->has_all_bytes()) || data().types[i] == TokenType::byte;
        at_start = !in_text && (at_start || data().space_prefix == SpacePrefix::always);
        return;
    }
    std::string_view bytes = impl_->prints[i];
    if (at_start && data().model == TokenizerModel::sentencepiece_bpe &&
        data().space_prefix != SpacePrefix::never && impl_->piece[i] && bytes.starts_with(' ')) {
        bytes.remove_prefix(1);
    }
    at_start = false;
    out += bytes;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
    std::string out;
    bool at_start = true;
    for (std::int32_t id : ids) append_piece(id, skip_special, at_start, out);
    return out;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, StreamOptions options)
    : tokenizer_(tokenizer), options_(options), at_start_(options.at_start) {}

std::string StreamDecoder::push(std::int32_t id) {
    tokenizer_.append_piece(id, options_.skip_special, at_start_, pending_);
    const std::size_t ready = pending_.size() - incomplete_tail(pending_);
    std::string out = replace_invalid(std::string_view(pending_).substr(0, ready));
    pending_.erase(0, ready);
    return out;
}

std::string StreamDecoder::flush() {
    std::string out = replace_invalid(pending_);
    pending_.clear();
    return out;
}

}  // namespace mr::text
