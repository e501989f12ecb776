#include "ops/denoise/denoise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "ops/denoise/tile_draw.h"
#include "ops/loss/loss_kernels.h"

namespace mr::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The draw of tile_draw.h; `best`: the largest logit. It uses 8 bytes per tile of its scratch,
// sample_scratch_bytes().
Sampled drawn_by_tiles(const Context& ctx, std::span<const float> logits, float best,
                       const SampleParams& sampling, std::uint64_t position, std::uint64_t step) {
    check_sample_params(sampling);
    const auto vocab = static_cast<int>(logits.size());
    const auto tiles = static_cast<int>(draw_tiles(vocab));
    MR_CHECK(ctx.scratch.size() >= sample_scratch_bytes(vocab),
             "guess is given sample_scratch_bytes()");
    // As in sample(): the logits are read once.
    const LedgerEntry entry(ctx.ledger, OpKind::sample, logits.size_bytes(), 0,
                            4 * static_cast<std::uint64_t>(vocab));
    const TileAsk ask{.temperature = sampling.temperature,
                      .seed = sampling.seed,
                      .position = position,
                      .step = static_cast<std::uint32_t>(step)};
    const float rate = tile::rate_of(ask.temperature);
    float x[kDrawTile];
    const auto load = [&](int number) {
        const auto first = static_cast<std::size_t>(number) * kDrawTile;
        const std::size_t count = std::min<std::size_t>(kDrawTile, logits.size() - first);
        std::copy_n(logits.begin() + static_cast<std::ptrdiff_t>(first), count, x);
        std::fill(x + count, x + kDrawTile, kNoLogit);
        return *std::max_element(x, x + kDrawTile);
    };
    auto* const shares = reinterpret_cast<std::uint64_t*>(
        (reinterpret_cast<std::uintptr_t>(ctx.scratch.data()) + 15) / 16 * 16);
    std::uint32_t weights[kDrawTile];
    std::uint64_t kept = 0;
    for (int i = 0; i < tiles; ++i) {
        const float top = load(i), d = tile::cooled(tile::below(top, best), rate);
        shares[i] = tile::share(tile::weigh(x, top, ask.temperature, weights), d);
        kept += shares[i];
    }
    const std::uint64_t target = tile::target_in(tile::row_word(ask), kept);
    int drawn = 0;
    for (std::uint64_t to = shares[0]; to < target; to += shares[drawn]) ++drawn;
    const float top = load(drawn);
    const std::uint32_t sum = tile::weigh(x, top, ask.temperature, weights);
    const int place = tile::candidate(weights, sum, tile::tile_word(ask, drawn));
    const float weight = tile::falling(tile::cooled(tile::below(x[place], best), rate));
    return {drawn * kDrawTile + place,
            static_cast<float>(static_cast<double>(weight) * 0x1p40 / static_cast<double>(kept)),
            0};
}

}  // namespace

const char* remask_name(Remask remask) {
    switch (remask) {
        case Remask::sequential:
            return "sequential";
        case Remask::fixed:
            return "static";
        case Remask::dynamic:
            return "dynamic";
        case Remask::entropy:
            return "entropy";
    }
    return "";
}

std::optional<Remask> remask_of(std::string_view name) {
    for (const Remask r : {Remask::sequential, Remask::fixed, Remask::dynamic, Remask::entropy}) {
        if (name == remask_name(r)) return r;
    }
    return std::nullopt;
}

void check_denoise_params(const DenoiseParams& params, std::int64_t block) {
    const auto refuse = [](const char* field, std::string value, std::string problem) {
        throw Error::usage(
            {.field = field, .value = std::move(value), .problem = std::move(problem)});
    };
    if (params.steps < 0 || params.steps > block) {
        refuse(
            "--steps", fmt::format("{}", params.steps),
            fmt::format("a block of {} tokens is filled in within 1 to {} passes", block, block));
    }
    if (!(params.threshold >= 0 && params.threshold <= 1)) {
        refuse("--threshold", fmt::format("{}", params.threshold), "is a probability, from 0 to 1");
    }
    if (!(params.entropy_bound >= 0 && std::isfinite(params.entropy_bound))) {
        refuse("--entropy-bound", fmt::format("{}", params.entropy_bound),
               "must be 0 or a positive number of nats");
    }
}

void check_guess(const Guess& guess) {
    if (guess.id == kGuessNan) nan_in_logits();
    if (guess.id == kGuessNone) no_token_in_logits();
}

Guess guess(const Context& ctx, Tensor logits, const SampleParams& sampling,
            const DenoiseParams& how, std::int32_t mask, std::uint64_t position, std::uint64_t step,
            std::int32_t truth) {
    const Guess out = guess_or_fault(ctx, logits, sampling, how, mask, position, step, truth);
    check_guess(out);
    return out;
}

Guess guess_or_fault(const Context& ctx, Tensor logits, const SampleParams& sampling,
                     const DenoiseParams& how, std::int32_t mask, std::uint64_t position,
                     std::uint64_t step, std::int32_t truth) {
    const std::int64_t vocab = logits.shape.count();
    MR_CHECK(logits.dtype == DType::f32 && mask < vocab && truth < vocab, "logits are f32 [vocab]");
    float* const row = logits.f32();
    if (mask >= 0) row[mask] = -kInfinity;
    bool nan = false;
    const float best = MR_DISPATCH(row_max)(row, vocab, &nan);
    if (nan) return {.id = kGuessNan};
    if (best == -kInfinity) return {.id = kGuessNone};
    const bool infinite = best == kInfinity;  // infinite logits share all the probability
    const double sum = infinite ? static_cast<double>(std::count(row, row + vocab, best))
                                : MR_DISPATCH(row_exp_sum)(row, vocab, best);
    Guess out{.id = truth, .confidence = static_cast<float>(1 / sum)};
    if (truth < 0) {
        const bool by_tiles = sampling.temperature > 0 && !draw_is_filtered(sampling, vocab, truth);
        SampleParams without_penalty = sampling;
        without_penalty.repeat_penalty = 1;
        const Sampled made = by_tiles ? drawn_by_tiles(ctx, {row, static_cast<std::size_t>(vocab)},
                                                       best, sampling, position, step)
                                      : sample(ctx, logits, without_penalty, {}, position, step);
        out.id = made.id;
        if (how.drawn) out.confidence = made.probability;
    }
    const double below =
        infinite ? (row[out.id] == kInfinity ? 0.0 : -std::numeric_limits<double>::infinity())
                 : static_cast<double>(row[out.id]) - static_cast<double>(best);
    out.logprob = static_cast<float>(below - std::log(sum));
    if (how.remask != Remask::entropy) return out;
    double weighted = 0;  // sum of e^x x, where x is at most 0
    for (std::int64_t i = 0; i < vocab && !infinite; ++i) {
        const double nats = static_cast<double>(row[i]) - static_cast<double>(best);
        if (nats > -100) weighted += std::exp(nats) * nats;  // the rest is below the rounding
    }
    out.entropy = static_cast<float>(std::max(std::log(sum) - weighted / sum, 0.0));
    return out;
}

std::int32_t scheduled(std::int64_t block, std::int32_t steps, std::int64_t pass) {
    if (steps <= 0) return 1;
    const std::int64_t n = block / steps + (pass < block % steps ? 1 : 0);
    return static_cast<std::int32_t>(std::max<std::int64_t>(n, 1));
}

std::int32_t choose(const DenoiseParams& params, std::span<const Guess> guesses, std::int32_t n,
                    std::span<std::uint8_t> settled) {
    MR_CHECK(settled.size() == guesses.size(), "every guess has a flag");
    const std::size_t count = guesses.size();
    const std::size_t least = std::min<std::size_t>(static_cast<std::size_t>(n), count);
    std::fill(settled.begin(), settled.end(), std::uint8_t{0});
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    const bool by_entropy = params.remask == Remask::entropy;
    if (params.remask != Remask::sequential) {
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return by_entropy ? guesses[a].entropy < guesses[b].entropy
                              : guesses[a].confidence > guesses[b].confidence;
        });
    }
    std::size_t taken = least;
    if (params.remask == Remask::dynamic) {
        while (taken < count && guesses[order[taken]].confidence > params.threshold) ++taken;
    } else if (by_entropy) {
        float sum = 0;
        for (taken = 0; taken < count; ++taken) {
            sum += guesses[order[taken]].entropy;
            if (taken > 0 && sum > params.entropy_bound) break;
        }
    }
    for (std::size_t i = 0; i < taken; ++i) settled[order[i]] = 1;
    return static_cast<std::int32_t>(taken);
}

}  // namespace mr::ops
