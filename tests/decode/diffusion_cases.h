// What the tests of texts that are filled in share, on any engine: tiny models of every kind, and a
// decoder written as plainly as possible, which keeps nothing between passes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "decode/diffusion.h"
#include "model/engine.h"
#include "model/io/random.h"

namespace mr::test {

struct DiffusionCase {
    const char* name;
    int block;  // 0: attention is full
    int sub_block;
    bool shifted;
};
inline constexpr DiffusionCase kDiffusionCases[] = {
    {"aligned", 4, 0, false},     {"aligned16", 16, 0, false}, {"aligned64", 64, 0, false},
    {"shifted", 16, 4, true},     {"shifted8", 8, 0, true},    {"full", 0, 0, false},
    {"full_shifted", 0, 0, true},
};

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
    spec.mask.kind =
        of.block > 0 ? ops::AttentionMask::Kind::block_causal : ops::AttentionMask::Kind::full;
    spec.mask.block = std::max(of.block, 1);
    spec.diffusion = {95, of.block, of.sub_block, of.shifted};
    spec.validate("tiny");
    return spec;
}

inline std::shared_ptr<const model::Model> diffusion_model(const DiffusionCase& of) {
    return std::make_shared<const model::Model>(
        model::random_model(diffusion_spec(of), DType::f32, 11));
}

// Logits [vocab] of every token of a text, computed from nothing.
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
            // A shifted block-causal model takes a block's first token from the one before it.
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
            const ops::Sampled drawn =
                ops::sample(ctx, Tensor(row.data(), DType::f32, {std::ssize(row)}), sampling, {},
                            static_cast<std::uint64_t>(at), static_cast<std::uint64_t>(pass));
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

// Every strategy, with numbers that make tiny random models use both sides of them.
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

}  // namespace mr::test
