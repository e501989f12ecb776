// The tables of a Tokenizer, made once from its data.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

namespace mr::text {

struct Tokenizer::Impl {
    explicit Impl(TokenizerData source);

    TokenizerData data;
    std::vector<std::string> prints;  // by id: the bytes
    std::vector<std::uint8_t> special, added, ends_generation;
    StringIndex by_token;  // the file's form -> id
    StringIndex by_bytes;  // of the tokens that merging can make
    PairTable pairs;
    std::array<std::int32_t, 256> byte_ids{};  // -1: no token for that byte
    AddedTokens raw_added, normalized_added;
    PreTokenizer pre = PreTokenizer::gpt2;

    // SentencePiece: characters that are no token but part of one have ids from vocab_size on.
    std::vector<std::string> partial_chars;
    StringIndex partial_ids;
    bool words_start_with_space = false;  // no token has a space after another character

  private:
    void check() const;
    void index_tokens();
    void index_added();
    void take_merges();
    void take_scores();
    std::int32_t symbol_of(std::string_view character);
};

}  // namespace mr::text
