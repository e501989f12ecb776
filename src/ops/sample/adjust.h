// What a request does to its logits before they are drawn from, beside the parameters of
// ops::sample(): it adds to some of them, and takes away those that must not come.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
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

    bool counts() const { return presence != 0 || frequency != 0; }
    explicit operator bool() const { return !bias.empty() || counts(); }
};

// Throws Error (usage): more than kMostBiases, an id that is none of the vocabulary or comes twice,
// a number that is not finite (but a bias of -inf).
void check_adjustments(const Adjustments& adjust, std::int64_t vocab);

inline constexpr std::int32_t kMostCounted = 0xffff;  // more draws of a token are not counted
using TokenCounts = std::unordered_map<std::int32_t, std::int32_t>;  // how often each was drawn

// What the penalties take from the logit of a token that was drawn `count` times. The product is
// exact in f64, so every engine has the same bits.
constexpr float penalty_of(float presence, float frequency, std::int32_t count) {
    return static_cast<float>(static_cast<double>(presence) +
                              static_cast<double>(frequency) * count);
}

// Logits [vocab]: the bias is added, then penalties are taken away, then tokens outside of the mask
// become -inf. An empty mask has them all.
void adjust_logits(std::span<float> logits, const Adjustments& adjust, const TokenCounts& counts,
                   std::span<const std::uint32_t> mask);

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
