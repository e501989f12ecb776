#include "ops/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "core/philox.h"
#include "ops/loss/loss_kernels.h"

namespace mr::ops {
namespace {

constexpr const char* kRemedy =
    "the weights may be damaged: check the file; --check-nan names the layer where it begins";

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A token this many nats below the best weighs under 2e-22: less than the rounding of the sum over
// any vocabulary, and less than a draw of 24 bits can resolve.
constexpr double kNegligible = -50;

struct Candidate {
    float logit;
    std::int32_t id;
};

// Decreasing probability, ties by id.
bool before(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Logits relative to the best one, and their weights.
class Weigher {
  public:
    Weigher(float best, float temperature) : best_(best), temperature_(temperature) {}
    double nats(float logit) const {
        if (best_ == kInfinity) {  // infinite logits share all the probability
            return logit == kInfinity ? 0.0 : -std::numeric_limits<double>::infinity();
        }
        return (static_cast<double>(logit) - static_cast<double>(best_)) /
               static_cast<double>(temperature_);
    }
    double weight(float logit) const { return std::exp(nats(logit)); }

  private:
    float best_, temperature_;
};

// A list that is sorted only as far as it is read.
class SortedFront {
  public:
    explicit SortedFront(std::span<Candidate> all) : all_(all) {}
    std::size_t size() const { return all_.size(); }
    const Candidate& operator[](std::size_t i) {
        while (i >= sorted_) {
            const std::size_t step =
                std::min(std::max<std::size_t>(256, sorted_), size() - sorted_);
            const auto first = all_.begin() + static_cast<std::ptrdiff_t>(sorted_);
            const auto last = first + static_cast<std::ptrdiff_t>(step);
            if (last != all_.end()) std::nth_element(first, last, all_.end(), before);
            std::sort(first, last, before);
            sorted_ += step;
        }
        return all_[i];
    }

  private:
    std::span<Candidate> all_;
    std::size_t sorted_ = 0;
};

// The k best of all logits, in no order. Keeps a buffer of at most twice k and a threshold below
// which nothing enters it: one compare for nearly every logit.
std::span<Candidate> take_best(std::span<const float> logits, std::size_t k, Candidate* buffer) {
    const std::size_t capacity = std::min(std::max<std::size_t>(2 * k, 256), logits.size());
    std::size_t held = 0;
    float threshold = -kInfinity;
    bool full = false;
    const auto shrink = [&] {
        if (held <= k) return;
        std::nth_element(buffer, buffer + k - 1, buffer + held, before);
        held = k;
        threshold = buffer[k - 1].logit;
        full = true;
    };
    for (std::size_t i = 0; i < logits.size(); ++i) {
        // An id equal to the threshold comes after it, because ids rise.
        if (full && !(logits[i] > threshold)) continue;
        if (held == capacity) {
            shrink();
            if (!(logits[i] > threshold)) continue;
        }
        buffer[held++] = {logits[i], static_cast<std::int32_t>(i)};
    }
    shrink();
    return {buffer, held};
}

}  // namespace

void check_sample_params(const SampleParams& params) {
    const auto require = [](bool ok, const char* field, float value, const char* problem) {
        if (ok) return;
        throw Error::usage({.field = field, .value = std::to_string(value), .problem = problem});
    };
    require(params.temperature >= 0 && params.temperature < kInfinity, "temperature",
            params.temperature, "must be 0 (greedy) or a positive number");
    require(params.top_k >= 0, "top-k", static_cast<float>(params.top_k),
            "must be 0 (all) or a positive number");
    require(params.top_p >= 0 && params.top_p <= 1, "top-p", params.top_p, "must be in [0, 1]");
    require(params.min_p >= 0 && params.min_p <= 1, "min-p", params.min_p, "must be in [0, 1]");
    require(params.repeat_penalty > 0 && params.repeat_penalty < kInfinity, "repeat-penalty",
            params.repeat_penalty, "must be a positive number");
}

void nan_in_logits() {
    throw Error::input(
        {.field = "logits", .problem = "a logit is not a number", .remedy = kRemedy});
}

void no_token_in_logits() {
    throw Error::input({.field = "logits",
                        .problem = "every logit is minus infinity, no token is possible",
                        .remedy = kRemedy});
}

std::size_t sample_scratch_bytes(std::int64_t vocab) {
    // Candidates, and the logits after the penalty.
    return static_cast<std::size_t>(vocab) * (sizeof(Candidate) + sizeof(float)) + 64;
}

Sampled sample(const Context& ctx, Tensor logits, const SampleParams& params,
               std::span<const std::int32_t> recent, std::uint64_t position, std::uint64_t step) {
    check_sample_params(params);
    MR_CHECK(logits.dtype == DType::f32 && logits.shape.count() > 0, "logits are f32 [vocab]");
    const auto vocab = static_cast<std::size_t>(logits.shape.count());
    MR_CHECK(ctx.scratch.size() >= sample_scratch_bytes(static_cast<std::int64_t>(vocab)),
             "sample is given sample_scratch_bytes()");
    for (std::int32_t id : recent) {
        MR_CHECK(id >= 0 && static_cast<std::size_t>(id) < vocab,
                 "recent ids lie in the vocabulary");
    }
    // Compare, subtract, exponential, add: 4 operations per logit, as in the loss.
    const LedgerEntry entry(ctx.ledger, OpKind::sample, logits.bytes() + recent.size_bytes(), 0,
                            4 * static_cast<std::uint64_t>(vocab));

    const float* raw = logits.f32();
    const auto count = static_cast<std::int64_t>(vocab);
    bool nan = false;
    const float raw_best = MR_DISPATCH(row_max)(raw, count, &nan);
    if (nan) nan_in_logits();
    if (raw_best == -kInfinity) no_token_in_logits();
    auto* buffer = reinterpret_cast<Candidate*>(
        (reinterpret_cast<std::uintptr_t>(ctx.scratch.data()) + 15) / 16 * 16);
    const float* x = raw;
    float best = raw_best;
    if (params.repeat_penalty != 1.0f && !recent.empty()) {
        auto* copy = reinterpret_cast<float*>(buffer + vocab);
        std::memcpy(copy, raw, vocab * sizeof(float));
        for (std::int32_t id : recent) {  // from the raw logit, so that a repeated id counts once
            const float logit = raw[id];
            copy[id] = logit > 0 ? logit / params.repeat_penalty : logit * params.repeat_penalty;
        }
        x = copy;
        best = MR_DISPATCH(row_max)(x, count, &nan);
    }
    const auto confidence = [&](std::int32_t id) {
        if (raw_best == kInfinity) {
            return raw[id] == kInfinity
                       ? 1.0f / static_cast<float>(std::count(raw, raw + vocab, kInfinity))
                       : 0.0f;
        }
        const double weight =
            std::exp(static_cast<double>(raw[id]) - static_cast<double>(raw_best));
        return static_cast<float>(weight / MR_DISPATCH(row_exp_sum)(raw, count, raw_best));
    };
    if (params.temperature == 0) {
        const auto id = static_cast<std::int32_t>(std::find(x, x + vocab, best) - x);
        return {id, 1.0f, confidence(id)};
    }

    const Weigher weigher(best, params.temperature);
    const double top_p = params.top_p, min_p = params.min_p;
    std::span<Candidate> chosen;
    double total = 0;  // of all candidates after top-k; top-p is a part of it
    if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < vocab) {
        chosen = take_best({x, vocab}, static_cast<std::size_t>(params.top_k), buffer);
        std::sort(chosen.begin(), chosen.end(), before);
        for (const Candidate& c : chosen) total += weigher.weight(c.logit);
    } else {
        // Candidates that min-p drops need not be sorted; its exact test comes below.
        const double floor = min_p > 0 ? std::log(min_p) - 1e-6 : kNegligible;
        const bool want_total = top_p < 1 || min_p == 0;
        std::size_t held = 0;
        for (std::size_t i = 0; i < vocab; ++i) {
            const double nats = weigher.nats(x[i]);
            if (nats < kNegligible) continue;
            if (want_total) total += std::exp(nats);
            if (nats >= floor) buffer[held++] = {x[i], static_cast<std::int32_t>(i)};
        }
        chosen = {buffer, held};
    }

    // Top-p and min-p each keep a front of the sorted candidates: the shorter one remains.
    SortedFront front(chosen);
    std::size_t kept = front.size();
    double kept_total = total;
    if (top_p < 1 || min_p > 0) {
        kept = 0;
        kept_total = 0;
        while (kept < front.size()) {
            const double weight = weigher.weight(front[kept].logit);
            if (kept > 0 && weight < min_p) break;
            kept_total += weight;
            ++kept;
            if (top_p < 1 && kept_total >= top_p * total) break;
        }
    }

    const double target =
        static_cast<double>(unit_float(philox(params.seed, position, step)[0])) * kept_total;
    double sum = 0, weight = 0;
    std::size_t drawn = 0;
    for (std::size_t i = 0; i < kept; ++i) {
        const double w = weigher.weight(front[i].logit);
        if (w == 0) break;
        drawn = i;
        weight = w;
        sum += w;
        if (sum > target) break;
    }
    const std::int32_t id = front[drawn].id;
    return {id, static_cast<float>(weight / kept_total), confidence(id)};
}

}  // namespace mr::ops
