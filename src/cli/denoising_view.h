// run --show-denoising: a text on the terminal, and behind it the open block as it clears up.
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

// Terminals do not agree on where the cursor is behind a line that is full: most keep it on the
// last character until the next one comes, and forget about that when it is moved. So the view
// counts columns, ends a full line itself before it draws, and leaves out the newline that may
// follow. It begins at the left border, and everything that is shown must be written by it.
class DenoisingView {
  public:
    explicit DenoisingView(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
    // Text that stays. The block that is drawn goes.
    void write(std::string_view text);
    // Draws the block behind the text, in place of what was drawn there.
    void show(std::span<const std::int32_t> block, std::span<const std::uint8_t> known);

  private:
    void advance(std::string_view character, std::size_t width);

    const text::Tokenizer& tokenizer_;
    bool drawn_ = false;
    std::size_t column_ = 0;  // of the next character; the terminal's width where the line is full
    bool ended_ = false;      // the view has ended the line before this one, because it was full
};

}  // namespace mr::cli
