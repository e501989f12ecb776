// A text's filter, as the engine sees it. The engine asks for a mask after it has launched the
// layers of the next draw (ops::TokenFilter::mask()). Only then does the filter wait for the
// previous draw, so that the device computes while the host finds the mask, and no text waits for
// another text's filter.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "core/error.h"
#include "ops/sample/adjust.h"

namespace mr::decode {

class DrawnFilter final : public ops::TokenFilter {
  public:
    // `ends`: whether a token ends the text; the filter never sees such a token.
    DrawnFilter(std::unique_ptr<ops::TokenFilter> filter, std::function<bool(std::int32_t)> ends)
        : filter_(std::move(filter)), ends_(std::move(ends)) {}

    // `drawn` waits for draw number i of the text and returns its token.
    void follow(std::function<std::int32_t(std::int64_t)> drawn) { drawn_ = std::move(drawn); }
    // One more draw was launched.
    void launched() { ++launched_; }

    std::span<const std::uint32_t> mask() override {
        while (!over_ && taken_ < launched_) take();
        return filter_->mask();
    }
    // The text's next token, in the order of draws. The filter may have taken it already.
    void accept(std::int32_t token) override {
        if (read_++ < taken_) return;
        ++taken_;
        filter_->accept(token);
    }
    // Only for tokens that were read: a draw taken ahead of its reader does not end the text yet.
    bool finished() const override { return read_ >= taken_ && filter_->finished(); }

  private:
    // A draw that fails or ends the text is the last. Draws launched after it are never read, so
    // their mask does not matter.
    void take() {
        try {
            const std::int32_t token = drawn_(taken_);
            over_ = ends_(token) || filter_->finished();
            if (over_) return;
            filter_->accept(token);
            ++taken_;
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::input) throw;
            over_ = true;  // the error is thrown again where the draw is read
        }
    }

    std::unique_ptr<ops::TokenFilter> filter_;
    std::function<bool(std::int32_t)> ends_;
    std::function<std::int32_t(std::int64_t)> drawn_;
    std::int64_t launched_ = 0;  // draws launched
    std::int64_t taken_ = 0;     // draws the filter has taken
    std::int64_t read_ = 0;      // draws passed to accept()
    bool over_ = false;
};

}  // namespace mr::decode
