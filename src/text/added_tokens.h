// Finds added tokens in a text: the leftmost, and among those the longest. The time is linear in
// the text for any set of tokens: an Aho-Corasick automaton of the reversed tokens reads the text
// from its end and knows at every byte the longest token that begins there.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::text {

// An automaton that reads texts from the end.
class BackwardAutomaton {
  public:
    BackwardAutomaton() { root_.fill(-1); }
    void insert(std::string_view text, std::int32_t token);
    void link();  // after the last insert()
    bool empty() const { return nodes_.empty(); }

    static constexpr std::int32_t kStart = -1;
    // The state after the next byte to the left.
    std::int32_t step(std::int32_t state, unsigned char byte) const {
        if (state == kStart) return root_[byte];
        return step_inside(state, byte);
    }
    // The longest token that begins at the byte read last; -1: none.
    std::int32_t longest(std::int32_t state) const {
        return state == kStart ? -1 : nodes_[static_cast<std::size_t>(state)].longest;
    }

  private:
    struct Node {
        std::vector<std::pair<unsigned char, std::int32_t>> children{};
        std::int32_t shorter = kStart;  // the node of its longest proper suffix in the tree
        std::int32_t longest = -1;      // its own token, or else that of `shorter`
    };
    std::int32_t child(std::int32_t node, unsigned char byte) const;
    std::int32_t step_inside(std::int32_t state, unsigned char byte) const;

    std::vector<Node> nodes_;
    std::array<std::int32_t, 256> root_;  // children of the root
};

class AddedTokens {
  public:
    // Of two tokens with the same text the later one wins. Insert all before the first search.
    void insert(const AddedToken& token);
    void finish();
    bool empty() const { return tokens_.empty(); }

    struct Match {
        std::size_t begin, end;  // in bytes, including white space taken by lstrip and rstrip
        std::int32_t id;         // -1: none, and begin == end == text.size()
    };

    // A search through one text, front to back.
    class Search {
      public:
        // Finds special tokens only if `special` is true, and none that overlaps a `literal` range.
        // Ranges are in order.
        // `strips_space`: lstrip and rstrip take U+0020, too.
        Search(const AddedTokens& tokens, std::string_view text, bool special,
               std::span<const LiteralRange> literal = {}, bool strips_space = true)
            : tokens_(tokens),
              text_(text),
              literal_(literal),
              special_(special),
              strips_space_(strips_space) {}
        // A match may begin before the end of the one before it: white space that an `rstrip` took
        // is searched, too.
        Match next();

      private:
        struct Start {
            std::size_t pos;
            std::int32_t token;  // index of the token
        };
        void look(std::size_t from);

        const AddedTokens& tokens_;
        std::string_view text_;
        std::span<const LiteralRange> literal_;
        bool special_, strips_space_;
        std::vector<Start> starts_;  // found in the searched part, the first one last
        std::size_t looked_ = 0;     // end of the searched part
        std::size_t at_ = 0;         // where the next match may begin
        std::size_t taken_ = 0;      // end of the last match
    };

  private:
    std::vector<AddedToken> tokens_;
    std::size_t longest_ = 0;             // bytes of the longest token
    BackwardAutomaton plain_, specials_;  // of the plain tokens and of the special ones
};

}  // namespace mr::text
