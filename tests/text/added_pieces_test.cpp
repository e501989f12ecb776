// Added tokens whose text is also a piece of the vocabulary: the name of a byte, a character, or
// what merges make. Where the added token is not found, the text still becomes the piece.
#include <fmt/format.h>

#include "formats/gguf_writer.h"
#include "temp_folder.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_json_writer.h"
#include "text/unicode.h"
#include "text_data.h"

namespace mr::text {
namespace added_pieces_test {

using Ids = std::vector<std::int32_t>;
using nlohmann::json;

const char* const kTexts[] = {
    "привет, а б в", "20°C ° £5", "Hi! no! ! it's s", "so s, ss", "!", "", "Ġ Ġa", "日本語 é",
};

struct Added {
    const char* text;
    bool special, single_word;
};

json added_tokens(const std::vector<Added>& list, const json& vocab) {
    json out = json::array();
    std::size_t behind = vocab.size();
    for (const auto& [text, special, single_word] : list) {
        const bool there = vocab.contains(text);
        out.push_back({{"id", there ? vocab[text].get<std::size_t>() : behind++},
                       {"content", text},
                       {"special", special},
                       {"single_word", single_word},
                       {"normalized", false}});
    }
    return out;
}

// All bytes, `th`, and the added tokens.
json byte_level_json(const std::vector<Added>& added) {
    json vocab;
    for (unsigned b = 0; b < 256; ++b) {
        std::string name;
        append_utf8(name, byte_to_char(static_cast<unsigned char>(b)));
        vocab[name] = b;
    }
    vocab["th"] = 256;
    return {{"added_tokens", added_tokens(added, vocab)},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
            {"decoder", {{"type", "ByteLevel"}}},
            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array({"t h"})}}}};
}

// All bytes, a few characters, and the added tokens.
json sentencepiece_json(const std::vector<Added>& added) {
    json vocab = {{"<unk>", 0}};
    for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = vocab.size();
    for (const char* c : {"▁", "H", "i", "n", "o", "s", "!", "а", "°", "▁s", "no"}) {
        vocab[c] = vocab.size();
    }
    return {{"added_tokens", added_tokens(added, vocab)},
            {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}},
            {"model",
             {{"type", "BPE"},
              {"unk_token", "<unk>"},
              {"byte_fallback", true},
              {"vocab", vocab},
              {"merges", {"▁ s", "n o"}}}}};
}

Tokenizer::Ptr through_gguf(const TokenizerData& data) {
    const test::TempFolder folder;
    const std::string path = folder / "t.gguf";
    {
        formats::GgufWriter writer(path);
        write_tokenizer(writer, data);
        writer.finish();
    }
    return Tokenizer::from_gguf(formats::GgufFile::open(path));
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
    StreamDecoder stream(tokenizer, {.skip_special = false, .at_start = true});
    std::string out;
    for (const std::int32_t id : ids) out += stream.push(id);
    return out + stream.flush();
}

TEST(AddedPieces, TakeNoTextAway) {
    const std::vector<std::vector<Added>> lists = {
        {{"°", false, true}, {"!", false, true}, {"s", false, true}, {"Ġ", false, true}},
        {{"°", true, true}, {"th", true, true}, {"!", true, true}, {"а", true, true}},
        {{"<0x21>", false, true}, {"no", false, true}, {"▁", false, true}},
    };
    for (const auto& list : lists) {
        for (const bool bytes : {true, false}) {
            const json root = bytes ? byte_level_json(list) : sentencepiece_json(list);
            const auto tokenizer = Tokenizer::from_json(root.dump(), "t.json");
            const auto plain = Tokenizer::from_json(
                (bytes ? byte_level_json({}) : sentencepiece_json({})).dump(), "plain.json");
            const auto gguf = through_gguf(tokenizer->data());
            const auto files = huggingface_tokenizer(tokenizer->data(), "");
            ASSERT_TRUE(files);
            const auto again = Tokenizer::from_json(files->tokenizer, "again.json");
            for (const std::string text : kTexts) {
                SCOPED_TRACE(text + (bytes ? " in bytes" : ""));
                const Ids ids = tokenizer->encode(text);
                // A byte that stands alone as an added token of that name prints as the byte.
                const bool ambiguous = bytes && text.find_first_of("\xC2\xC4") != text.npos;
                if (!ambiguous) {
                    EXPECT_EQ(tokenizer->decode(ids), text);
                    EXPECT_EQ(streamed(*tokenizer, ids), text);
                }
                EXPECT_EQ(gguf->encode(text), ids);
                EXPECT_EQ(gguf->decode(ids), tokenizer->decode(ids));
                EXPECT_EQ(again->encode(text), ids);
                // Special tokens that are not looked for are the pieces that they also are.
                if (list[0].special) {
                    const EncodeOptions literal{.parse_special = false};
                    EXPECT_EQ(tokenizer->encode(text, literal), plain->encode(text));
                }
            }
        }
    }
}

// Files of other programs say by a type alone that a token is an added one.
TEST(AddedPieces, OfOtherProgramsGgufTakeNoTextAway) {
    using Strings = std::vector<std::string>;
    const test::TempFolder folder;
    for (const bool bytes : {true, false}) {
        const std::string path = folder / (bytes ? "bytes.gguf" : "sp.gguf");
        const TokenizerData plain =
            Tokenizer::from_json((bytes ? byte_level_json({}) : sentencepiece_json({})).dump(),
                                 "plain.json")
                ->data();
        Strings tokens = plain.tokens;
        std::vector<std::int32_t> types;
        for (const TokenType type : plain.types) types.push_back(static_cast<std::int32_t>(type));
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            if (tokens[i] == "°" || tokens[i] == "th") types[i] = 4;  // user-defined
            if (tokens[i] == "!" || tokens[i] == "а") types[i] = 3;   // control
        }
        tokens.push_back("café");
        types.push_back(4);
        {
            formats::GgufWriter writer(path);
            writer.set_string("tokenizer.ggml.model", bytes ? "gpt2" : "llama");
            writer.set_strings("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
            writer.set_ints("tokenizer.ggml.token_type", types);
            const Strings merges = {"t h"};
            if (bytes)
                writer.set_strings("tokenizer.ggml.merges", std::span<const std::string>(merges));
            if (!bytes) {
                std::vector<float> scores = plain.scores;
                scores.push_back(0);
                writer.set_floats("tokenizer.ggml.scores", scores);
                writer.set_bool("tokenizer.ggml.add_space_prefix", false);
            }
            writer.finish();
        }
        const auto tokenizer = Tokenizer::from_gguf(formats::GgufFile::open(path));
        for (const std::string text : {"привет, а б в", "no! ! thе", "café"}) {
            SCOPED_TRACE(text);
            const EncodeOptions literal{.add_special = false, .parse_special = false};
            const Ids ids = tokenizer->encode(text, literal);
            EXPECT_EQ(tokenizer->decode(ids), text);
            EXPECT_EQ(streamed(*tokenizer, ids), text);
        }
        // Stored as it is, though its characters are names of bytes, too.
        EXPECT_EQ(tokenizer->encode("café", {.add_special = false}).size(), 1u);
    }
}

// As Hugging Face's library: white space that `rstrip` takes is searched for tokens again.
TEST(AddedPieces, WhiteSpaceAfterATokenIsSearched) {
    json root = byte_level_json({{"<x>", false, false}, {"\n", false, false}});
    root["added_tokens"][0]["rstrip"] = true;
    const auto tokenizer = Tokenizer::from_json(root.dump(), "t.json");
    EXPECT_EQ(tokenizer->encode("<x>  a"), (Ids{257, 'a'}));
    EXPECT_EQ(tokenizer->encode("<x> \na"), (Ids{257, 258, 'a'}));
    EXPECT_EQ(tokenizer->encode("<x>\n a"), (Ids{257, 258, ' ', 'a'}));
    EXPECT_EQ(tokenizer->encode("<x>\n\na<x>"), (Ids{257, 258, 258, 'a', 257}));
}

// As Hugging Face's library: of two with the same text the later one holds, with the id of the
// first.
TEST(AddedPieces, TheLaterOfTwoHolds) {
    json root =
        byte_level_json({{"<x>", false, false}, {"<x>", true, false}, {"<y>", false, false}});
    root["added_tokens"][0]["rstrip"] = true;
    root["added_tokens"][1]["id"] = 257;
    root["added_tokens"][2]["id"] = 258;
    const auto tokenizer = Tokenizer::from_json(root.dump(), "t.json");
    EXPECT_EQ(tokenizer->encode("<x> <y>"), (Ids{257, ' ', 258}));
    EXPECT_TRUE(tokenizer->is_special(257));
    EXPECT_EQ(tokenizer->data().added.size(), 2u);
}

// \w: letters, marks, decimal digits, connectors; not other numbers.
TEST(AddedPieces, WordsAreThoseOfRegularExpressions) {
    for (const char32_t c : {U'a', U'Z', U'0', U'_', U'é', U'\u0301', U'\u203F', U'\u2167',
                             U'\u24D0', U'\u200D', U'\u0663', U'\U0001F130', U'\U000E0100'}) {
        EXPECT_TRUE(is_word(c)) << static_cast<std::uint32_t>(c);
    }
    for (const char32_t c : {U' ', U'-', U'²', U'½', U'\u2460', U'\u2581', U'\u00A0', U'\U0001F600',
                             U'\U0010FFFF', kBadByte}) {
        EXPECT_FALSE(is_word(c)) << static_cast<std::uint32_t>(c);
    }
}

}  // namespace added_pieces_test
}  // namespace mr::text
