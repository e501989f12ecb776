// Streaming sequences: sinks and a window in a ring of pages.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "families.h"
#include "model/engine.h"
#include "model/model.h"
#include "support.h"

namespace mr::model::stream_test {
namespace {

using Row = std::vector<float>;
using Text = std::vector<std::int32_t>;
using Shared = std::shared_ptr<const Model>;

constexpr std::int64_t kPage = KvCache::kPageTokens;

Text text_of(int count, int vocab, std::uint64_t seed = 3) {
    Text out;
    for (int i = 0; i < count; ++i) {
        out.push_back(static_cast<std::int32_t>(philox(seed, static_cast<std::uint64_t>(i))[0] %
                                                static_cast<std::uint32_t>(vocab)));
    }
    return out;
}

// pool -1: the minimum for a streaming sequence.
std::unique_ptr<Engine> engine_of(const Shared& model, const Stream& stream, int max_batch = 96,
                                  std::int64_t pool = 0) {
    EngineOptions options;
    options.threads = 1;
    options.context = 512;
    options.max_sequences = 3;
    options.max_batch = max_batch;
    options.max_logits = max_batch;
    options.stream = stream;
    options.pool = pool < 0 ? least_positions(model->spec, options) : pool;
    return make_engine(model, options);
}

// The logits of all tokens, which are fed in pieces of these sizes, the last size repeated.
std::vector<Row> logits_of(Engine& engine, SeqId seq, const Text& text, std::vector<int> pieces) {
    std::vector<Row> out;
    std::size_t at = 0, piece = 0;
    while (at < text.size()) {
        const std::size_t count =
            std::min(static_cast<std::size_t>(pieces[piece]), text.size() - at);
        if (piece + 1 < pieces.size()) ++piece;
        const BatchItem item{.seq = seq,
                             .tokens = std::span(text).subspan(at, count),
                             .logits = BatchItem::Logits::all,
                             .form = Form::prompt};
        const Tensor logits = engine.submit({&item, 1});
        for (std::int64_t r = 0; r < logits.rows(); ++r) {
            out.emplace_back(logits.f32(r), logits.f32(r) + logits.cols());
        }
        at += count;
        engine.cache().check_books();
    }
    return out;
}

void expect_bits(const std::vector<Row>& a, const std::vector<Row>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)), 0) << i;
    }
}

class StreamFamilies : public testing::TestWithParam<const char*> {
  protected:
    Shared whole() {
        return std::make_shared<const Model>(load_model(test::reference(GetParam())));
    }
    // ... with one layer.
    std::shared_ptr<Model> shallow() {
        auto model = std::make_shared<Model>(load_model(test::reference(GetParam())));
        model->weights.layers.resize(1);
        model->spec.layers = 1;
        if (!model->spec.own.empty()) model->spec.own.resize(1);
        return model;
    }
};

// With one layer, keys do not depend on earlier tokens: a stream then equals encoding the sinks and
// the window anew, from position 0.
TEST_P(StreamFamilies, OneLayerIsRecompute) {
    const std::shared_ptr<Model> model = shallow();
    const std::shared_ptr<Model> unlimited = shallow();  // it sees everything it encodes
    unlimited->spec.mask.window = 0;
    unlimited->spec.own.clear();
    for (const Stream stream : {Stream{4, 12}, Stream{1, 40}, Stream{0, 33}, Stream{40, 50}}) {
        SCOPED_TRACE(std::to_string(stream.sinks) + " " + std::to_string(stream.window));
        const auto engine = engine_of(model, stream);
        const SeqId seq = engine->cache().open();
        engine->cache().set_stream(seq, stream);
        ASSERT_TRUE(engine->try_reserve(seq, 0, 100000));
        const Text text = text_of(150, model->spec.vocab);
        const std::vector<Row> made = logits_of(*engine, seq, text, {7, 50, 1});
        const std::int64_t own = model->spec.layer(0).mask.window;
        const auto window = static_cast<std::size_t>(
            own > 0 ? std::min<std::int64_t>(own, stream.window) : stream.window);
        const auto sinks = static_cast<std::size_t>(stream.sinks);
        const auto plain = engine_of(unlimited, {});
        for (const std::size_t p : {std::size_t{3}, std::size_t{20}, std::size_t{60},
                                    std::size_t{95}, std::size_t{149}}) {
            Text seen(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(p + 1));
            if (p >= sinks + window) {
                seen.erase(seen.begin() + static_cast<std::ptrdiff_t>(sinks),
                           seen.end() - static_cast<std::ptrdiff_t>(window));
            }
            const SeqId again = plain->cache().open();
            const std::vector<Row> expected = logits_of(*plain, again, seen, {96});
            plain->cache().close(again);
            EXPECT_LT(test::relative_rms(made[p], expected.back()), 2e-6) << p;
        }
    }
}

// A ring of pages has the same bits as keeping all pages, wherever the text is cut.
TEST_P(StreamFamilies, ARingIsAPlainCache) {
    const Shared model = whole();
    const Text text = text_of(400, model->spec.vocab);
    for (const Stream stream : {Stream{4, 28}, Stream{0, 12}, Stream{33, 45}, Stream{1, 1}}) {
        SCOPED_TRACE(std::to_string(stream.sinks) + " " + std::to_string(stream.window));
        const auto plain = engine_of(model, stream, 400, 3 * 512);
        const SeqId whole = plain->cache().open();
        plain->cache().set_stream(whole, stream);
        plain->cache().reserve(whole, 400);
        const std::vector<Row> expected = logits_of(*plain, whole, text, {400});
        EXPECT_EQ(plain->cache().base(whole), 0);
        for (const std::vector<int>& pieces :
             {std::vector<int>{1}, std::vector<int>{96}, std::vector<int>{40, 3, 64, 1, 1, 30}}) {
            const auto engine = engine_of(model, stream, 96, -1);
            const SeqId seq = engine->cache().open();
            engine->cache().set_stream(seq, stream);
            ASSERT_TRUE(engine->try_reserve(seq, 0, 1 << 20));
            const std::int64_t held = engine->cache().held(seq);
            expect_bits(logits_of(*engine, seq, text, pieces), expected);
            EXPECT_EQ(engine->cache().held(seq), held);
            EXPECT_GT(engine->cache().base(seq), 0);
            engine->cache().close(seq);
            engine->cache().check_books();
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Rotary, StreamFamilies,
                         testing::Values("llama2", "llama3", "llama-linear", "llama-yarn",
                                         "mistral", "qwen2", "qwen2-yarn", "qwen2-window", "qwen3",
                                         "gpt-neox", "gpt-neox-seq"),
                         test::family_name);

// Streaming sequences beside others, each as if alone.
TEST(Stream, BesideSequencesThatDoNot) {
    const Shared model = std::make_shared<const Model>(load_model(test::reference("llama2")));
    const Text text = text_of(120, model->spec.vocab);
    const Stream most{8, 40}, less{2, 17};
    const std::vector<Stream> streams = {most, {}, less};
    std::vector<std::vector<Row>> alone(3), together(3);
    for (std::size_t i = 0; i < 3; ++i) {
        const auto engine = engine_of(model, most);
        const SeqId seq = engine->cache().open();
        engine->cache().set_stream(seq, streams[i]);
        alone[i] = logits_of(*engine, seq, text, {20, 1});
    }
    const auto engine = engine_of(model, most);
    std::vector<SeqId> seqs;
    for (const Stream& stream : streams) {
        seqs.push_back(engine->cache().open());
        engine->cache().set_stream(seqs.back(), stream);
        ASSERT_TRUE(engine->try_reserve(seqs.back(), 0, stream ? 1 << 20 : 120));
    }
    for (std::size_t at = 0; at < text.size(); at += 10) {
        std::vector<BatchItem> items;
        for (const SeqId seq : seqs) {
            items.push_back({.seq = seq,
                             .tokens = std::span(text).subspan(at, 10),
                             .logits = BatchItem::Logits::all,
                             .form = Form::prompt});
        }
        const Tensor logits = engine->submit(items);
        for (std::int64_t r = 0; r < logits.rows(); ++r) {
            together[static_cast<std::size_t>(r / 10)].emplace_back(logits.f32(r),
                                                                    logits.f32(r) + logits.cols());
        }
        engine->cache().check_books();
    }
    for (std::size_t i = 0; i < 3; ++i) expect_bits(together[i], alone[i]);
}

// Every visible position lies where it was written: pages are tagged with their content, for
// 200,000 tokens of several sequences that come and go.
TEST(Stream, NoPageIsWrongInALongText) {
    ModelSpec spec = load_model(test::reference("llama2")).spec;
    spec.layers = 1;
    constexpr std::int64_t kPages = 40;
    KvCache cache(spec, kPages, 3, 40 * kPage, DType::f32);
    std::vector<std::int64_t> tag(static_cast<std::size_t>(kPages * kPage), -1);
    const auto slot = [](std::int32_t page, std::int64_t position) {
        return static_cast<std::size_t>(page * kPage + position % kPage);
    };
    std::uint64_t number = 0;
    const auto pick = [&](std::uint32_t most) { return philox(9, ++number)[0] % most; };
    struct Open {
        SeqId seq;
        Stream stream;
        std::int64_t name, end;
    };
    std::vector<Open> open;
    std::int64_t written = 0, names = 0;
    while (written < 200000) {
        if (open.size() < 3) {
            Open next{cache.open(), {}, 1000000 * ++names, 0};
            next.stream = {static_cast<std::int32_t>(pick(41)),
                           41 + static_cast<std::int32_t>(pick(80))};
            next.end = 1 + pick(names % 5 == 0 ? 40000 : 3000);
            cache.set_stream(next.seq, next.stream);
            // A window and a pass of up to 16 tokens.
            const std::int64_t circle = ops::pages_spanned(next.stream.window - 1 + 16);
            ASSERT_TRUE(cache.try_reserve_circle(next.seq, next.stream.sinks, circle));
            open.push_back(next);
        }
        const std::size_t which = pick(static_cast<std::uint32_t>(open.size()));
        Open& o = open[which];
        const std::int64_t at = cache.length(o.seq), count = 1 + pick(16);
        const KvCache::Circle circle = cache.circle(o.seq);
        if (KvCache::pages_for(at + count) > circle.end) {
            cache.release_before(o.seq, std::max<std::int64_t>(at - o.stream.window + 1, 0));
        }
        cache.reserve(o.seq, at + count);
        for (std::int64_t p = at; p < at + count; ++p) {
            tag[slot(cache.page_at(o.seq, p), p)] = o.name + p;
        }
        cache.advance(o.seq, count);
        written += count;
        const std::span<const std::int32_t> front = cache.front(o.seq);
        for (std::int64_t p = at; p < at + count; ++p) {
            const auto expect_tag = [&](std::int64_t j) {
                const std::int64_t page = j / kPage;
                const std::int32_t from = page < static_cast<std::int64_t>(front.size())
                                              ? front[static_cast<std::size_t>(page)]
                                              : cache.page_at(o.seq, j);
                ASSERT_EQ(tag[slot(from, j)], o.name + j);
            };
            for (std::int64_t j = 0; j < std::min<std::int64_t>(o.stream.sinks, p); ++j) {
                expect_tag(j);
            }
            for (std::int64_t j = std::max<std::int64_t>(p - o.stream.window + 1, 0); j <= p; ++j) {
                expect_tag(j);
            }
        }
        if (cache.length(o.seq) >= o.end) {
            cache.close(o.seq);
            open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
        }
        if (written % 64 == 0) cache.check_books();
    }
}

TEST(Stream, WhatCannotStreamIsRefused) {
    const Shared gpt2 = std::make_shared<const Model>(load_model(test::reference("gpt2")));
    const auto said = [&](const Shared& model, const Stream& stream) -> std::string {
        try {
            engine_of(model, stream);
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_NE(said(gpt2, {4, 60}).find("learned positions"), std::string::npos);
    const Shared llama = std::make_shared<const Model>(load_model(test::reference("llama2")));
    EXPECT_NE(said(llama, {61, 60}).find("sinks"), std::string::npos);
    EXPECT_EQ(said(llama, {60, 60}), "");
    try {
        engine_of(llama, {4, 60}, 96, 100);
        ADD_FAILURE() << "a pool of 100 is too small";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("--pool"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace mr::model::stream_test
