// Finds added tokens in a text: the leftmost, and of those the longest.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::text {

class AddedTokens {
  public:
    AddedTokens() { root_.fill(-1); }
    void insert(const AddedToken& token);
    bool empty() const { return tokens_.empty(); }

    struct Match {
        std::size_t begin, end;  // bytes, with the white space that lstrip and rstrip swallow
        std::int32_t id;         // -1: none, and begin == end == text.size()
    };
    // The first match at or after `from`; special tokens only where `special` is true, and not
    // where they touch one of the `literal` ranges, which are in order.
    Match next(std::string_view text, std::size_t from, bool special,
               std::span<const LiteralRange> literal = {}) const;

  private:
    struct Node {
        std::vector<std::pair<unsigned char, std::int32_t>> children{};
        std::int32_t token = -1;  // index in tokens_
    };
    std::int32_t child(std::int32_t node, unsigned char byte) const;

    std::vector<AddedToken> tokens_;
    std::vector<Node> nodes_;
    std::array<std::int32_t, 256> root_;
};

}  // namespace mr::text
