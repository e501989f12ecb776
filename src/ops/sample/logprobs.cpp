#include "ops/sample/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace mr::ops {

DrawnLogprobs logprobs_of(std::span<const float> logits, std::int32_t drawn, int top) {
    MR_CHECK(drawn >= 0 && static_cast<std::size_t>(drawn) < logits.size(),
             "the token that was drawn is one of the vocabulary");
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    // As in ops::sample(), logits of +inf share all the probability.
    const auto above = [&](float logit) {
        if (std::isinf(most)) return logit == most ? 0.0 : kNever;
        return static_cast<double>(logit) - most;
    };
    for (const float logit : logits) sum += std::exp(above(logit));
    const auto logprob = [&](std::int32_t id) {
        return above(logits[static_cast<std::size_t>(id)]) - std::log(sum);
    };
    DrawnLogprobs out;
    out.logprob = logprob(drawn);
    std::vector<std::int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto count = static_cast<std::ptrdiff_t>(
        std::min(static_cast<std::size_t>(std::max(top, 0)), ids.size()));
    std::partial_sort(ids.begin(), ids.begin() + count, ids.end(),
                      [&](std::int32_t a, std::int32_t b) {
                          const float of_a = logits[static_cast<std::size_t>(a)];
                          const float of_b = logits[static_cast<std::size_t>(b)];
                          return of_a != of_b ? of_a > of_b : a < b;
                      });
    for (auto id = ids.begin(); id != ids.begin() + count; ++id) {
        if (logprob(*id) == kNever) break;
        out.top.push_back({*id, logprob(*id)});
    }
    return out;
}

}  // namespace mr::ops
