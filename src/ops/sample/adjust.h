// What a request does to its logits before they are drawn from, beside the parameters of
// ops::sample(): it adds to some of them, and takes away those that must not come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mr::ops {

struct LogitBias {
    std::int32_t id = 0;
    float add = 0;  // -inf: the token never comes
};
inline constexpr std::size_t kMostBiases = 1024;  // of one text

struct Adjustments {
    std::vector<LogitBias> bias{};  // every id once
    // Taken from a token's logit where it was drawn before: once, and for each time that it was.
    // Tokens of the prompt do not count.
    float presence = 0, frequency = 0;

    explicit operator bool() const { return !bias.empty() || presence != 0 || frequency != 0; }
};

// Throws Error (usage): more than kMostBiases, an id that is none of the vocabulary or comes twice,
// a number that is not finite (but a bias of -inf).
void check_adjustments(const Adjustments& adjust, std::int64_t vocab);

// Which tokens may come next in one text, bit i % 32 of word i / 32 is token i. Used by the
// engine's thread alone.
class TokenFilter {
  public:
    virtual ~TokenFilter() = default;
    // Valid until accept().
    virtual std::span<const std::uint32_t> mask() = 0;
    virtual void accept(std::int32_t token) = 0;
    // Nothing but an end can follow.
    virtual bool finished() const = 0;
};

}  // namespace mr::ops
