// A real trained model (llama2.c's stories260K): its text and its loss, compared with llama2.c's
// own forward (MILLRACE_DATA/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "core/mapped_file.h"
#include "decode/eval.h"
#include "decode/session.h"
#include "model/engine.h"
#include "model/io/convert.h"
#include "model/io/random.h"
#include "support.h"
#include "temp_folder.h"

namespace mr::decode {
namespace {

constexpr const char* kGreedy =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball. She wanted to play with it, but it was too high.\nLily's "
    "mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. She said, "
    "\"I want to play with your ball, but I can't find it.\"";

std::string stories() { return test::data("models/stories260K.bin"); }

std::unique_ptr<model::Engine> open_engine(const std::string& path, int max_logits = 0) {
    auto loaded = std::make_shared<const model::Model>(model::load_model(path));
    model::EngineOptions options;
    options.threads = 2;
    options.max_logits = max_logits;
    return model::make_engine(loaded, options);
}

GenerateOptions greedy(int tokens) {
    GenerateOptions options;
    options.max_tokens = tokens;
    options.sampling.temperature = 0;
    return options;
}

EvalResult eval_50(const std::string& path) {
    const auto engine = open_engine(path, 256);
    const std::string text = read_text_file(test::data("text/tinystories_1000.txt"));
    return evaluate(*engine, text, {.split = "<|endoftext|>", .limit = 50});
}

TEST(Stories260K, GreedyText) {
    MR_NEED_DATA(stories());
    const auto engine = open_engine(stories());
    Session session(*engine);
    const std::int32_t bos = *engine->model().tokenizer->bos();
    std::string streamed;
    const Generated out = session.generate({&bos, 1}, greedy(200), [&](std::string_view text) {
        streamed += text;
        return true;
    });
    EXPECT_EQ(out.text.substr(0, std::string(kGreedy).size()), kGreedy);
    EXPECT_EQ(streamed, out.text);
    EXPECT_EQ(out.ids.size(), 200u);
    EXPECT_EQ(out.decode.tokens, 199);
}

TEST(Stories260K, LossInF32) {
    MR_NEED_DATA(stories());
    const EvalResult result = eval_50(stories());
    EXPECT_EQ(result.documents, 50);
    EXPECT_EQ(result.tokens, 16993);
    EXPECT_NEAR(result.nll, 1.3180, 0.00005);
    EXPECT_DOUBLE_EQ(result.perplexity(), std::exp(result.nll));
}

TEST(Stories260K, LossInOtherTypes) {
    MR_NEED_DATA(stories());
    const test::TempFolder temp;
    for (DType type : {DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        const std::string file = temp / (std::string(dtype_name(type)) + ".gguf");
        model::convert_model(stories(), file, {.type = type, .tokenizer = {}, .progress = {}});
        const EvalResult result = eval_50(file);
        EXPECT_EQ(result.tokens, 16993) << dtype_name(type);
        // q4_0 keeps 4 bits of a model of 260K parameters; the others must cost under 1%.
        const double most = type == DType::q4_0 ? 1.15 : 1.01;
        EXPECT_LT(result.nll, 1.3180 * most) << dtype_name(type);
        EXPECT_GT(result.nll, 1.3180 * 0.99) << dtype_name(type);
    }
}

TEST(Stories260K, SameTextWhateverTheThreads) {
    MR_NEED_DATA(stories());
    std::string first;
    for (int threads : {1, 2, 4}) {
        auto loaded = std::make_shared<const model::Model>(model::load_model(stories()));
        model::EngineOptions options;
        options.threads = threads;
        options.max_batch = threads == 2 ? 3 : 256;  // and with other cuts of the prompt
        const std::unique_ptr<model::Engine> opened = model::make_engine(loaded, options);
        model::Engine& engine = *opened;
        Session session(engine);
        GenerateOptions sampled;
        sampled.max_tokens = 100;
        sampled.sampling.seed = 7;
        const auto prompt = loaded->tokenizer->encode("Once upon a time, there was a dog");
        const std::string text = session.generate(prompt, sampled).text;
        if (first.empty()) first = text;
        EXPECT_EQ(text, first) << threads << " threads";
    }
    EXPECT_FALSE(first.empty());
}

TEST(Session, GoesOnFromWhatTheCacheHolds) {
    MR_NEED_DATA(stories());
    const auto engine = open_engine(stories());
    const auto& tokenizer = *engine->model().tokenizer;
    const auto prompt = tokenizer.encode("Once upon a time");
    Session session(*engine);
    const Generated first = session.generate(prompt, greedy(20));
    std::vector<std::int32_t> longer(prompt);
    longer.insert(longer.end(), first.ids.begin(), first.ids.end());
    const Generated second = session.generate(longer, greedy(20));

    const auto fresh = open_engine(stories());
    {
        Session whole(*fresh);
        EXPECT_EQ(first.text + second.text, whole.generate(prompt, greedy(40)).text);
    }
    // Only the last token of the history was not in the cache.
    EXPECT_EQ(second.prefill.ledger.op(OpKind::lm_head).calls, 1u);
    EXPECT_EQ(second.prefill.ledger.op(OpKind::embedding).bytes_written,
              static_cast<std::uint64_t>(engine->model().spec.dim) * 4);

    // A history that diverges drops what no longer matches.
    std::vector<std::int32_t> other(prompt.begin(), prompt.begin() + 2);
    other.push_back(longer.back());
    Session clean(*fresh);
    EXPECT_EQ(session.generate(other, greedy(10)).text, clean.generate(other, greedy(10)).text);
}

TEST(Session, StopsWhereItIsTold) {
    MR_NEED_DATA(stories());
    const auto engine = open_engine(stories());
    const std::int32_t bos = *engine->model().tokenizer->bos();
    GenerateOptions options = greedy(200);
    options.stop = {"outside in", "never said"};
    std::string streamed;
    {
        Session session(*engine);
        const Generated out = session.generate({&bos, 1}, options, [&](std::string_view text) {
            streamed += text;
            return true;
        });
        EXPECT_EQ(out.reason, StopReason::stop_string);
        EXPECT_TRUE(out.text.ends_with("She loved to play ")) << out.text;
        EXPECT_EQ(streamed, out.text);
    }
    {
        Session session(*engine);
        int pieces = 0;
        const Generated out = session.generate({&bos, 1}, greedy(200),
                                               [&](std::string_view) { return ++pieces < 3; });
        EXPECT_EQ(out.reason, StopReason::cancelled);
        EXPECT_EQ(pieces, 3);
    }
    {
        Session session(*engine);
        GenerateOptions all = greedy(100000);
        all.ignore_end = true;
        const Generated out = session.generate({&bos, 1}, all);
        EXPECT_EQ(out.reason, StopReason::context_full);
        EXPECT_EQ(out.ids.size(), 512u);
    }
    {
        Session session(*engine);
        EXPECT_THROW(session.generate({}, greedy(1)), Error);
        const std::vector<std::int32_t> too_long(512, bos);
        EXPECT_THROW(session.generate(too_long, greedy(1)), Error);
    }
}

TEST(Session, NaNWeightsAreOneClearError) {
    model::ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 64;
    spec.dim = spec.hidden = 32;
    spec.layers = 1;
    spec.heads = spec.kv_heads = 1;
    spec.head_dim = spec.rope.rotary = 32;
    spec.context = 64;
    model::Model made = model::random_model(spec, DType::f32, 1);
    made.source = "damaged.gguf";
    static_cast<float*>(made.weights.layers[0].up.data)[5] = std::nanf("");
    const std::unique_ptr<model::Engine> opened =
        model::make_engine(std::make_shared<const model::Model>(std::move(made)), {});
    model::Engine& engine = *opened;
    const std::int32_t id = 1;
    try {
        Session(engine).generate({&id, 1}, greedy(4));
        FAIL() << "NaN logits went through";
    } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), 1);
        EXPECT_NE(std::string(error.what()).find("damaged.gguf"), std::string::npos);
        EXPECT_NE(std::string(error.what()).find("not a number"), std::string::npos);
    }
    EXPECT_THROW(evaluate(engine, "some text", {}), Error);
}

TEST(Eval, SplitsAsDocumented) {
    const std::string text = "\n  one\n<|endoftext|>\n<|endoftext|>two\n\n<|endoftext|>three";
    const auto parts = split_documents(text, {.split = "<|endoftext|>"});
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[0], "one");
    EXPECT_EQ(parts[1], "two\n");
    EXPECT_EQ(parts[2], "three");
    EXPECT_EQ(split_documents(text, {.split = "<|endoftext|>", .limit = 2}).size(), 2u);
    EXPECT_EQ(split_documents(text, {}).size(), 1u);
    EXPECT_TRUE(split_documents("", {}).empty());
}

}  // namespace
}  // namespace mr::decode
