// run --show-denoising: a text on the terminal, followed by the open block as it is filled in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mr::text {
class Tokenizer;
}

namespace mr::cli {

// Terminals differ in where the cursor is after a full line: most keep it on the last character
// until the next one comes, and forget that when it is moved. So the view counts columns, ends a
// full line itself before it draws, and drops a newline that may follow. It starts at the left
// border, and all output must go through it.
class DenoisingView {
  public:
    explicit DenoisingView(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
    // Writes permanent text. The drawn block is removed.
    void write(std::string_view text);
    // Draws the block after the text, in place of the last one drawn.
    void show(std::span<const std::int32_t> block, std::span<const std::uint8_t> known);

  private:
    void advance(std::string_view character, std::size_t width);

    const text::Tokenizer& tokenizer_;
    bool drawn_ = false;
    std::size_t column_ = 0;  // of the next character; the terminal's width if the line is full
    bool ended_ = false;      // the view ended the previous line because it was full
};

}  // namespace mr::cli
