// The filter of a text as the engine sees it. The engine asks for a mask when the layers of the
// next draw are on their way (ops::TokenFilter::mask()): only then is the draw before waited for,
// so that the device computes while the host finds the mask, and no text waits for another one's
// filter.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "core/error.h"
#include "ops/sample/adjust.h"

namespace mr::decode {

class DrawnFilter final : public ops::TokenFilter {
  public:
    // `ends`: whether a token ends the text; the filter never sees it.
    DrawnFilter(std::unique_ptr<ops::TokenFilter> filter, std::function<bool(std::int32_t)> ends)
        : filter_(std::move(filter)), ends_(std::move(ends)) {}

    // `drawn` waits for a draw of the text, by its number.
    void follow(std::function<std::int32_t(std::int64_t)> drawn) { drawn_ = std::move(drawn); }
    // One more draw was launched.
    void launched() { ++launched_; }

    std::span<const std::uint32_t> mask() override {
        while (!over_ && taken_ < launched_) take();
        return filter_->mask();
    }
    // The text's next token, in the order of the draws: known to the filter already, or not yet.
    void accept(std::int32_t token) override {
        if (read_++ < taken_) return;
        ++taken_;
        filter_->accept(token);
    }
    // Of the tokens that were read: a draw taken ahead of its reader ends nothing yet.
    bool finished() const override { return read_ >= taken_ && filter_->finished(); }

  private:
    // The text ends with a draw that fails or ends it. Draws launched behind are never read, and
    // may have any mask.
    void take() {
        try {
            const std::int32_t token = drawn_(taken_);
            over_ = ends_(token) || filter_->finished();
            if (over_) return;
            filter_->accept(token);
            ++taken_;
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::input) throw;
            over_ = true;  // the error comes again where the draw is read
        }
    }

    std::unique_ptr<ops::TokenFilter> filter_;
    std::function<bool(std::int32_t)> ends_;
    std::function<std::int32_t(std::int64_t)> drawn_;
    std::int64_t launched_ = 0;  // draws
    std::int64_t taken_ = 0;     // by the filter
    std::int64_t read_ = 0;      // accept()
    bool over_ = false;
};

}  // namespace mr::decode
