// Shared by the tests of diffusion texts, for any engine: tiny models of every kind, and a decoder
// written as plainly as possible, which keeps nothing between passes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/philox.h"
#include "core/splitmix.h"
#include "decode/diffusion.h"
#include "decode/live_cases.h"
#include "decode/scheduler.h"
#include "model/engine.h"
#include "model/io/random.h"

namespace mr::test {

struct DiffusionCase {
    const char* name;
    int block;  // 0: full attention
    int sub_block;
    bool shifted;
};
inline constexpr DiffusionCase kDiffusionCases[] = {
    {"aligned", 4, 0, false},     {"aligned16", 16, 0, false}, {"aligned64", 64, 0, false},
    {"shifted", 16, 4, true},     {"shifted8", 8, 0, true},    {"full", 0, 0, false},
    {"full_shifted", 0, 0, true},
};
// Those with block-causal attention, and among them those that commit a block together with the
// next.
inline std::vector<DiffusionCase> block_cases() {
    std::vector<DiffusionCase> out(std::begin(kDiffusionCases), std::end(kDiffusionCases));
    std::erase_if(out, [](const DiffusionCase& of) { return of.block == 0; });
    return out;
}
inline std::vector<DiffusionCase> together_cases() {
    std::vector<DiffusionCase> out = block_cases();
    std::erase_if(out, [](const DiffusionCase& of) {
        return of.shifted || 2 * of.block > model::kDecodePrompt;
    });
    return out;
}

inline model::ModelSpec diffusion_spec(const DiffusionCase& of) {
    model::ModelSpec spec;
    spec.family = "sdar";
    spec.vocab = 96;
    spec.dim = 64;
    spec.layers = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = 16;
    spec.hidden = 96;
    spec.context = 320;
    spec.rope.rotary = 16;
    spec.qk_norm = true;
    spec.tied_embeddings = true;
    model::set_diffusion(spec, {95, of.block, of.sub_block, of.shifted});
    spec.validate("tiny");
    return spec;
}

inline std::shared_ptr<const model::Model> diffusion_model(const DiffusionCase& of) {
    return std::make_shared<const model::Model>(
        model::random_model(diffusion_spec(of), DType::f32, 11));
}

// Logits [vocab] of every token of a text, computed from scratch.
inline std::vector<std::vector<float>> all_logits(model::Engine& engine,
                                                  const std::vector<std::int32_t>& ids,
                                                  const std::optional<ops::AttentionMask>& mask) {
    const model::SeqId seq = engine.cache().open();
    model::BatchItem item{.seq = seq,
                          .tokens = ids,
                          .logits = model::BatchItem::Logits::all,
                          .form = model::form_of_prompt(std::ssize(ids)),
                          .mask = mask};
    const Tensor logits = engine.to_host(engine.submit({&item, 1}));
    std::vector<std::vector<float>> out;
    for (std::int64_t r = 0; r < logits.rows(); ++r) {
        out.emplace_back(logits.f32(r), logits.f32(r) + logits.dim(1));
    }
    engine.cache().close(seq);
    return out;
}

// A draw without filters, in f64 and by its definition: every 16 tokens draw one of theirs by
// Philox at (seed, position, step and their number from 1 on), and the row draws one of the
// sixteens by Philox at (seed, position, step).
inline ops::Sampled plain_draw(const std::vector<float>& row, const ops::SampleParams& sampling,
                               std::uint64_t position, std::uint64_t step) {
    if (sampling.temperature == 0) {
        const auto best = std::max_element(row.begin(), row.end());
        return {static_cast<std::int32_t>(best - row.begin()), 1, 0};
    }
    const auto temperature = static_cast<double>(sampling.temperature);
    const auto best = static_cast<double>(*std::max_element(row.begin(), row.end()));
    std::vector<double> weights, sixteens;
    for (const float x : row) {
        weights.push_back(std::exp((static_cast<double>(x) - best) / temperature));
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (i % 16 == 0) sixteens.push_back(0);
        sixteens.back() += weights[i];
    }
    // The first at which the running sum exceeds a share `u` of the total.
    const auto draw = [&](std::span<const double> of, std::uint64_t stream) {
        double all = 0, to = 0;
        for (const double weight : of) all += weight;
        const double u = (philox(sampling.seed, position, stream)[0] >> 8) * 0x1p-24;
        std::size_t i = 0;
        for (to = of[0]; to <= u * all && i + 1 < of.size(); to += of[i]) ++i;
        return i;
    };
    const std::size_t tile = draw(sixteens, step);
    const std::span all(weights);
    const std::size_t in =
        draw(all.subspan(tile * 16, std::min<std::size_t>(16, weights.size() - tile * 16)),
             (tile + 1) << 32 | step);
    double sum = 0;
    for (const double weight : weights) sum += weight;
    const std::size_t id = tile * 16 + in;
    return {static_cast<std::int32_t>(id), static_cast<float>(weights[id] / sum), 0};
}

struct PlainDecoder {
    model::Engine& engine;
    decode::DiffusionOptions options;
    ops::SampleParams sampling;
    int passes = 0;

    std::vector<std::int32_t> operator()(const std::vector<std::int32_t>& prompt, int tokens) {
        const model::ModelSpec& spec = engine.model().spec;
        const model::DiffusionSpec& d = *spec.diffusion;
        const int block = options.block > 0 ? options.block : d.block > 0 ? d.block : 32;
        std::optional<ops::AttentionMask> mask;
        if (d.block > 0) {
            mask = spec.mask;
            mask->block = block;
        }
        std::vector<std::int32_t> text = prompt;
        const auto total = static_cast<int>(prompt.size()) + tokens;
        int start = static_cast<int>(prompt.size());
        if (d.block > 0) start = start / block * block;
        for (; start < total; start += block) {
            const int end = std::min(start + block, total);
            text.resize(static_cast<std::size_t>(d.block > 0 ? end : total), d.mask);
            std::vector<bool> known(text.size(), false);
            for (int i = 0; i < std::max<int>(start, static_cast<int>(prompt.size())); ++i) {
                known[static_cast<std::size_t>(i)] = true;
            }
            int pass = 0;
            // A shifted block-causal model predicts a block's first token from the one before it.
            if (d.block > 0 && d.shifted && !known[static_cast<std::size_t>(start)]) {
                const std::vector<std::int32_t> before(text.begin(), text.begin() + start);
                settle(text, known, all_logits(engine, before, mask), {start}, 1, pass++);
            }
            const int part = d.sub_block > 0 ? d.sub_block : block;
            for (int from = start; from < end; from += part) {
                while (true) {
                    std::vector<int> unknown;
                    for (int i = from; i < std::min(from + part, end); ++i) {
                        if (!known[static_cast<std::size_t>(i)]) unknown.push_back(i);
                    }
                    if (unknown.empty()) break;
                    int n = 1;
                    if (options.denoise.steps > 0) {
                        n = block / options.denoise.steps;
                        if (pass < block % options.denoise.steps) ++n;
                    }
                    settle(text, known, all_logits(engine, text, mask), unknown, n, pass++);
                }
            }
        }
        return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
    }

    void settle(std::vector<std::int32_t>& text, std::vector<bool>& known,
                std::vector<std::vector<float>> logits, const std::vector<int>& unknown, int n,
                int pass) {
        ++passes;
        const model::DiffusionSpec& d = *engine.model().spec.diffusion;
        struct Place {
            int at;
            std::int32_t id;
            double confidence, entropy;
        };
        std::vector<Place> places;
        for (const int at : unknown) {
            std::vector<float>& row = logits[static_cast<std::size_t>(d.shifted ? at - 1 : at)];
            row[static_cast<std::size_t>(d.mask)] = -std::numeric_limits<float>::infinity();
            double best = -INFINITY, sum = 0, entropy = 0;
            for (const float x : row) best = std::max<double>(best, static_cast<double>(x));
            for (const float x : row) sum += std::exp(static_cast<double>(x) - best);
            for (const float x : row) {
                const double p = std::exp(static_cast<double>(x) - best) / sum;
                if (p > 0) entropy -= p * std::log(p);
            }
            std::vector<std::byte> scratch(ops::sample_scratch_bytes(std::ssize(row)));
            Context ctx = engine.context();
            ctx.ledger = nullptr;
            ctx.scratch = scratch;
            const Tensor tensor(row.data(), DType::f32, {std::ssize(row)});
            const auto position = static_cast<std::uint64_t>(at);
            const auto step = static_cast<std::uint64_t>(pass);
            ops::Sampled drawn;
            if (ops::draw_is_filtered(sampling, std::ssize(row), -1)) {
                drawn = ops::sample(ctx, tensor, sampling, {}, position, step);
            } else {
                drawn = plain_draw(row, sampling, position, step);
            }
            const double confidence =
                options.denoise.drawn ? static_cast<double>(drawn.probability) : 1 / sum;
            places.push_back({at, drawn.id, confidence, entropy});
        }
        std::vector<Place> order = places;
        using ops::Remask;
        const Remask remask = options.denoise.remask;
        if (remask == Remask::fixed || remask == Remask::dynamic) {
            std::stable_sort(order.begin(), order.end(), [](const Place& a, const Place& b) {
                return static_cast<float>(a.confidence) > static_cast<float>(b.confidence);
            });
        } else if (remask == Remask::entropy) {
            std::stable_sort(order.begin(), order.end(), [](const Place& a, const Place& b) {
                return static_cast<float>(a.entropy) < static_cast<float>(b.entropy);
            });
        }
        double sum = 0;
        for (int i = 0; i < static_cast<int>(order.size()); ++i) {
            const Place& place = order[static_cast<std::size_t>(i)];
            sum += place.entropy;
            const bool take =
                remask == Remask::entropy
                    ? i == 0 || sum <= static_cast<double>(options.denoise.entropy_bound)
                    : i < n || (remask == Remask::dynamic &&
                                place.confidence > static_cast<double>(options.denoise.threshold));
            if (!take) break;
            text[static_cast<std::size_t>(place.at)] = place.id;
            known[static_cast<std::size_t>(place.at)] = true;
        }
    }
};

// Every strategy, with parameters for which tiny random models use both branches.
inline std::vector<ops::DenoiseParams> denoise_cases(int block) {
    using ops::Remask;
    std::vector<ops::DenoiseParams> out;
    for (const Remask remask : {Remask::sequential, Remask::fixed, Remask::dynamic}) {
        for (const int steps : {0, std::max(block / 2, 1), std::max(block / 3, 1)}) {
            out.push_back({.remask = remask, .steps = steps, .threshold = 0.06f});
        }
    }
    out.push_back({.remask = Remask::dynamic, .threshold = 0.5f, .drawn = true});
    out.push_back({.remask = Remask::entropy, .entropy_bound = 12.0f});
    out.push_back({.remask = Remask::entropy, .entropy_bound = 0.0f});
    return out;
}

inline decode::GenerateOptions filling(const ops::DenoiseParams& denoise, int tokens,
                                       std::uint64_t seed = 5) {
    decode::GenerateOptions options;
    options.max_tokens = tokens;
    options.ignore_end = true;
    options.sampling.temperature = 0.9f;
    options.sampling.top_k = 20;
    options.sampling.seed = seed;
    options.diffusion.denoise = denoise;
    return options;
}

// The same with unfiltered draws, at temperatures 0, 1 and another one in turn.
inline decode::GenerateOptions filling_unfiltered(const ops::DenoiseParams& denoise, int tokens,
                                                  std::uint64_t seed = 5) {
    decode::GenerateOptions options = filling(denoise, tokens, seed);
    options.sampling.temperature = seed % 3 == 0 ? 0.0f : seed % 3 == 1 ? 1.0f : 0.7f;
    options.sampling.top_k = 0;
    options.sampling.top_p = 1;
    options.sampling.min_p = 0;
    return options;
}

inline decode::Generated filled(model::Engine& engine, const std::vector<std::int32_t>& prompt,
                                const decode::GenerateOptions& options, bool on_host = false) {
    decode::Scheduler scheduler(engine);
    const decode::Scheduler::Id id = scheduler.add(prompt, options);
    if (on_host) scheduler.guess_on_host(id);
    while (scheduler.step()) {
    }
    return *scheduler.take(id);
}

// `make(sequences, pool)` makes an engine; texts have at most `longest` tokens.
template <typename Make>
void every_strategy_is_that_of_a_plain_decoder(const DiffusionCase& of, Make&& make, int longest) {
    const auto engine = make(1, 0), plain = make(1, 0);
    const int block = of.block > 0 ? of.block : model::kUsualBlock;
    int case_number = 0;
    for (const ops::DenoiseParams& denoise : denoise_cases(block)) {
        // Prompts and texts that fill their last block, and that do not.
        const int prompts[] = {1, 2 * block, 2 * block + 3, 37}, tokens[] = {1, 2 * block, 45};
        const int prompt_tokens = prompts[case_number % 4];
        for (const int count : tokens) {
            if (prompt_tokens + count > longest) continue;
            const auto prompt = some_tokens(prompt_tokens, 3 + case_number, 95);
            const auto seed = static_cast<std::uint64_t>(case_number);
            const bool filters = (case_number + count) % 2 == 0;
            const decode::GenerateOptions options =
                filters ? filling(denoise, count, seed) : filling_unfiltered(denoise, count, seed);
            SCOPED_TRACE(std::string(filters ? "filters, " : "no filters, ") +
                         std::string(ops::remask_name(denoise.remask)) + ", steps " +
                         std::to_string(denoise.steps) + ", prompt " +
                         std::to_string(prompt_tokens) + ", tokens " + std::to_string(count));
            PlainDecoder decoder{*plain, options.diffusion, options.sampling};
            const decode::Generated got = filled(*engine, prompt, options);
            EXPECT_EQ(got.ids, decoder(prompt, count));
            EXPECT_EQ(std::ssize(got.ids), count);
            // The mask token is never part of a text.
            EXPECT_EQ(std::count(got.ids.begin(), got.ids.end(), 95), 0);
        }
        ++case_number;
    }
}

template <typename Make>
void committing_with_the_next_block_is_committing_apart(const DiffusionCase& of, Make&& make) {
    const auto engine = make(1, 0);
    for (const int tokens : {7, 64, 100}) {
        const auto prompt = some_tokens(21, tokens, 95);
        decode::GenerateOptions options =
            filling({.remask = ops::Remask::dynamic, .threshold = 0.06f}, tokens);
        const decode::Generated together = filled(*engine, prompt, options);
        options.diffusion.commit_apart = true;
        const decode::Generated apart = filled(*engine, prompt, options);
        EXPECT_EQ(together.ids, apart.ids);
        if (tokens > 3 * of.block) {
            EXPECT_LT(together.passes, apart.passes);
        }
    }
}

// Scheduler::guess_on_host(): alone, and beside a text that does not use it.
template <typename Make>
void guesses_on_the_host_are_the_engines(const DiffusionCase& of, Make&& make) {
    constexpr int kTokens = 24;
    const auto engine = make(2, 0), alone = make(1, 0);
    std::uint64_t seed = 0;
    for (const ops::DenoiseParams& denoise :
         denoise_cases(of.block > 0 ? of.block : model::kUsualBlock)) {
        ++seed;
        SCOPED_TRACE(std::string(ops::remask_name(denoise.remask)) + ", seed " +
                     std::to_string(seed));
        const auto prompt = some_tokens(21, static_cast<int>(seed), 95);
        const decode::GenerateOptions options[] = {filling(denoise, kTokens, seed),
                                                   filling_unfiltered(denoise, kTokens, seed)};
        decode::Scheduler scheduler(*engine);
        const decode::Scheduler::Id ids[] = {scheduler.add(prompt, options[0]),
                                             scheduler.add(prompt, options[1])};
        scheduler.guess_on_host(ids[0]);
        while (scheduler.step()) {
        }
        for (const int i : {0, 1}) {
            const decode::Generated want = filled(*alone, prompt, options[i]);
            EXPECT_EQ(scheduler.take(ids[i])->ids, want.ids);
            const decode::Generated got = filled(*alone, prompt, options[i], true);
            EXPECT_EQ(got.ids, want.ids);
            EXPECT_EQ(got.passes, want.passes);
            // All logits of the rows were read, and on a GPU copied.
            const auto row = static_cast<std::uint64_t>(alone->model().spec.vocab) * sizeof(float);
            EXPECT_GE(got.decode.ledger.op(OpKind::sample).bytes(), kTokens * row);
            if (alone->options().cuda) {
                EXPECT_GE(got.decode.ledger.device_to_host().bytes, kTokens * row);
            }
        }
    }
}

// Requests that arrive, are cancelled and share prefixes, in a pool too small for all.
template <typename Make>
void texts_have_the_bits_they_have_alone(const DiffusionCase& of, Make&& make) {
    const int block = of.block > 0 ? of.block : model::kUsualBlock;
    const auto denoise = denoise_cases(block);
    struct Order {
        std::vector<std::int32_t> prompt;
        decode::GenerateOptions options;
        int arrival = 0, cancelled = -1;
    };
    std::vector<Order> orders;
    std::uint64_t state = 7;
    const auto below = [&state](int n) {
        state = splitmix(state);
        return static_cast<int>(state % static_cast<std::uint64_t>(n));
    };
    constexpr int kOrders = 40;
    for (int i = 0; i < kOrders; ++i) {
        Order order;
        // Some have equal prefixes, so that pages are shared and prompts are computed once.
        order.prompt = some_tokens(1 + below(90), below(4), 95);
        const auto which = static_cast<std::size_t>(below(static_cast<int>(denoise.size())));
        // Half of them have filters, so that passes are mixed.
        const int tokens = 1 + below(50);
        const auto seed = static_cast<std::uint64_t>(i);
        order.options = i % 2 ? filling(denoise[which], tokens, seed)
                              : filling_unfiltered(denoise[which], tokens, seed);
        order.arrival = below(60);
        if (below(5) == 0) order.cancelled = below(30);
        orders.push_back(std::move(order));
    }
    const auto engine = make(6, 420);
    decode::Scheduler scheduler(*engine);
    std::vector<decode::Scheduler::Id> ids(orders.size(), 0);
    std::vector<int> age(orders.size(), 0);
    bool busy = true;
    for (int step = 0; busy || step < 60; ++step) {
        for (std::size_t i = 0; i < orders.size(); ++i) {
            if (orders[i].arrival == step) {
                ids[i] = scheduler.add(orders[i].prompt, orders[i].options);
            }
            if (ids[i] != 0 && age[i]++ == orders[i].cancelled) scheduler.cancel(ids[i]);
        }
        busy = scheduler.step();
        engine->cache().check_books();
    }
    for (std::size_t i = 0; i < orders.size(); ++i) {
        SCOPED_TRACE(i);
        const std::optional<decode::Generated> got = scheduler.take(ids[i]);
        ASSERT_TRUE(got);
        const auto alone = make(1, 0);
        std::vector<std::int32_t> want = filled(*alone, orders[i].prompt, orders[i].options).ids;
        if (got->reason == decode::StopReason::cancelled) want.resize(got->ids.size());
        EXPECT_EQ(got->ids, want);
    }
    if (of.block > 0 && 32 % of.block == 0) {
        EXPECT_GT(scheduler.totals().found, 0);
    }
}

}  // namespace mr::test
