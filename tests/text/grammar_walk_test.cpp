// Random texts under masks: whatever is drawn, the result is a valid value.
#include <array>
#include <thread>

#include "formats/gguf.h"
#include "grammar_cases.h"
#include "grammar_random.h"
#include "grammar_validator.h"
#include "sanitized.h"
#include "text/grammar/constraint.h"
#include "text_data.h"

namespace mr::text::grammar {
namespace {

const Tokenizer& bundled() {
    static const Tokenizer::Ptr tokenizer = Tokenizer::from_gguf(
        formats::GgufFile::open(std::string(MR_SOURCE_DIR) + "/models/storyteller.gguf"));
    return *tokenizer;
}

std::shared_ptr<const Vocabulary> vocabulary(const Tokenizer& tokenizer) {
    return std::make_shared<const Vocabulary>(tokenizer);
}

std::vector<std::int32_t> allowed(Constraint& constraint) {
    std::vector<std::int32_t> out;
    const auto mask = constraint.mask();
    for (std::size_t i = 0; i < mask.size() * 32; ++i) {
        if (mask[i / 32] >> i % 32 & 1) out.push_back(static_cast<std::int32_t>(i));
    }
    return out;
}

// Draws tokens until the text ends; after `free` of them, those that close it soonest.
std::string walked(Constraint constraint, const Vocabulary& vocabulary, RandomSchema& random,
                   std::size_t free, std::vector<std::int32_t>* ids = nullptr) {
    std::string text;
    for (std::size_t step = 0; step < free + 20000; ++step) {
        if (constraint.finished()) return text;
        const std::vector<std::int32_t> tokens = allowed(constraint);
        if (tokens.empty()) {
            ADD_FAILURE() << "no token behind " << text;
            return text;
        }
        if (constraint.complete() && random.below(3) == 0) return text;
        std::int32_t token = tokens[random.below(tokens.size())];
        if (step >= free) {
            if (constraint.complete()) return text;
            // Brackets close nothing inside a string, where any letter may follow.
            const bool in_string = std::any_of(tokens.begin(), tokens.end(), [&](std::int32_t one) {
                return vocabulary.bytes(one) == "z";
            });
            const std::string_view soonest = in_string ? "\"" : "}]\"ntf0";
            std::size_t best = soonest.size();
            for (const std::int32_t one : tokens) {
                const std::string_view bytes = vocabulary.bytes(one);
                const std::size_t at = bytes.size() == 1 ? soonest.find(bytes) : best;
                if (at < best) best = at, token = one;
            }
        }
        if (vocabulary.is_end(token)) return text;
        text += vocabulary.bytes(token);
        constraint.accept(token);
        if (ids) ids->push_back(token);
    }
    ADD_FAILURE() << "does not end: " << text.substr(0, 500);
    return text;
}

void check_random(const Tokenizer& tokenizer, std::uint64_t schemas, std::uint64_t from) {
    if (test::sanitized()) schemas = (schemas + 4) / 5;  // they take ten times as long
    const auto words = vocabulary(tokenizer);
    std::size_t bytes = 0, refused = 0;
    for (std::uint64_t seed = from; seed < from + schemas; ++seed) {
        RandomSchema random(seed);
        const std::string text = random.write();
        SCOPED_TRACE(fmt::format("seed {}: {}", seed, text));
        const auto schema = json(text);
        std::shared_ptr<Grammar> grammar;
        try {
            grammar = std::make_shared<Grammar>(network_of_schema(schema.root(), "schema"), words);
        } catch (const Error& error) {
            // Some join objects that exclude each other.
            ASSERT_NE(std::string(error.what()).find("no value"), std::string::npos)
                << error.what();
            ++refused;
            continue;
        }
        for (int walk = 0; walk < 4; ++walk) {
            std::vector<std::int32_t> ids;
            const std::string value =
                walked(Constraint(grammar), *words, random, 10 + 40 * walk, &ids);
            StreamDecoder stream(tokenizer);
            std::string streamed;
            for (const std::int32_t id : ids) streamed += stream.push(id);
            ASSERT_EQ(streamed + stream.flush(), value);  // what a client receives
            bytes += value.size();
            ASSERT_TRUE(matches(grammar->network(), value)) << value.substr(0, 1000);
            const auto parsed =
                formats::JsonDocument::parse(value, "a walk", {}, {.repeated_keys = true});
            ASSERT_TRUE(Validator(schema.root()).fits(parsed.root(), schema.root())) << value;
        }
    }
    EXPECT_GT(bytes, schemas * 40);
    EXPECT_LE(refused, schemas / 4);
}

TEST(GrammarWalk, BundledTokenizer) { check_random(bundled(), 150, 1000); }

TEST(GrammarWalk, Bytes) { check_random(*Tokenizer::bytes(300), 300, 5000); }

TEST(GrammarWalk, LargeVocabulary) {
    if (test::sanitized()) {
        GTEST_SKIP() << "takes long with sanitizers, and has what the others have";
    }
    MR_NEED_DATA("tokenizers/qwen2_5/tokenizer.json");
    check_random(*load("tokenizers/qwen2_5/tokenizer.json"), 5, 9000);
}

TEST(GrammarWalk, OtherTokenizers) {
    for (const char* name : {"models/tok512.bin", "tokenizers/llama2/tokenizer.bin",
                             "tokenizers/gguf/ggml-vocab-gpt-2.gguf"}) {
        MR_NEED_DATA(name);
        SCOPED_TRACE(name);
        check_random(*load(name), 8, 7000);
    }
}

// The mask equals its definition: a token is allowed if its bytes can follow.
TEST(GrammarWalk, MasksAreExact) {
    const Tokenizer& tokenizer = bundled();
    const auto words = vocabulary(tokenizer);
    std::size_t checked = 0;
    for (std::uint64_t seed = 1; seed <= 25; ++seed) {
        RandomSchema random(seed);
        std::shared_ptr<Grammar> grammar;
        try {
            grammar = std::make_shared<Grammar>(compiled(random.write()), words);
        } catch (const Error&) {
            continue;
        }
        Constraint constraint(grammar);
        Store store(grammar->network());
        Store::Id state = store.start();
        for (int step = 0; step < 25 && !constraint.finished(); ++step) {
            std::vector<std::int32_t> tokens = allowed(constraint);
            for (std::int32_t id = 0; id < words->size(); ++id) {
                bool may = store.complete(state);
                if (!tokenizer.is_end_of_generation(id)) {
                    may = !tokenizer.is_special(id) && !words->bytes(id).empty() &&
                          store.next(state, words->bytes(id)) != Store::kDead;
                }
                ASSERT_EQ(std::binary_search(tokens.begin(), tokens.end(), id), may)
                    << tokenizer.display(id);
                ++checked;
            }
            EXPECT_EQ(constraint.complete(), store.complete(state));
            std::erase_if(tokens, [&](std::int32_t id) { return words->is_end(id); });
            ASSERT_FALSE(tokens.empty());
            const std::int32_t token = tokens[random.below(tokens.size())];
            constraint.accept(token);
            state = store.next(state, words->bytes(token));
        }
    }
    EXPECT_GT(checked, 100'000u);
}

TEST(GrammarWalk, EndAndSpecialTokens) {
    const Tokenizer& tokenizer = bundled();
    ASSERT_TRUE(tokenizer.eos());
    const auto words = vocabulary(tokenizer);
    const auto grammar =
        std::make_shared<Grammar>(compiled(R"({"enum": ["a", "ab", 1, 12]})"), words);
    const auto said = [&](std::string_view text) {
        Constraint constraint(grammar);
        for (const char c : text) {
            for (std::int32_t id = 0; id < words->size(); ++id) {
                if (words->bytes(id) == std::string_view(&c, 1)) {
                    constraint.accept(id);
                    break;
                }
            }
        }
        return constraint;
    };
    EXPECT_FALSE(said("").allows(*tokenizer.eos()));
    EXPECT_FALSE(said("\"a").allows(*tokenizer.eos()));
    EXPECT_FALSE(said("\"a").complete());
    EXPECT_TRUE(said("1").allows(*tokenizer.eos()));
    EXPECT_TRUE(said("1").complete());
    EXPECT_FALSE(said("1").finished());
    Constraint done = said("\"ab\"");
    EXPECT_TRUE(done.complete());
    EXPECT_TRUE(done.finished());
    std::vector<std::int32_t> ends(words->ends().begin(), words->ends().end());
    EXPECT_EQ(allowed(done), ends);
    Constraint copy = done;
    done.accept(*tokenizer.eos());
    EXPECT_TRUE(done.finished());
    EXPECT_TRUE(copy.allows(*tokenizer.eos()));
    EXPECT_THROW(done.accept(*tokenizer.eos()), ContractError);
    EXPECT_THROW(said("1").accept(words->all().tokens[0]), ContractError);
    EXPECT_FALSE(copy.allows(-1));
    EXPECT_FALSE(copy.allows(words->size()));
}

// Copies are independent, and masks do not depend on earlier queries. The states of a long string
// are counted, so that they fill the store several times.
TEST(GrammarWalk, CopiesAndOrderDoNotMatter) {
    const auto words = vocabulary(bundled());
    const std::string schema =
        R"({"type": "array", "items": {"type": "string", "maxLength": 100000}})";
    const auto used = std::make_shared<Grammar>(compiled(schema), words);
    RandomSchema random(3);
    const std::int32_t quote = *bundled().find("\"");
    std::vector<std::vector<std::int32_t>> paths;
    Constraint last(used);
    for (int i = 0; i < 4; ++i) {
        Constraint constraint(used);
        std::vector<std::int32_t> path = {*bundled().find("["), quote};
        for (const std::int32_t token : path) constraint.accept(token);
        while (path.size() < 3000) {
            const auto token = words->all().tokens[random.below(words->all().tokens.size())];
            const bool ends = words->bytes(token).find('"') != std::string_view::npos;
            if (ends || (path.size() % 50 == 0 && !constraint.allows(token))) continue;
            Constraint copy = constraint;
            try {
                copy.accept(token);
            } catch (const ContractError&) {
                continue;  // in the middle of a character
            }
            path.push_back(token);
            constraint = copy;
        }
        paths.push_back(path);
    }
    EXPECT_GT(used->stores_made(), 1u);
    last.accept(*bundled().find("["));  // from a store that no longer exists
    EXPECT_TRUE(last.allows(quote));
    for (const auto& path : paths) {
        const auto fresh = std::make_shared<Grammar>(compiled(schema), words);
        Constraint a(used), b(fresh);
        for (std::size_t i = 0; i < path.size(); ++i) {
            if (i % 137 == 0) {
                const auto left = a.mask(), right = b.mask();
                ASSERT_TRUE(std::equal(left.begin(), left.end(), right.begin(), right.end())) << i;
            }
            a.accept(path[i]);
            b.accept(path[i]);
        }
    }
}

// Threads that share a grammar get the same results as one alone.
TEST(GrammarWalk, Threads) {
    const auto words = vocabulary(bundled());
    const std::string schema = R"({"type": "object", "properties": {"a": {"type": "string",
        "maxLength": 500}, "b": {"type": "array", "items": {"type": "number"}}}, "required": ["a"],
        "additionalProperties": true})";
    const auto texts = [&](const std::shared_ptr<Grammar>& grammar, std::uint64_t seed) {
        RandomSchema random(seed);
        std::string out;
        for (int i = 0; i < 20; ++i) out += walked(Constraint(grammar), *words, random, 60);
        return out;
    };
    const auto shared = std::make_shared<Grammar>(compiled(schema), words);
    std::array<std::string, 3> together;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < together.size(); ++i) {
        threads.emplace_back([&, i] { together[i] = texts(shared, i); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < together.size(); ++i) {
        const auto own = std::make_shared<Grammar>(compiled(schema), words);
        EXPECT_EQ(together[i], texts(own, i));
    }
}

// A model's files may name end tokens unknown to its tokenizer: they end a text, and never occur
// inside it.
TEST(GrammarWalk, FurtherEndsAreEnds) {
    const std::vector<std::int32_t> ends = {300, 301};
    const auto words = std::make_shared<const Vocabulary>(*Tokenizer::bytes(256), 400, ends);
    EXPECT_TRUE(words->is_end(301));
    Constraint constraint(std::make_shared<Grammar>(network_of_any_object(), words));
    constraint.accept('{');
    EXPECT_FALSE(constraint.allows(300));
    constraint.accept('}');
    EXPECT_TRUE(constraint.complete());
    EXPECT_TRUE(constraint.allows(300) && constraint.allows(301));
}

TEST(GrammarWalk, VocabulariesWithoutAllBytesAreRefused) {
    EXPECT_THROW(Vocabulary(*Tokenizer::bytes(200)), Error);
    // Tokens past the tokenizer's are never allowed.
    const auto words = std::make_shared<const Vocabulary>(*Tokenizer::bytes(256), 1000);
    EXPECT_EQ(words->words(), 32u);
    Constraint constraint(std::make_shared<Grammar>(network_of_any_object(), words));
    EXPECT_EQ(allowed(constraint), std::vector<std::int32_t>{'{'});
}

}  // namespace
}  // namespace mr::text::grammar
