// A string with marks for the bytes that users wrote. The marks decide which special tokens in it
// are parsed and which stay text (LiteralRange in text/tokenizer.h).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::text::jinja {

class MarkedText {
  public:
    MarkedText() = default;
    // Entirely from the template, or entirely from the user.
    explicit MarkedText(std::string bytes, bool user = false);

    const std::string& bytes() const { return bytes_; }
    std::size_t size() const { return bytes_.size(); }
    bool empty() const { return bytes_.empty(); }
    // In order, without overlap, none of them empty.
    std::span<const LiteralRange> user() const { return user_; }
    bool any_user(std::size_t begin, std::size_t end) const;
    bool user_at(std::size_t byte) const { return any_user(byte, byte + 1); }

    // A piece must not be part of this text itself.
    void append(std::string_view piece, bool user);
    void append(const MarkedText& piece) { append(piece, 0, piece.size()); }
    void append(const MarkedText& piece, std::size_t begin, std::size_t end);
    MarkedText slice(std::size_t begin, std::size_t end) const;

  private:
    void mark(std::size_t begin, std::size_t end);

    std::string bytes_;
    std::vector<LiteralRange> user_;
};

}  // namespace mr::text::jinja
