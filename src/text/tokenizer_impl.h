// The tables of a Tokenizer, computed once from its data.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

namespace mr::text {

// U+2581: a space in SentencePiece vocabularies.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
std::string with_spaces(std::string_view text);  // replaces the marks with spaces
// What a normalized added token is searched for as.
std::string normalized_form(const TokenizerData& data, const AddedToken& token);

struct Tokenizer::Impl {
    explicit Impl(TokenizerData source);

    TokenizerData data;
    std::vector<std::string> prints;  // by id: the bytes it prints
    std::vector<std::uint8_t> special, added, ends_generation;
    std::vector<std::uint8_t> piece;  // merging may make it
    // Added tokens that are pieces, too, and more likely to stand for text than to be markers.
    std::vector<std::uint8_t> in_text;
    StringIndex by_token;  // the file's form -> id
    StringIndex by_bytes;  // of tokens that merging can produce
    // SentencePiece: the piece or byte that is spelt so (with spaces for marks), or -1.
    std::int32_t whole_piece(std::string_view text) const;
    PairTable pairs;
    std::array<std::int32_t, 256> byte_ids{};  // -1: no token for that byte
    bool has_all_bytes() const {               // if so, no character is unknown
        return std::find(byte_ids.begin(), byte_ids.end(), -1) == byte_ids.end();
    }
    AddedTokens raw_added, normalized_added;
    bool cuttable = false;  // texts can be cut between a letter and a space (Tokenizer::cut_before)
    // SentencePiece by merges: what is put where a character is unknown depends on what follows, or
    // merges with it. Such a text is merged whole.
    bool merges_whole = false;
    static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
    PreTokenizer pre = PreTokenizer::gpt2;

    // SentencePiece: characters that are no token, but part of one, have ids from vocab_size on.
    std::vector<std::string> partial_chars;
    StringIndex partial_ids;
    // Whether any merge joins a symbol that ends with one byte to one that starts with the other.
    // Bytes past 127 form one class, always joined. A text may be cut where nothing joins.
    static constexpr std::size_t kByteClasses = 129;
    std::array<std::array<bool, kByteClasses>, kByteClasses> joins{};
    static std::size_t byte_class(char c) {
        return std::min<std::size_t>(static_cast<unsigned char>(c), 128);
    }

  private:
    void check() const;
    void index_tokens();
    void index_added();
    void take_merges();
    void take_scores();
    bool unknown_reaches_far() const;
    void join(std::string_view left, std::string_view right);
    std::int32_t symbol_of(std::string_view character);
};

}  // namespace mr::text
