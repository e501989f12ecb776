// decode(encode(x)) == x, whole and streamed, and no text takes much more than linear time.
#include <ctime>
#include <random>

#include "sanitized.h"
#include "text/unicode.h"
#include "text_data.h"

namespace mr::text {
namespace {

using Ids = std::vector<std::int32_t>;
// Processor time: independent of other programs on the machine.
double seconds_since(std::clock_t start) {
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

class RoundTrip : public testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        MR_NEED_DATA(GetParam());
        tokenizer_ = load(GetParam());
    }

    // NFC changes a text, and for SentencePiece U+2581 is a space.
    std::string normal(const std::string& text) const {
        if (tokenizer_->data().nfc) return nfc(text);
        if (tokenizer_->data().model != TokenizerModel::sentencepiece_bpe) return text;
        constexpr std::string_view kMark = "\xE2\x96\x81";
        std::string out;
        for (std::size_t i = 0; i < text.size();) {
            const bool mark = text.compare(i, kMark.size(), kMark) == 0;
            out += mark ? ' ' : text[i];
            i += mark ? kMark.size() : 1;
        }
        return out;
    }

    void expect_round_trip(const std::string& text) const {
        for (bool parse_special : {true, false}) {
            const Ids ids = tokenizer_->encode(text, {.parse_special = parse_special});
            const std::size_t extra = tokenizer_->data().prefix.size();
            const std::string back = tokenizer_->decode(std::span(ids).subspan(extra));
            ASSERT_TRUE(back == normal(text))
                << "of " << text.size() << " bytes: " << testing::PrintToString(text.substr(0, 200))
                << "\ncame " << testing::PrintToString(back.substr(0, 200));
        }
    }

    Tokenizer::Ptr tokenizer_;
};

TEST_P(RoundTrip, RecordedTexts) {
    for (const auto& text : golden()["texts"]) expect_round_trip(text.get<std::string>());
}

TEST_P(RoundTrip, WholeFiles) {
    for (const char* name :
         {"pg19_book.txt", "tinyshakespeare.txt", "tinystories_1000.txt", "wiki.test.raw"}) {
        MR_NEED_DATA(std::string("text/") + name);
        std::string text = read_all(data_path(std::string("text/") + name));
        if (test::sanitized() && text.size() > 100'000) text.resize(text.find('\n', 100'000));
        ASSERT_FALSE(text.empty());
        const auto start = std::clock();
        const Ids ids = tokenizer_->encode(text, {.add_special = false});
        const double seconds = seconds_since(start);
        ASSERT_TRUE(tokenizer_->decode(ids) == normal(text)) << name;
        std::printf("%-22s %8zu ids  %6.1f MB/s\n", name, ids.size(),
                    static_cast<double>(text.size()) / seconds / 1e6);
    }
}

// Where a text may be cut, the parts' ids equal the whole's: parts of all kinds of characters, and
// of added tokens, which must not be cut.
TEST_P(RoundTrip, PartsHaveTheIdsOfTheWhole) {
    const TokenizerData& data = tokenizer_->data();
    const bool words = data.model == TokenizerModel::byte_level_bpe;
    std::vector<std::string> parts{"a",  "word", "Word", " ",  " ",      " ",      "  ",     "\n",
                                   "\t", "'s",   "'",    "12", "\u0301", "\u00e9", "\u4f60", "."};
    for (const AddedToken& token : data.added) parts.push_back(token.text);
    std::mt19937 random(7);
    int cuts = 0;
    for (int round = 0; round < 1500; ++round) {
        std::string text;
        for (int i = 0; i < 60; ++i) {
            // Added tokens, of which there may be hundreds, are drawn no more often than the
            // others.
            const std::size_t among = random() % 4 == 0 ? parts.size() : 16;
            text += parts[random() % among];
        }
        const std::size_t near = random() % (text.size() + 10);
        const std::size_t cut = tokenizer_->cut_before(text, near);
        if (cut == 0) continue;
        ++cuts;
        ASSERT_LE(cut, near);
        for (bool parse_special : {true, false}) {
            const EncodeOptions options{.add_special = false, .parse_special = parse_special};
            Ids ids = tokenizer_->encode(text.substr(0, cut), options);
            const Ids more = tokenizer_->encode(text.substr(cut), options);
            ids.insert(ids.end(), more.begin(), more.end());
            ASSERT_EQ(ids, tokenizer_->encode(text, options))
                << testing::PrintToString(text) << " at " << cut;
        }
    }
    EXPECT_EQ(cuts > 100, words && data.space_prefix == SpacePrefix::never) << cuts;
    EXPECT_EQ(tokenizer_->cut_before("", 0), 0u);
    EXPECT_EQ(tokenizer_->cut_before("a b", 0), 0u);
    EXPECT_EQ(tokenizer_->cut_before("a ", 9), 0u);
}

TEST_P(RoundTrip, EveryCharacter) {
    std::string text;
    for (char32_t c = 0; c < kBadByte; c += c < 0x10000 ? 1 : 13) {
        if (c >= 0xD800 && c < 0xE000) continue;
        append_utf8(text, c);
        text += 'x';  // so that nothing composes across
    }
    expect_round_trip(text);
}

TEST_P(RoundTrip, AnyBytes) {
    // GPT-NeoX has no tokens for the 13 bytes that never occur in UTF-8; all others must work.
    int missing = 0;
    for (int b = 0; b < 256; ++b) {
        const std::string one(1, static_cast<char>(b));
        const std::string back = tokenizer_->decode(tokenizer_->encode(one), true);
        if (back == one) continue;
        ++missing;
        EXPECT_TRUE(b == 0xC0 || b == 0xC1 || b >= 0xF5) << b;
        EXPECT_EQ(back, "\uFFFD");
    }
    EXPECT_EQ(missing, std::string(GetParam()).find("neox") == std::string::npos ? 0 : 13);
    std::mt19937 random(7);
    for (int i = 0; i < 300; ++i) {
        std::string text;
        for (unsigned n = random() % 40; n > 0; --n) {
            // Mostly bytes of multi-byte characters, so that valid and invalid ones mix.
            const char c =
                static_cast<char>(random() % 4 ? 0x80 + random() % 0x80 : random() % 0x80);
            const auto byte = tokenizer_->encode(std::string(1, c), {.add_special = false});
            if (tokenizer_->decode(byte) == std::string(1, c)) text += c;
        }
        expect_round_trip(text);
    }
}

TEST_P(RoundTrip, StreamsTheSameTextAtEverySplit) {
    const std::string written =
        "Na\u00efve \u65e5\u672c\u8a9e \U0001f636\u200d\U0001f32b\ufe0f \u1780\u17b6\u1793 \u2581 "
        "end";
    const std::string text = normal(written);
    const Ids ids = tokenizer_->encode(written, {.add_special = false});
    StreamDecoder stream(*tokenizer_, {.at_start = true});
    std::string all;
    for (std::int32_t id : ids) {
        const std::string part = stream.push(id);
        EXPECT_EQ(incomplete_tail(part), 0u);
        EXPECT_EQ(replace_invalid(part), part);
        all += part;
    }
    EXPECT_EQ(all + stream.flush(), text);
    // Decoding from the middle gives the rest of the text, whatever came before.
    for (std::size_t cut = 1; cut < ids.size(); ++cut) {
        const std::string before = tokenizer_->decode(std::span(ids).first(cut));
        if (replace_invalid(before) != before) continue;
        StreamDecoder rest(*tokenizer_);
        std::string tail;
        for (std::size_t i = cut; i < ids.size(); ++i) tail += rest.push(ids[i]);
        EXPECT_EQ(before + tail + rest.flush(), text) << cut;
    }
}

// Quadratic merging would exceed the time limit of the test.
TEST_P(RoundTrip, ManyOfTheSame) {
    const std::size_t n = test::sanitized() ? 20'000 : 300'000;
    const std::string unit[] = {"a",      "ab",      " ", "\n", "7",    "-",         " \n",
                                "\u00e9", "e\u0301", "<", "' ", "\x80", "\U0001f999"};
    double slowest = 0;
    for (const std::string& u : unit) {
        std::string text;
        while (text.size() < n) text += u;
        const auto start = std::clock();
        const Ids ids = tokenizer_->encode(text, {.add_special = false});
        const double seconds = seconds_since(start);
        slowest = std::max(slowest, seconds);
        if (u == "a") std::printf("%zu bytes of a: %.3f s, %zu ids\n", n, seconds, ids.size());
        ASSERT_TRUE(tokenizer_->decode(ids) == normal(text)) << testing::PrintToString(u);
    }
    std::printf("slowest of %zu: %.3f s\n", std::size(unit), slowest);
}

INSTANTIATE_TEST_SUITE_P(Text, RoundTrip, testing::ValuesIn(kTokenizers), [](const auto& info) {
    std::string name = info.param;
    name = name.substr(name.find('/') + 1);
    for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return name;
});

TEST(StreamDecoder, BrokenCharactersBecomeReplacementCharacters) {
    const auto tokenizer = Tokenizer::bytes(256);
    StreamDecoder stream(*tokenizer);
    EXPECT_EQ(stream.push(0xE2), "");
    EXPECT_EQ(stream.push(0x82), "");
    EXPECT_EQ(stream.push('x'), "\uFFFDx");
    EXPECT_EQ(stream.push(0x80), "\uFFFD");
    EXPECT_EQ(stream.push(0xF0), "");
    EXPECT_EQ(stream.push(0x9F), "");
    EXPECT_EQ(stream.push(0xA6), "");
    EXPECT_EQ(stream.push(0x99), "\U0001f999");
    EXPECT_EQ(stream.push(0xC3), "");
    EXPECT_EQ(stream.flush(), "\uFFFD");
    EXPECT_EQ(stream.flush(), "");
}

TEST(Bytes, FallbackTokenizer) {
    const auto tokenizer = Tokenizer::bytes(300);
    EXPECT_EQ(tokenizer->vocab_size(), 300);
    EXPECT_EQ(tokenizer->encode("A\xff"), (Ids{65, 255}));
    EXPECT_EQ(tokenizer->decode(Ids{65, 299, -1, 300}), "A<299>");
    EXPECT_EQ(tokenizer->display(10), "\\n");
    EXPECT_EQ(tokenizer->display(255), "\\xff");
}

}  // namespace
}  // namespace mr::text
