// Tokenizer training compared with a reference that recounts everything before every merge.
#include "text/bpe_train.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "formats/json.h"
#include "text/byte_alphabet.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json_writer.h"
#include "text/unicode.h"

namespace mr::text {
namespace {

BpeTrained train(const std::vector<std::string>& texts, BpeTrainOptions options, int threads = 1) {
    ThreadPool pool(threads);
    BpeTrainer trainer(std::move(options), pool);
    for (const std::string& text : texts) trainer.add(text);
    return trainer.train();
}

std::string printable(unsigned char byte) {
    std::string out;
    append_utf8(out, byte_to_char(byte));
    return out;
}

// The merges by the definition, as "left right". Special tokens do not occur in `text`.
std::vector<std::string> reference(const std::string& text, std::size_t vocab, std::size_t specials,
                                   std::uint64_t min_count) {
    std::vector<std::string> tokens(specials);
    std::map<char32_t, unsigned char> alphabet;
    for (unsigned b = 0; b < 256; ++b) {
        alphabet[byte_to_char(static_cast<unsigned char>(b))] = static_cast<unsigned char>(b);
    }
    std::map<std::string, std::size_t> ids;
    for (const auto& [character, byte] : alphabet) {
        ids[printable(byte)] = tokens.size();
        tokens.push_back(printable(byte));
    }
    std::vector<std::vector<std::size_t>> words;
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t end = word_end(PreTokenizer::gpt2, text, pos);
        std::vector<std::size_t>& word = words.emplace_back();
        for (; pos < end; ++pos)
            word.push_back(ids[printable(static_cast<unsigned char>(text[pos]))]);
    }
    std::vector<std::string> merges;
    while (tokens.size() < vocab) {
        std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> counts;
        for (const auto& word : words) {
            for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
        }
        std::pair<std::size_t, std::size_t> best;
        std::uint64_t most = 0;
        for (const auto& [pair, count] : counts) {  // in the order of the ids
            if (count > most) most = count, best = pair;
        }
        if (most < min_count) break;
        const std::string joined = tokens[best.first] + tokens[best.second];
        merges.push_back(tokens[best.first] + " " + tokens[best.second]);
        if (ids.emplace(joined, tokens.size()).second) tokens.push_back(joined);
        for (auto& word : words) {
            std::vector<std::size_t> shorter;
            for (std::size_t i = 0; i < word.size(); ++i) {
                if (i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second) {
                    shorter.push_back(ids[joined]);
                    ++i;
                } else {
                    shorter.push_back(word[i]);
                }
            }
            word = shorter;
        }
    }
    return merges;
}

std::vector<std::string> merges_of(const TokenizerData& data) {
    std::vector<std::string> out;
    for (const Merge& m : data.merges) out.push_back(data.merge_text(m));
    return out;
}

const char* kStory =
    "Once upon a time there was a miller's cat. The cat sat by the mill, and the mill went round "
    "and round; it's the water that did it, the cat thought: the water, the water!\n\n"
    "  Na\xC3\xAFve caf\xC3\xA9, 1234 1234 56 \xE6\x97\xA5\xE6\x9C\xAC \xE6\x97\xA5 \xFF\xFE "
    "aaaaaa "
    "aaaa aaa aaaaaaaaaaa banana banana bandana\n";

TEST(BpeTrain, EqualsTheReference) {
    for (const std::uint64_t min_count : {1, 2, 3}) {
        const BpeTrained got =
            train({kStory}, {.vocab = 330, .special = {"<|end|>"}, .min_count = min_count});
        EXPECT_EQ(merges_of(got.data), reference(kStory, 330, 1, min_count));
    }
}

// Few letters: overlapping pairs and ties.
TEST(BpeTrain, EqualsTheReferenceOnRandomTexts) {
    std::uint32_t state = 1;
    for (int round = 0; round < 12; ++round) {
        std::string text;
        for (int i = 0; i < 400; ++i) {
            state = state * 1664525u + 1013904223u;
            text += "aaabbc \n"[state >> (round % 2 ? 29 : 28) & 7];
        }
        const BpeTrained got = train({text}, {.vocab = 320, .special = {}, .min_count = 1});
        ASSERT_EQ(merges_of(got.data), reference(text, 320, 0, 1)) << text;
        ASSERT_EQ(std::set(got.data.tokens.begin(), got.data.tokens.end()).size(),
                  got.data.tokens.size());
    }
}

TEST(BpeTrain, DoesNotDependOnThreadsOrOrder) {
    // Long enough to be cut into several chunks.
    std::string text;
    for (int i = 0; text.size() < (5u << 20); ++i) {
        text += "line " + std::to_string(i % 5000) + " of a long text, it's\n";
    }
    const BpeTrainOptions options{.vocab = 400};
    const BpeTrained one = train({text, kStory}, options, 1);
    const BpeTrained three = train({kStory, text}, options, 3);
    EXPECT_EQ(one.data.tokens, three.data.tokens);
    EXPECT_EQ(merges_of(one.data), merges_of(three.data));
    EXPECT_EQ(one.bytes, three.bytes);
    EXPECT_EQ(one.words, three.words);
    EXPECT_EQ(one.distinct_words, three.distinct_words);
}

TEST(BpeTrain, SpecialTokensEndAWordAndAreNotLearned) {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "ab<|end|>cd<|pad|>";
    const BpeTrained got = train({text}, {.vocab = 400, .special = {"<|end|>", "<|pad|>"}});
    EXPECT_EQ(merges_of(got.data), std::vector<std::string>({"a b", "c d"}));
    EXPECT_EQ(got.data.tokens[0], "<|end|>");
    EXPECT_EQ(got.data.tokens[1], "<|pad|>");
}

TEST(BpeTrain, EncodesAsItWasTrainedAndBack) {
    const BpeTrained got = train({kStory}, {.vocab = 290});
    const auto direct = Tokenizer::from_data(got.data);
    const auto files = huggingface_tokenizer(got.data).value();
    const auto read = Tokenizer::from_json(files.tokenizer, "tokenizer.json", files.config);
    const auto alone = Tokenizer::from_json(files.tokenizer, "tokenizer.json");
    std::string every;
    for (int b = 0; b < 256; ++b) every += static_cast<char>(b);
    for (const std::string& text :
         {std::string(kStory), every, std::string(), std::string("x<|endoftext|>y")}) {
        const auto ids = direct->encode(text);
        ASSERT_FALSE(ids.empty());
        EXPECT_EQ(ids.front(), 0);  // as before every document in training
        EXPECT_EQ(read->encode(text), ids);
        EXPECT_EQ(alone->encode(text), ids);
        EXPECT_EQ(read->decode(ids), "<|endoftext|>" + text);
    }
    EXPECT_LT(direct->encode(kStory).size(), std::string(kStory).size() * 6 / 10);
    for (const auto& tokenizer : {direct, read, alone}) {
        EXPECT_EQ(tokenizer->vocab_size(), 290);
        EXPECT_EQ(tokenizer->bos(), 0);
        EXPECT_EQ(tokenizer->eos(), 0);
        EXPECT_TRUE(tokenizer->is_special(0));
    }
    EXPECT_EQ(read->data().tokens, got.data.tokens);
    EXPECT_EQ(merges_of(read->data()), merges_of(got.data));
}

TEST(BpeTrain, AnEndMarkOfOnesOwn) {
    const BpeTrained got = train({kStory}, {.vocab = 300, .special = {"[\"END\\\" \x01]", "[X]"}});
    const auto files = huggingface_tokenizer(got.data).value();
    const auto read = Tokenizer::from_json(files.tokenizer, "tokenizer.json", files.config);
    EXPECT_EQ(read->eos(), 0);
    EXPECT_EQ(read->bos(), 0);
    EXPECT_EQ(read->piece(0), "[\"END\\\" \x01]");
    EXPECT_EQ(read->encode("a[X]b", {.add_special = false}).at(1), 1);
}

TEST(BpeTrain, GivesFewerWhereNoPairIsLeft) {
    const BpeTrained got = train({"abab abab"}, {.vocab = 5000});
    EXPECT_EQ(merges_of(got.data), std::vector<std::string>({"a b", "ab ab"}));
    EXPECT_EQ(got.data.tokens.size(), 259u);
    EXPECT_EQ(got.words, 2u);
    EXPECT_EQ(got.distinct_words, 2u);
    EXPECT_EQ(train({"abab abab"}, {.vocab = 257}).data.merges.size(), 0u);
}

// A line of a million dashes must not take quadratic time.
TEST(BpeTrain, LongWords) {
    const BpeTrained got = train({std::string(1u << 20, '-')}, {.vocab = 300, .special = {}});
    EXPECT_EQ(got.data.merges.size(), 10u);  // up to the piece of 1024 that long words are cut into
    const std::string text(100000, '-');
    const auto tokenizer = Tokenizer::from_data(got.data);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(BpeTrain, BadRequestsSaySo) {
    const auto says = [](const BpeTrainOptions& options, const std::string& text,
                         const std::string& wanted, ErrorKind kind) {
        try {
            (void)train({text}, options);
            ADD_FAILURE() << "no error about " << wanted;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), kind);
            EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
        }
    };
    using enum ErrorKind;
    says({.vocab = 256}, "abc", "--vocab = 256", usage);
    says({.vocab = -1}, "abc", "257", usage);
    says({.vocab = 1 << 30}, "abc", "--vocab", usage);
    says({.special = {""}}, "abc", "is empty", usage);
    says({.special = {"a"}}, "abc", "single character", usage);
    says({.special = {"a\nb"}}, "abc", "line end", usage);
    says({.special = {"a\xFF"}}, "abc", "UTF-8", usage);
    says({.special = {"\xC4\xA0the"}}, "abc", "mistaken", usage);
    says({.special = {"<a>", "<a>"}}, "abc", "twice", usage);
    says({}, "", "no text", input);
    says({}, "<|endoftext|><|endoftext|>", "no text", input);
}

// Other byte-level tokenizers mean the same after writing and reading.
TEST(TokenizerJsonWriter, KeepsWhatTheReaderKnows) {
    TokenizerData data = train({kStory}, {.vocab = 290}).data;
    ASSERT_EQ(data.tokens.size(), 290u);
    data.added.push_back({.id = 289, .text = data.tokens[289], .special = false, .lstrip = true});
    data.types[289] = TokenType::user_defined;
    for (const char* pre : {"gpt-2", "llama-bpe", "qwen2"}) {
        data.pre = pre;
        data.nfc = data.ignore_merges = pre[0] == 'q';
        data.prefix = pre[0] == 'g' ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{0, 0};
        data.suffix = pre[0] == 'q' ? std::vector<std::int32_t>{0} : std::vector<std::int32_t>{};
        data.chat_template = pre[0] == 'l' ? "{{ \"x\" }}" : "";
        data.bos = std::nullopt;
        data.space_prefix = pre[0] == 'g' ? SpacePrefix::always : SpacePrefix::never;
        data.prefix_if_missing = pre[0] == 'g';
        const auto files = huggingface_tokenizer(data).value();
        const TokenizerData back = Tokenizer::from_json(files.tokenizer, "t", files.config)->data();
        EXPECT_EQ(back.pre, data.pre);
        EXPECT_EQ(back.tokens, data.tokens);
        EXPECT_EQ(back.types, data.types);
        EXPECT_EQ(merges_of(back), merges_of(data));
        EXPECT_EQ(back.nfc, data.nfc);
        EXPECT_EQ(back.ignore_merges, data.ignore_merges);
        EXPECT_EQ(back.space_prefix, data.space_prefix);
        EXPECT_EQ(back.prefix_if_missing, data.prefix_if_missing);
        EXPECT_EQ(back.prefix, data.prefix);
        EXPECT_EQ(back.suffix, data.suffix);
        EXPECT_EQ(back.bos, data.bos);
        EXPECT_EQ(back.eos, data.eos);
        EXPECT_EQ(back.chat_template, data.chat_template);
        ASSERT_EQ(back.added.size(), 2u);
        EXPECT_TRUE(back.added[1].lstrip);
        EXPECT_FALSE(back.added[1].special);
    }
    // Names that GGUF files have for the same words.
    data.pre = "llama3";
    const auto files = huggingface_tokenizer(data).value();
    EXPECT_EQ(Tokenizer::from_json(files.tokenizer, "t")->data().pre, "llama-bpe");
    // A template of a GGUF may hold any bytes.
    data.chat_template = "a\xFF";
    EXPECT_NE(huggingface_tokenizer(data).value().config.find("a\xEF\xBF\xBD"), std::string::npos);
}

// A merge is one text where that is unambiguous: older versions of Hugging Face's library read no
// pairs.
TEST(TokenizerJsonWriter, MergesAreTextsWhereTheyCanBe) {
    const TokenizerData data = train({kStory}, {.vocab = 290}).data;
    const auto last_merge = [](const TokenizerData& data) {
        const auto files = huggingface_tokenizer(data).value();
        EXPECT_EQ(merges_of(Tokenizer::from_json(files.tokenizer, "t")->data()), merges_of(data));
        const auto file = formats::JsonDocument::parse(files.tokenizer, "t");
        const formats::JsonValue list = file.root()["model"]["merges"];
        return list[list.size() - 1].dump();
    };
    EXPECT_EQ(last_merge(data), formats::json_quoted(data.merge_text(data.merges.back())));
    for (const std::string odd : {"a b", "#version"}) {
        TokenizerData changed = data;
        changed.tokens.insert(changed.tokens.end(), {odd, odd + data.tokens[40]});
        changed.types.insert(changed.types.end(), 2, TokenType::normal);
        changed.merges.push_back({290, 40});
        EXPECT_TRUE(last_merge(changed).starts_with("[\"" + odd + "\",")) << odd;
    }
}

TEST(TokenizerJsonWriter, ReturnsNothingForWhatTheFormatLacks) {
    const TokenizerData data = train({kStory}, {.vocab = 290}).data;
    const auto can = [&](const auto& change) {
        TokenizerData changed = data;
        change(changed);
        return huggingface_tokenizer(changed).has_value();
    };
    EXPECT_TRUE(can([](TokenizerData&) {}));
    EXPECT_FALSE(can([](TokenizerData& d) { d.tokens[280] = "\xFF"; }));
    EXPECT_FALSE(can([](TokenizerData& d) { d.tokens[280] = d.tokens[281]; }));
    EXPECT_FALSE(can([](TokenizerData& d) { d.pre = "another"; }));
    EXPECT_FALSE(can([](TokenizerData& d) { d.space_prefix = SpacePrefix::always; }));
    EXPECT_FALSE(can([](TokenizerData& d) {
        d.space_prefix = SpacePrefix::first;
        d.prefix_if_missing = true;
    }));
}

}  // namespace
}  // namespace mr::text
