#include "ops/sample/adjust.h"

#include <cmath>
#include <limits>
#include <string>
#include <unordered_set>

#include "core/error.h"

namespace mr::ops {
namespace {

[[noreturn]] void wrong(const char* field, const std::string& value, const char* problem) {
    throw Error::usage({.field = field, .value = value, .problem = problem});
}

}  // namespace

void check_adjustments(const Adjustments& adjust, std::int64_t vocab) {
    if (!std::isfinite(adjust.presence)) {
        wrong("presence penalty", std::to_string(adjust.presence), "must be finite");
    }
    if (!std::isfinite(adjust.frequency)) {
        wrong("frequency penalty", std::to_string(adjust.frequency), "must be finite");
    }
    if (adjust.bias.size() > kMostBiases) {
        wrong("logit bias", std::to_string(adjust.bias.size()), "has more than 1024 tokens");
    }
    std::unordered_set<std::int32_t> ids;
    for (const LogitBias& bias : adjust.bias) {
        const std::string id = std::to_string(bias.id);
        if (bias.id < 0 || bias.id >= vocab) wrong("logit bias", id, "is no token of this model");
        if (!ids.insert(bias.id).second) wrong("logit bias", id, "comes twice");
        if (std::isnan(bias.add) || bias.add == std::numeric_limits<float>::infinity()) {
            wrong("logit bias", std::to_string(bias.add), "must be finite, or -inf");
        }
    }
}

void adjust_logits(std::span<float> logits, const Adjustments& adjust, const TokenCounts& counts,
                   std::span<const std::uint32_t> mask) {
    for (const LogitBias& bias : adjust.bias) logits[static_cast<std::size_t>(bias.id)] += bias.add;
    for (const auto& [id, count] : counts) {
        logits[static_cast<std::size_t>(id)] -=
            penalty_of(adjust.presence, adjust.frequency, count);
    }
    if (mask.empty()) return;
    MR_CHECK(mask.size() >= (logits.size() + 31) / 32, "a mask has a bit for every token");
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if ((mask[i / 32] >> (i % 32) & 1) == 0) {
            logits[i] = -std::numeric_limits<float>::infinity();
        }
    }
}

}  // namespace mr::ops
