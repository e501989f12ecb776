// A request's changes to its logits before the draw, besides the parameters of ops::sample():
// biases, penalties, and a mask of allowed tokens.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace mr::ops {

struct LogitBias {
    std::int32_t id = 0;
    float add = 0;  // -inf: the token is never drawn
};
inline constexpr std::size_t kMostBiases = 1024;  // per text

struct Adjustments {
    std::vector<LogitBias> bias{};  // every id at most once
    // Subtracted from a token's logit if it was drawn before: once (presence), and for each time
    // (frequency). Tokens of the prompt do not count.
    float presence = 0, frequency = 0;

    bool counts() const { return presence != 0 || frequency != 0; }
    explicit operator bool() const { return !bias.empty() || counts(); }
};

// Throws Error (usage) for more than kMostBiases, an id outside of the vocabulary or used twice, or
// a number that is not finite (except a bias of -inf).
void check_adjustments(const Adjustments& adjust, std::int64_t vocab);

inline constexpr std::int32_t kMostCounted = 0xffff;  // further draws of a token are not counted
using TokenCounts = std::unordered_map<std::int32_t, std::int32_t>;  // how often it was drawn

// The penalties on the logit of a token that was drawn `count` times. The product is exact in f64,
// so every engine has the same bits.
constexpr float penalty_of(float presence, float frequency, std::int32_t count) {
    return static_cast<float>(static_cast<double>(presence) +
                              static_cast<double>(frequency) * count);
}

// Logits [vocab]: adds the bias, subtracts penalties, then sets tokens outside of the mask to -inf.
// An empty mask allows all.
void adjust_logits(std::span<float> logits, const Adjustments& adjust, const TokenCounts& counts,
                   std::span<const std::uint32_t> mask);

// Which tokens may come next in one text: bit i % 32 of word i / 32 is token i. Used only by the
// engine's thread.
class TokenFilter {
  public:
    virtual ~TokenFilter() = default;
    // Valid until accept().
    virtual std::span<const std::uint32_t> mask() = 0;
    virtual void accept(std::int32_t token) = 0;
    // Only an end can follow.
    virtual bool finished() const = 0;
};

}  // namespace mr::ops
