// The tokens of a vocabulary as a prefix tree in byte order, to be walked together with a grammar.
// Made once per tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::text::grammar {

using MaskWords = std::vector<std::uint32_t>;  // bit i % 32 of word i / 32 stands for token i

class Vocabulary {
  public:
    // `logits`: the model's vocabulary size, which may exceed the
    // tokenizer's; 0: the same. `ends`: further tokens that end a generation
    // besides the tokenizer's. Throws Error unless each byte that JSON may
    // need has a token: these guarantee that any text has a next token.
    explicit Vocabulary(const Tokenizer& tokenizer, std::int32_t logits = 0,
                        std::span<const std::int32_t> ends = {});

    // Nodes in depth-first order. The descendants of node i end before i's `skip`.
    struct Node {
        std::uint32_t skip;
        std::uint32_t first;  // its tokens end where the next node's begin
        std::uint16_t depth;  // bytes from the root, at least 1
        std::uint8_t byte;
    };
    struct Tree {
        std::vector<Node> nodes;  // plus one sentinel
        std::vector<std::int32_t> tokens;
    };
    const Tree& all() const { return all_; }

    // Plain tokens: at most this many whole characters, all of which a JSON string can hold
    // unescaped. There are many, and where any of them may follow, they need no walk.
    static constexpr std::size_t kMostPlain = 24;
    const Tree& other() const { return other_; }  // all tokens that are not plain
    // Plain tokens of at most `characters` characters, from 1 to kMostPlain.
    const MaskWords& plain(std::size_t characters) const { return plain_[characters - 1]; }

    // The bytes of a text token; empty for special tokens and others that are never allowed.
    std::string_view bytes(std::int32_t token) const;
    std::span<const std::int32_t> ends() const { return ends_; }  // tokens that end a generation
    bool is_end(std::int32_t token) const;
    std::size_t words() const { return words_; }  // per mask
    std::int32_t size() const { return size_; }
    static constexpr std::size_t kMostBytes = 256;  // longer tokens are never allowed

  private:
    Tree tree_of(std::vector<std::int32_t> tokens) const;
    void require_all_bytes(const Tokenizer& tokenizer) const;

    std::int32_t size_;
    std::size_t words_;
    std::string text_;                    // of all tokens
    std::vector<std::uint32_t> offsets_;  // token i has bytes [offsets_[i], offsets_[i + 1])
    std::vector<std::int32_t> ends_;
    Tree all_, other_;
    std::array<MaskWords, kMostPlain> plain_;
};

}  // namespace mr::text::grammar
