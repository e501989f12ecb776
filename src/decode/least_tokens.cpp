#include "decode/least_tokens.h"

#include <algorithm>
#include <utility>

namespace mr::decode {
namespace {

std::uint32_t bit_of(std::int32_t token) { return std::uint32_t{1} << (token % 32); }
std::size_t word_of(std::int32_t token) { return static_cast<std::size_t>(token / 32); }

}  // namespace

LeastTokens::LeastTokens(std::unique_ptr<ops::TokenFilter> inner,
                         std::span<const std::int32_t> ends, std::int64_t least, std::int64_t vocab)
    : inner_(std::move(inner)), ends_(ends.begin(), ends.end()), left_(least) {
    std::erase_if(ends_, [&](std::int32_t token) { return token < 0 || token >= vocab; });
    if (inner_) return;
    mask_.assign(static_cast<std::size_t>((vocab + 31) / 32), ~std::uint32_t{0});
    if (vocab % 32 != 0) mask_.back() = (std::uint32_t{1} << (vocab % 32)) - 1;
    ban_ends();
}

void LeastTokens::ban_ends() {
    for (const std::int32_t token : ends_) {
        if (word_of(token) < mask_.size()) mask_[word_of(token)] &= ~bit_of(token);
    }
}

std::span<const std::uint32_t> LeastTokens::mask() {
    if (!inner_) return mask_;
    const std::span<const std::uint32_t> own = inner_->mask();
    if (left_ <= 0) return own;
    mask_.assign(own.begin(), own.end());
    ban_ends();
    const bool any = std::any_of(mask_.begin(), mask_.end(), [](auto word) { return word != 0; });
    return any ? std::span<const std::uint32_t>(mask_) : own;
}

void LeastTokens::accept(std::int32_t token) {
    if (inner_) inner_->accept(token);
    if (--left_ != 0 || inner_) return;
    for (const std::int32_t end : ends_) mask_[word_of(end)] |= bit_of(end);
}

}  // namespace mr::decode
