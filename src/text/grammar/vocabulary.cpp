#include "text/grammar/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"

namespace mr::text::grammar {
namespace {

// The number of characters, if a JSON string can hold them all unescaped; 0 otherwise.
std::size_t plain_characters(std::string_view text) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < text.size(); ++count) {
        const Utf8Char c = utf8_at(text, i);
        if (!c.valid || c.code < 0x20 || c.code == '"' || c.code == '\\') return 0;
        i += c.size;
    }
    return count;
}

}  // namespace

Vocabulary::Vocabulary(const Tokenizer& tokenizer, std::int32_t logits,
                       std::span<const std::int32_t> ends)
    : size_(logits > 0 ? logits : tokenizer.vocab_size()),
      words_((static_cast<std::size_t>(size_) + 31) / 32) {
    std::vector<std::int32_t> texts, others;
    for (MaskWords& mask : plain_) mask.assign(words_, 0);
    offsets_.push_back(0);
    for (std::int32_t id = 0; id < size_; ++id) {
        const bool known = id < tokenizer.vocab_size();
        const bool further = std::find(ends.begin(), ends.end(), id) != ends.end();
        if (further || (known && tokenizer.is_end_of_generation(id))) {
            ends_.push_back(id);
        } else if (known && !tokenizer.is_special(id)) {
            const std::string piece = tokenizer.piece(id);
            if (!piece.empty() && piece.size() <= kMostBytes) {
                text_ += piece;
                texts.push_back(id);
                const std::size_t count = plain_characters(piece);
                if (count == 0 || count > kMostPlain) others.push_back(id);
                for (std::size_t i = count; i > 0 && i <= kMostPlain; ++i) {
                    plain_[i - 1][static_cast<std::size_t>(id) / 32] |= 1u << id % 32;
                }
            }
        }
        offsets_.push_back(static_cast<std::uint32_t>(text_.size()));
    }
    all_ = tree_of(std::move(texts));
    other_ = tree_of(std::move(others));
    require_all_bytes(tokenizer);
}

Vocabulary::Tree Vocabulary::tree_of(std::vector<std::int32_t> tokens) const {
    std::sort(tokens.begin(), tokens.end(), [this](std::int32_t a, std::int32_t b) {
        const int order = bytes(a).compare(bytes(b));
        return order < 0 || (order == 0 && a < b);
    });
    Tree tree;
    std::vector<std::uint32_t> path;  // nodes along the previous text
    std::string_view before;
    const auto leave = [&](std::size_t depth) {
        for (; path.size() > depth; path.pop_back()) {
            tree.nodes[path.back()].skip = static_cast<std::uint32_t>(tree.nodes.size());
        }
    };
    for (const std::int32_t token : tokens) {
        const std::string_view text = bytes(token);
        const auto shared = static_cast<std::size_t>(
            std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first -
            before.begin());
        leave(shared);
        for (std::size_t i = shared; i < text.size(); ++i) {
            path.push_back(static_cast<std::uint32_t>(tree.nodes.size()));
            tree.nodes.push_back({0, static_cast<std::uint32_t>(tree.tokens.size()),
                                  static_cast<std::uint16_t>(i + 1),
                                  static_cast<std::uint8_t>(text[i])});
        }
        tree.tokens.push_back(token);
        before = text;
    }
    leave(0);
    tree.nodes.push_back({0, static_cast<std::uint32_t>(tree.tokens.size()), 0, 0});
    return tree;
}

void Vocabulary::require_all_bytes(const Tokenizer& tokenizer) const {
    std::array<bool, 256> there{};
    for (std::size_t i = 0; i + 1 < all_.nodes.size(); ++i) {
        const Node& node = all_.nodes[i];
        if (node.depth == 1 && all_.nodes[i + 1].first > node.first) there[node.byte] = true;
    }
    for (std::size_t byte = 0x20; byte <= 0xF4; ++byte) {
        if (there[byte] || byte == 0xC0 || byte == 0xC1) continue;
        throw Error::input(
            {.file = tokenizer.data().name,
             .problem = fmt::format("its vocabulary has no token for the byte 0x{:02X}, so it "
                                    "cannot write every JSON text",
                                    byte),
             .remedy = "use a model whose tokenizer has tokens for all bytes"});
    }
}

std::string_view Vocabulary::bytes(std::int32_t token) const {
    if (token < 0 || token >= size_) return {};
    const auto i = static_cast<std::size_t>(token);
    return std::string_view(text_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

bool Vocabulary::is_end(std::int32_t token) const {
    return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

}  // namespace mr::text::grammar
