// Loads for the scheduler on any engine: every text has the same bits as alone, and no page is lost
// or wrongly shared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "decode/scheduler.h"
#include "model/engine.h"

namespace mr::test {

// A request of a load, and when it arrives and is cancelled.
struct Order {
    std::vector<std::int32_t> prompt;
    decode::GenerateOptions options;
    int arrives = 0;     // before this pass
    int cancelled = -1;  // this many passes later; -1: never
};

// Requests with random prompts, prompts that share prefixes, or equal prompts; around `cut` they
// have every length.
inline std::vector<Order> random_orders(int count, std::uint64_t seed, int vocab, int most_prompt,
                                        int most_tokens, int cut) {
    std::vector<Order> orders;
    int pass = 0;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
        std::uint64_t number = 0;
        const auto pick = [&](int most) {  // 0 .. most - 1
            return static_cast<int>(philox(seed, i, ++number)[0] %
                                    static_cast<std::uint32_t>(most));
        };
        Order order;
        const int kind = pick(8);
        int length = 1 + pick(most_prompt);
        if (kind < 2) length = std::clamp(cut - 3 + pick(7), 1, most_prompt);
        if (kind == 2 && !orders.empty()) {
            order.prompt =
                orders[static_cast<std::size_t>(pick(static_cast<int>(orders.size())))].prompt;
            length = static_cast<int>(order.prompt.size());
        } else if (kind < 6 && !orders.empty()) {
            const auto& other =
                orders[static_cast<std::size_t>(pick(static_cast<int>(orders.size())))].prompt;
            const int shared = std::min(length, pick(static_cast<int>(other.size()) + 1));
            order.prompt.assign(other.begin(), other.begin() + shared);
        }
        while (static_cast<int>(order.prompt.size()) < length) {
            order.prompt.push_back(pick(vocab));
        }
        order.options.max_tokens = 1 + pick(most_tokens);
        order.options.ignore_end = true;
        order.options.sampling.seed = i;
        if (pick(3) == 0) order.options.sampling.temperature = 0;
        if (pick(4) == 0) order.options.sampling.repeat_penalty = 1.3f;
        pass += pick(3) == 0 ? pick(6) : 0;
        order.arrives = pass;
        if (pick(10) == 0) order.cancelled = pick(12);
        orders.push_back(std::move(order));
    }
    return orders;
}

// Every prompt token of a text is computed or found in the cache, if the text has begun.
inline void expect_counted(const model::Engine& engine, const decode::Generated& made) {
    EXPECT_LE(made.found + made.prefill.tokens, made.prompt_tokens);
    if (made.drawn > 0 && !engine.model().spec.diffusion) {
        EXPECT_EQ(made.found + made.prefill.tokens, made.prompt_tokens);
    }
}

// Runs all of them; the cache is checked after every pass.
inline std::vector<decode::Generated> run_orders(model::Engine& engine,
                                                 std::span<const Order> orders,
                                                 decode::Scheduler::Totals* totals = nullptr) {
    std::vector<decode::Generated> out(orders.size());
    std::map<decode::Scheduler::Id, std::size_t> open;
    {
        decode::Scheduler scheduler(engine);
        std::size_t next = 0;
        for (int pass = 0; next < orders.size() || !open.empty(); ++pass) {
            for (; next < orders.size() && orders[next].arrives <= pass; ++next) {
                open[scheduler.add(orders[next].prompt, orders[next].options)] = next;
            }
            for (const auto& [id, i] : open) {
                if (orders[i].cancelled >= 0 && pass >= orders[i].arrives + orders[i].cancelled) {
                    scheduler.cancel(id);
                }
            }
            scheduler.step();
            engine.cache().check_books();
            for (auto it = open.begin(); it != open.end();) {
                std::optional<decode::Generated> made = scheduler.take(it->first);
                if (made) {
                    expect_counted(engine, *made);
                    out[it->second] = std::move(*made);
                }
                it = made ? open.erase(it) : std::next(it);
            }
            if (pass > 1000000) throw std::runtime_error("the load does not end");
        }
        if (totals) *totals = scheduler.totals();
    }
    engine.cache().check_books();
    return out;
}

// Runs a request as a plain sequence, which holds all its pages: without a scheduler, with nothing
// shared and nothing released. The prompt is one pass.
inline decode::Generated run_plainly(model::Engine& engine, const Order& order) {
    const auto tokens = static_cast<std::int64_t>(order.prompt.size());
    model::KvCache& cache = engine.cache();
    const model::SeqId seq = cache.open();
    cache.set_stream(seq, order.options.stream);
    cache.reserve(seq, tokens + order.options.max_tokens - 1);
    model::DrawParams params{.sampling = order.options.sampling,
                             .window = order.options.repeat_window};
    const auto recent = std::min(tokens, std::int64_t{params.window});
    params.recent.assign(order.prompt.end() - recent, order.prompt.end());
    const model::Slot slot = engine.open_slot(seq, params);
    const model::BatchItem prompt{
        .seq = seq,
        .tokens = order.prompt,
        .logits = model::BatchItem::Logits::none,
        .form = engine.cut() == 1 ? model::Form::prompt : model::form_of_prompt(tokens),
        .draw = {&slot, 1}};
    const model::BatchItem fed{
        .seq = seq, .logits = model::BatchItem::Logits::none, .feed = slot, .draw = {&slot, 1}};
    decode::Generated out;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(order.options.max_tokens); ++i) {
        engine.submit({i == 0 ? &prompt : &fed, 1});
        const ops::Sampled drawn = engine.wait(slot, i);
        out.ids.push_back(drawn.id);
        out.confidence.push_back(drawn.confidence);
    }
    engine.close_slot(slot);
    cache.close(seq);
    return out;
}

// Every text has the bits of a plain sequence; a cancelled one has the beginning of it.
inline void expect_as_plain(std::span<const Order> orders,
                            const std::vector<decode::Generated>& got, model::Engine& plain) {
    for (std::size_t i = 0; i < orders.size(); ++i) {
        SCOPED_TRACE("request " + std::to_string(i) + ", a prompt of " +
                     std::to_string(orders[i].prompt.size()));
        const decode::Generated want = run_plainly(plain, orders[i]);
        const bool cut_short = got[i].reason == decode::StopReason::cancelled;
        ASSERT_TRUE(!cut_short || orders[i].cancelled >= 0);
        ASSERT_LE(got[i].ids.size(), want.ids.size());
        ASSERT_TRUE(cut_short || got[i].ids.size() == want.ids.size());
        ASSERT_TRUE(std::equal(got[i].ids.begin(), got[i].ids.end(), want.ids.begin()));
        ASSERT_TRUE(
            std::equal(got[i].confidence.begin(), got[i].confidence.end(), want.confidence.begin()))
            << "the bits differ";
    }
}

// `alone` makes a fresh engine for each request, with an empty cache.
template <typename Fresh>
void expect_as_alone(std::span<const Order> orders, const std::vector<decode::Generated>& got,
                     Fresh&& alone) {
    int whole = 0;
    for (std::size_t i = 0; i < orders.size(); ++i) {
        SCOPED_TRACE("request " + std::to_string(i) + ", a prompt of " +
                     std::to_string(orders[i].prompt.size()));
        Order order = orders[i];
        order.arrives = 0;
        order.cancelled = -1;
        const decode::Generated want = std::move(run_orders(alone(), {&order, 1}).front());
        if (!order.options.filter) {
            ASSERT_EQ(want.ids.size(), static_cast<std::size_t>(order.options.max_tokens));
        }
        const bool cut_short = got[i].reason == decode::StopReason::cancelled;
        ASSERT_TRUE(!cut_short || orders[i].cancelled >= 0);
        whole += !cut_short;
        // A cancelled request has the beginning of its text.
        ASSERT_LE(got[i].ids.size(), want.ids.size());
        ASSERT_TRUE(cut_short || got[i].ids.size() == want.ids.size());
        ASSERT_TRUE(std::equal(got[i].ids.begin(), got[i].ids.end(), want.ids.begin()));
        ASSERT_TRUE(
            std::equal(got[i].confidence.begin(), got[i].confidence.end(), want.confidence.begin()))
            << "the bits differ";
    }
    EXPECT_GT(whole, static_cast<int>(orders.size()) / 2);
}

// Every third request asks for log-probabilities: all have the same bits as alone, and a token's
// log-probability is that of the logits it was drawn from.
template <typename Fresh>
void expect_logprobs(model::Engine& engine, const std::vector<Order>& orders, Fresh&& alone) {
    std::vector<Order> asked = orders;
    for (std::size_t i = 0; i < asked.size(); i += 3) {
        asked[i].options.logprobs = static_cast<int>(i % 7);
    }
    const std::vector<decode::Generated> got = run_orders(engine, asked);
    expect_as_alone(orders, got, alone);
    std::size_t tokens = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE("request " + std::to_string(i));
        const decode::GenerateOptions& options = asked[i].options;
        ASSERT_EQ(got[i].logprobs.size(), options.logprobs < 0 ? 0 : got[i].ids.size());
        for (std::size_t t = 0; t < got[i].logprobs.size(); ++t, ++tokens) {
            const decode::DrawnLogprobs& drawn = got[i].logprobs[t];
            const double confidence = got[i].confidence[t];
            ASSERT_NEAR(std::exp(drawn.logprob), confidence, 1e-6 + 1e-4 * confidence);
            ASSERT_EQ(drawn.top.size(), static_cast<std::size_t>(options.logprobs));
            for (std::size_t k = 0; k < drawn.top.size(); ++k) {
                const decode::TokenLogprob& other = drawn.top[k];
                if (k > 0) {
                    ASSERT_LE(other.logprob, drawn.top[k - 1].logprob);
                }
                if (other.id == got[i].ids[t]) {
                    ASSERT_EQ(other.logprob, drawn.logprob);
                }
                const bool greedy = options.sampling.temperature == 0;
                if (k == 0 && greedy && options.sampling.repeat_penalty == 1) {
                    ASSERT_EQ(other.id, got[i].ids[t]);
                }
            }
        }
    }
    ASSERT_GT(tokens, orders.size());
}

// After a token, only tokens with the next remainder modulo 3 may come; after `most` of them none.
class InThirds final : public ops::TokenFilter {
  public:
    InThirds(std::int64_t vocab, int most)
        : mask_(static_cast<std::size_t>((vocab + 31) / 32)), vocab_(vocab), most_(most) {
        allow_from(0);
    }
    std::span<const std::uint32_t> mask() override { return mask_; }
    void accept(std::int32_t token) override {
        ++tokens_;
        allow_from((token + 1) % 3);
    }
    bool finished() const override { return tokens_ >= most_; }

  private:
    void allow_from(std::int32_t first) {
        std::fill(mask_.begin(), mask_.end(), 0);
        for (std::int32_t id = first; id < vocab_; id += 3) {
            mask_[static_cast<std::size_t>(id / 32)] |= 1u << id % 32;
        }
    }

    std::vector<std::uint32_t> mask_;
    const std::int64_t vocab_;
    const int most_;
    int tokens_ = 0;
};

// Bias, penalties and filters among requests without: all have the same bits as alone, and each has
// its effect.
template <typename Fresh>
void expect_adjusted(model::Engine& engine, std::vector<Order> orders, Fresh&& alone) {
    static constexpr int kMostFiltered = 15;
    const std::int64_t vocab = engine.model().spec.vocab;
    const auto banned = static_cast<std::int32_t>(std::min<std::int64_t>(vocab / 2, 600));
    for (std::size_t i = 0; i < orders.size(); ++i) {
        decode::GenerateOptions& options = orders[i].options;
        options.logprobs = i % 5 == 0 ? 3 : -1;
        if (i % 4 == 1) {
            options.adjust.bias.push_back({7, 20});
            for (std::int32_t id = 8; id < banned; ++id) options.adjust.bias.push_back({id, -1e9f});
        }
        if (i % 4 == 2) options.adjust.presence = 1e4f;
        if (i % 8 == 2) options.adjust.frequency = -1;
        if (i % 4 == 3) {
            options.filter = [vocab] { return std::make_unique<InThirds>(vocab, kMostFiltered); };
        }
    }
    const std::vector<decode::Generated> got = run_orders(engine, orders);
    expect_as_alone(orders, got, alone);
    for (std::size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE("request " + std::to_string(i));
        const std::vector<std::int32_t>& ids = got[i].ids;
        if (i % 4 == 1) {
            EXPECT_TRUE(std::none_of(ids.begin(), ids.end(),
                                     [=](std::int32_t id) { return id >= 8 && id < banned; }));
        } else if (i % 4 == 2) {  // no token is repeated
            std::vector<std::int32_t> sorted = ids;
            std::sort(sorted.begin(), sorted.end());
            EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
        } else if (i % 4 == 3) {
            for (std::size_t t = 0; t < ids.size(); ++t) {
                EXPECT_EQ(ids[t] % 3, t == 0 ? 0 : (ids[t - 1] + 1) % 3);
            }
            const bool finished =
                got[i].reason == decode::StopReason::end_of_text && !got[i].end_token;
            EXPECT_LE(ids.size(), static_cast<std::size_t>(kMostFiltered));
            if (finished) {
                EXPECT_EQ(ids.size(), static_cast<std::size_t>(kMostFiltered));
            }
            if (ids.size() == static_cast<std::size_t>(kMostFiltered) &&
                orders[i].options.max_tokens > kMostFiltered) {
                EXPECT_TRUE(finished);
            }
        }
        ASSERT_EQ(got[i].logprobs.size(), i % 5 == 0 ? ids.size() : 0);
    }
}

// The NLL of every token of a prompt after the first, by the engine's own cross entropy. The engine
// has logits for kCut rows.
inline std::vector<double> plain_nll(model::Engine& engine,
                                     const std::vector<std::int32_t>& prompt) {
    model::KvCache& cache = engine.cache();
    const auto all = static_cast<std::int64_t>(prompt.size());
    const model::SeqId seq = cache.open();
    cache.reserve(seq, all);
    std::vector<double> out;
    for (std::int64_t done = 0; done + 1 < all; done += model::kCut) {
        const auto at = static_cast<std::size_t>(done);
        const auto count = static_cast<std::size_t>(std::min(model::kCut, all - done));
        model::BatchItem item = model::prompt_item(seq, std::span(prompt).subspan(at, count), all,
                                                   model::BatchItem::Logits::all);
        if (engine.cut() == 1) item.form = model::Form::prompt;
        const Tensor logits = engine.submit({&item, 1});
        const auto next = std::span(prompt).subspan(at + 1);
        std::vector<double> nll(std::min(count, next.size()));
        engine.cross_entropy(nll, logits.slice_rows(0, static_cast<std::int64_t>(nll.size())),
                             next.first(nll.size()));
        out.insert(out.end(), nll.begin(), nll.end());
    }
    cache.close(seq);
    return out;
}

// Every third request asks for the log-probabilities of its prompt, some for nothing else: they are
// the model's, have the same bits as alone, and change no bits of any text. `plain` has logits for
// kCut rows, and the engines of `alone` for one more.
template <typename Fresh>
void expect_prompts_scored(model::Engine& engine, std::vector<Order> orders, Fresh&& alone,
                           model::Engine& plain) {
    std::vector<std::vector<std::vector<decode::PromptToken>>> scored(orders.size());
    for (std::size_t i = 0; i < orders.size(); ++i) {
        decode::GenerateOptions& options = orders[i].options;
        options.share_prompt = i % 7 != 0;
        if (i % 3 != 0) continue;
        options.prompt_logprobs = static_cast<int>(i % 4);
        if (i % 6 == 0) options.max_tokens = 0;
        options.on_prompt = [&, i](std::vector<decode::PromptToken> tokens) {
            scored[i].push_back(std::move(tokens));
        };
    }
    const std::vector<decode::Generated> got = run_orders(engine, orders);
    std::vector<Order> unscored = orders;
    for (Order& order : unscored) order.options.prompt_logprobs = -1;
    expect_as_alone(unscored, got, alone);
    std::size_t tokens = 0;
    for (std::size_t i = 0; i < orders.size(); i += 3) {
        SCOPED_TRACE("request " + std::to_string(i));
        ASSERT_EQ(got[i].found, 0);
        Order again = orders[i];
        again.arrives = 0;
        again.cancelled = -1;
        run_orders(alone(), {&again, 1});
        if (orders[i].cancelled < 0) {  // beside others, then alone
            ASSERT_EQ(scored[i].size(), 2U);
        }
        const std::vector<std::int32_t>& prompt = orders[i].prompt;
        const std::vector<double> nll = plain_nll(plain, prompt);
        for (const std::vector<decode::PromptToken>& list : scored[i]) {
            ASSERT_EQ(list.size(), prompt.size());
            ASSERT_EQ(list[0].rank, 0);
            for (std::size_t t = 0; t < list.size(); ++t, ++tokens) {
                const decode::PromptToken& token = list[t];
                ASSERT_EQ(token.id, prompt[t]);
                if (t == 0) continue;
                const decode::DrawnLogprobs& same = scored[i][0][t].logprobs;
                ASSERT_EQ(token.logprobs.logprob, same.logprob) << "the bits differ";
                ASSERT_NEAR(-token.logprobs.logprob, nll[t - 1], 1e-4 + 1e-5 * nll[t - 1]);
                const auto& top = token.logprobs.top;
                ASSERT_EQ(top.size(), static_cast<std::size_t>(orders[i].options.prompt_logprobs));
                for (std::size_t k = 0; k < top.size(); ++k) {
                    ASSERT_EQ(top[k].id == token.id, std::cmp_equal(token.rank, k + 1));
                    ASSERT_EQ(top[k].id, same.top[k].id);
                    if (std::cmp_equal(token.rank, k + 1)) {
                        ASSERT_EQ(top[k].logprob, token.logprobs.logprob);
                    }
                }
            }
        }
    }
    ASSERT_GT(tokens, 10 * orders.size());
}

}  // namespace mr::test
