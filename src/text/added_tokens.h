// Finds added tokens in a text: the leftmost, and of those the longest. The time is linear in the
// text, whatever the tokens are: an automaton (Aho and Corasick's) of the tokens' reversed texts
// reads the text from its end, and says at every byte which is the longest token that begins there.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::text {

// Of texts that are read from their ends.
class BackwardAutomaton {
  public:
    BackwardAutomaton() { root_.fill(-1); }
    void insert(std::string_view text, std::int32_t token);
    void link();  // after the last insert()
    bool empty() const { return nodes_.empty(); }

    static constexpr std::int32_t kStart = -1;
    // The state after one more byte, further to the left.
    std::int32_t step(std::int32_t state, unsigned char byte) const {
        if (state == kStart) return root_[byte];
        return step_inside(state, byte);
    }
    // The longest token that begins at the byte that was read last; -1: none does.
    std::int32_t longest(std::int32_t state) const {
        return state == kStart ? -1 : nodes_[static_cast<std::size_t>(state)].longest;
    }

  private:
    struct Node {
        std::vector<std::pair<unsigned char, std::int32_t>> children{};
        std::int32_t shorter = kStart;  // the node of its longest proper suffix that is in the tree
        std::int32_t longest = -1;      // its own token, or else that of `shorter`
    };
    std::int32_t child(std::int32_t node, unsigned char byte) const;
    std::int32_t step_inside(std::int32_t state, unsigned char byte) const;

    std::vector<Node> nodes_;
    std::array<std::int32_t, 256> root_;  // the children of the start
};

class AddedTokens {
  public:
    // Of two with the same text the one that comes later is meant. All before the first search.
    void insert(const AddedToken& token);
    void finish();
    bool empty() const { return tokens_.empty(); }

    struct Match {
        std::size_t begin, end;  // bytes, with the white space that lstrip and rstrip swallow
        std::int32_t id;         // -1: none, and begin == end == text.size()
    };

    // A search through one text, front to back.
    class Search {
      public:
        // Special tokens only where `special` is true, and not where they touch one of the
        // `literal` ranges, which are in order.
        Search(const AddedTokens& tokens, std::string_view text, bool special,
               std::span<const LiteralRange> literal = {})
            : tokens_(tokens), text_(text), literal_(literal), special_(special) {}
        // The first match at or after `from`, which is not smaller than the time before.
        Match next(std::size_t from);

      private:
        struct Start {
            std::size_t pos;
            std::int32_t token;  // index
        };
        void look(std::size_t from);

        const AddedTokens& tokens_;
        std::string_view text_;
        std::span<const LiteralRange> literal_;
        bool special_;
        std::vector<Start> starts_;  // of the part that was looked at, the first one last
        std::size_t looked_ = 0;     // where that part ends
    };

  private:
    std::vector<AddedToken> tokens_;
    std::size_t longest_ = 0;             // bytes of a token
    BackwardAutomaton plain_, specials_;  // of tokens that are special and of those that are not
};

}  // namespace mr::text
