// The tokens of a vocabulary in the order of their bytes, as a tree, for walks together with a
// grammar. Made once for a tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::text::grammar {

using MaskWords = std::vector<std::uint32_t>;  // bit i % 32 of word i / 32 is token i

class Vocabulary {
  public:
    // `logits` is how many tokens the model has, which may be more than the tokenizer knows; 0: as
    // many. `ends`: tokens that end a generation beside those that the tokenizer knows. Throws
    // Error where there is no token for each byte that JSON may need: with them, any text has a
    // next token.
    explicit Vocabulary(const Tokenizer& tokenizer, std::int32_t logits = 0,
                        std::span<const std::int32_t> ends = {});

    // Nodes in depth-first order. Those below node i end before i's `skip`.
    struct Node {
        std::uint32_t skip;
        std::uint32_t first;  // its tokens end where the next node's begin
        std::uint16_t depth;  // bytes to here, from 1
        std::uint8_t byte;
    };
    struct Tree {
        std::vector<Node> nodes;  // and one behind the last
        std::vector<std::int32_t> tokens;
    };
    const Tree& all() const { return all_; }

    // Tokens of at most this many whole characters that a JSON string has as they are. There are
    // many, and where any of them may follow, they need no walk.
    static constexpr std::size_t kMostPlain = 24;
    const Tree& other() const { return other_; }  // all that are not plain
    // Those of at most `characters`, from 1 to kMostPlain.
    const MaskWords& plain(std::size_t characters) const { return plain_[characters - 1]; }

    // The bytes of a token that is text; none of special tokens and others that are never allowed.
    std::string_view bytes(std::int32_t token) const;
    std::span<const std::int32_t> ends() const { return ends_; }  // tokens that end a generation
    bool is_end(std::int32_t token) const;
    std::size_t words() const { return words_; }  // of a mask
    std::int32_t size() const { return size_; }
    static constexpr std::size_t kMostBytes = 256;  // longer tokens are never allowed

  private:
    Tree tree_of(std::vector<std::int32_t> tokens) const;
    void require_all_bytes(const Tokenizer& tokenizer) const;

    std::int32_t size_;
    std::size_t words_;
    std::string text_;                    // of all tokens
    std::vector<std::uint32_t> offsets_;  // token i has [i, i + 1)
    std::vector<std::int32_t> ends_;
    Tree all_, other_;
    std::array<MaskWords, kMostPlain> plain_;
};

}  // namespace mr::text::grammar
