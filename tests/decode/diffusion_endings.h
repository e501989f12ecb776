// Diffusion texts that end early (by logits that are not finite, by an end token or a stop string
// inside a block), and texts beside which others come and go: later texts on the same engine equal
// those of a fresh one.
//
// `open(model)` returns a function that makes engines of the model for a number of sequences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "decode/diffusion_cases.h"
#include "plant.h"

namespace mr::test {

inline int block_of(const DiffusionCase& of) {
    return of.block > 0 ? of.block : model::kUsualBlock;
}

inline bool holds(const std::vector<std::int32_t>& ids, std::int32_t token) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
}

// Its tokens are bytes. Its head is untied, so that damage to a token's embedding only affects
// texts with that token.
inline model::Model byte_model(const DiffusionCase& of, DType type) {
    model::ModelSpec spec = diffusion_spec(of);
    spec.tied_embeddings = false;
    model::Model out = model::random_model(spec, type, 11);
    out.tokenizer = text::Tokenizer::bytes(spec.vocab);
    return out;
}

inline model::EngineOptions with_room(model::EngineOptions options, int sequences) {
    options.context = 300;
    options.max_sequences = sequences;
    options.max_batch = options.max_logits = 320;
    return options;
}
inline auto engines_on_cpu(model::Model model) {
    auto shared = std::make_shared<const model::Model>(std::move(model));
    return [shared](int sequences) {
        return model::make_engine(shared, with_room({.threads = 1}, sequences));
    };
}

// A text with a token, ids[at], that is neither in its prompt nor before; it lies inside a block
// and after the first one.
struct TextWithNewToken {
    std::vector<std::int32_t> prompt, ids;
    decode::GenerateOptions options;
    std::size_t at = 0;
};

// Tries seeds until there is one.
inline std::optional<TextWithNewToken> text_with_new_token(model::Engine& engine,
                                                           const DiffusionCase& of) {
    const int block = block_of(of);
    TextWithNewToken out;
    out.prompt = some_tokens(5, 5, 95);
    const int begin = of.block > 0 ? 5 : 0;  // start of the text relative to a block
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        out.options = filling({.remask = ops::Remask::dynamic, .threshold = 0.06f},
                              std::min(5 * block + 2, 200), seed);
        out.ids = filled(engine, out.prompt, out.options).ids;
        std::vector<std::int32_t> before = out.prompt;
        for (out.at = 0; out.at < out.ids.size(); ++out.at) {
            const int place = (begin + static_cast<int>(out.at)) % block;
            const bool inside = place > 0 && place < block - 1;
            const std::int32_t token = out.ids[out.at];
            if (static_cast<int>(out.at) >= block && inside && !holds(before, token)) return out;
            before.push_back(token);
        }
    }
    return std::nullopt;
}

// The error that ends a text; empty: it has tokens. `shown`: the text before it.
inline std::string error_of(model::Engine& engine, const std::vector<std::int32_t>& prompt,
                            const decode::GenerateOptions& options, std::string& shown) {
    shown.clear();
    decode::Scheduler scheduler(engine);
    const decode::Scheduler::Id id = scheduler.add(prompt, options, [&](std::string_view text) {
        shown += text;
        return true;
    });
    while (scheduler.step()) {
    }
    try {
        scheduler.take(id);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        return error.what();
    }
    return {};
}

// The error of the text does not depend on what drives the passes. A token with a NaN embedding
// ends the text in which it is settled, in the next pass, some blocks into it.
template <typename Open>
std::string a_row_that_is_not_finite_ends_its_text_alone(const DiffusionCase& of, DType type,
                                                         Open&& open) {
    const auto healthy = open(byte_model(of, type));
    const auto known = healthy(1);
    const std::optional<TextWithNewToken> text = text_with_new_token(*known, of);
    EXPECT_TRUE(text);
    if (!text) return {};
    const std::int32_t token = text->ids[text->at];
    model::Model damaged = byte_model(of, type);
    plant(damaged, {model::Role::embedding}, std::int64_t{token} * damaged.spec.dim,
          std::numeric_limits<float>::quiet_NaN());
    const auto poisoned = open(std::move(damaged));

    const auto engine = poisoned(1);
    std::string shown, shown_again;
    const std::string error = error_of(*engine, text->prompt, text->options, shown);
    EXPECT_FALSE(error.empty());
    // Only the blocks before it are complete.
    EXPECT_GE(static_cast<int>(shown.size()), block_of(of) - 5);
    EXPECT_EQ(known->model().tokenizer->decode(text->ids).find(shown), 0u);
    EXPECT_LE(shown.size(), text->at + static_cast<std::size_t>(block_of(of)));
    engine->cache().check_books();
    // Texts without the token, with the error before each of them.
    int others = 0;
    for (int salt = 1; others < 3 && salt < 60; ++salt) {
        const auto prompt = some_tokens(1 + salt * 13 % 40, salt, 95);
        const decode::GenerateOptions options =
            filling({.steps = 1 + salt % 3}, 30, static_cast<std::uint64_t>(salt));
        if (holds(prompt, token) || holds(filled(*known, prompt, options).ids, token)) continue;
        SCOPED_TRACE(salt);
        ++others;
        const decode::Generated want = filled(*healthy(1), prompt, options);
        const decode::Generated got = filled(*engine, prompt, options);
        EXPECT_EQ(got.ids, want.ids);
        EXPECT_EQ(got.passes, want.passes);
        EXPECT_EQ(error_of(*engine, text->prompt, text->options, shown_again), error);
        EXPECT_EQ(shown_again, shown);
        // Side by side: one ends, and the other is not affected.
        const auto two = poisoned(2);
        decode::Scheduler scheduler(*two);
        const auto bad = scheduler.add(text->prompt, text->options);
        const auto good = scheduler.add(prompt, options);
        while (scheduler.step()) {
        }
        EXPECT_THROW(scheduler.take(bad), Error);
        EXPECT_EQ(scheduler.take(good)->ids, want.ids);
        two->cache().check_books();
    }
    EXPECT_EQ(others, 3);
    return error;
}

template <typename Open>
void a_text_that_ends_inside_of_a_block_leaves_nothing_behind(const DiffusionCase& of, DType type,
                                                              Open&& open) {
    const auto endless = open(byte_model(of, type));
    const std::optional<TextWithNewToken> text = text_with_new_token(*endless(1), of);
    ASSERT_TRUE(text);
    const std::vector<std::int32_t> before(
        text->ids.begin(), text->ids.begin() + static_cast<std::ptrdiff_t>(text->at));
    std::vector<std::int32_t> ended = before;
    ended.push_back(text->ids[text->at]);
    model::Model ends = byte_model(of, type);
    ends.generation.ends = {ended.back()};
    const text::Tokenizer::Ptr tokenizer = ends.tokenizer;

    const auto engine = open(std::move(ends))(1);
    const auto others_are_those_of_a_fresh_engine = [&](int salt) {
        // The beginning of the text that ended, and another one.
        for (const bool same : {true, false}) {
            const auto prompt = same ? text->prompt : some_tokens(1 + 17 * salt, salt, 95);
            decode::GenerateOptions options = text->options;
            options.sampling.seed += static_cast<std::uint64_t>(same ? 0 : salt);
            const decode::Generated got = filled(*engine, prompt, options);
            const decode::Generated want = filled(*endless(1), prompt, options);
            EXPECT_EQ(got.ids, want.ids) << salt;
            EXPECT_EQ(got.passes, want.passes) << salt;
            EXPECT_TRUE(!same || got.ids == text->ids) << salt;
        }
    };
    decode::GenerateOptions options = text->options;
    options.ignore_end = false;
    const decode::Generated by_token = filled(*engine, text->prompt, options);
    EXPECT_EQ(by_token.reason, decode::StopReason::end_of_text);
    EXPECT_EQ(by_token.ids, ended);
    engine->cache().check_books();
    others_are_those_of_a_fresh_engine(1);

    options = text->options;
    options.stop = {tokenizer->decode(std::vector{before.back(), ended.back()})};
    const decode::Generated by_string = filled(*engine, text->prompt, options);
    EXPECT_EQ(by_string.reason, decode::StopReason::stop_string);
    EXPECT_EQ(by_string.ids, ended);
    EXPECT_EQ(by_string.text, tokenizer->decode(std::vector(before.begin(), before.end() - 1)));
    EXPECT_EQ(by_string.passes, by_token.passes);
    engine->cache().check_books();
    others_are_those_of_a_fresh_engine(2);
}

// A long text that is alone between visits. On an engine with one sequence a visitor can only wait,
// and leaves again; even so the passes are those of a text that others wait for.
inline void texts_come_and_go_beside_one(const DiffusionCase& of, model::Engine& engine,
                                         model::Engine& alone, bool prefix_cache = false) {
    const int block = block_of(of);
    const bool waits = engine.options().max_sequences == 1;
    for (const ops::DenoiseParams& denoise :
         {ops::DenoiseParams{.remask = ops::Remask::dynamic, .threshold = 0.06f},
          ops::DenoiseParams{.remask = ops::Remask::sequential, .steps = std::min(block, 5)}}) {
        SCOPED_TRACE(ops::remask_name(denoise.remask));
        struct Visit {
            std::vector<std::int32_t> prompt;
            decode::GenerateOptions options;
            decode::Scheduler::Id id = 0;
            std::optional<decode::Generated> result{};
        };
        std::vector<Visit> visits;  // the first is the long text
        decode::Scheduler scheduler(engine);
        const auto add = [&](int prompt, int tokens) {
            const auto salt = static_cast<int>(visits.size());
            visits.push_back({some_tokens(prompt, salt, 95),
                              filling(denoise, tokens, static_cast<std::uint64_t>(salt))});
            visits.back().options.diffusion.prefix_cache = prefix_cache;
            visits.back().id = scheduler.add(visits.back().prompt, visits.back().options);
        };
        add(7, std::min(12 * block, 200));
        int steps = 0;  // since the last visitor came or left
        while (scheduler.step()) {
            engine.cache().check_books();
            ++steps;
            const bool visited = visits.size() > 1 && !visits.back().result;
            if (!visited && steps == 1 && visits.size() < 6) {
                add(1 + static_cast<int>(visits.size()) * 11, block / 2 + 1);
                steps = 0;
            } else if (visited) {
                if (waits && steps == 2) scheduler.cancel(visits.back().id);
                visits.back().result = scheduler.take(visits.back().id);
                if (visits.back().result) steps = 0;
            }
        }
        ASSERT_GE(visits.size(), 3u);
        for (std::size_t i = 0; i < visits.size(); ++i) {
            SCOPED_TRACE(i);
            auto& [prompt, options, id, result] = visits[i];
            if (!result) result = scheduler.take(id);
            ASSERT_TRUE(result);
            if (result->reason == decode::StopReason::cancelled) {
                EXPECT_TRUE(waits && i > 0);
                continue;
            }
            const decode::Generated want = filled(alone, prompt, options);
            EXPECT_EQ(result->ids, want.ids);
            EXPECT_EQ(result->passes, want.passes);
        }
    }
}

}  // namespace mr::test
