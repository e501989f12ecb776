// The filter of a text that has a least length: until then no token ends it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/sample/adjust.h"

namespace mr::decode {

class LeastTokens final : public ops::TokenFilter {
  public:
    // `inner`: the text's own filter, or none. `ends`: the tokens that end the text. Where `inner`
    // leaves nothing but an end, the text ends early.
    LeastTokens(std::unique_ptr<ops::TokenFilter> inner, std::span<const std::int32_t> ends,
                std::int64_t least, std::int64_t vocab);

    std::span<const std::uint32_t> mask() override;
    void accept(std::int32_t token) override;
    bool finished() const override { return inner_ && inner_->finished(); }

  private:
    void ban_ends();

    std::unique_ptr<ops::TokenFilter> inner_;
    std::vector<std::int32_t> ends_;
    std::int64_t left_;                // tokens until the text may end
    std::vector<std::uint32_t> mask_;  // [(vocab + 31) / 32]
};

}  // namespace mr::decode
