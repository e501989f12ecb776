// The data of a tokenizer: the common result of all file formats, and what is stored in a GGUF.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mr::text {

enum class TokenizerModel {
    byte_level_bpe,     // GPT-2 and its family: `merges` over bytes as printable characters
    sentencepiece_bpe,  // Llama-2, Mistral: `scores` or `merges` over characters, spaces as U+2581
    bytes,              // no vocabulary: id i < 256 is the byte i
};

// With the numbers of GGUF's `tokenizer.ggml.token_type`.
enum class TokenType : std::int32_t {
    normal = 1,
    unknown = 2,
    control = 3,       // a marker for the model, never text
    user_defined = 4,  // found in the text before any merging
    unused = 5,
    byte = 6,
};

// Found in the text before it is cut into words. lstrip and rstrip swallow white space beside it.
struct AddedToken {
    std::int32_t id = 0;
    std::string text{};
    bool special = false;
    bool lstrip = false;
    bool rstrip = false;
    bool single_word = false;
    bool normalized = false;  // searched for after normalization, not before
    // Also a piece of the model's vocabulary: characters and merges make it where the added token
    // itself is not found (`°` is the name of a byte, too). It prints as a piece.
    bool piece = false;
};

// Where SentencePiece models insert a space before the text.
enum class SpacePrefix {
    never,
    first,   // at the very start
    always,  // at the start, and after every added token
};

struct Merge {
    std::int32_t left, right;  // token ids; the index in the list is the rank
};

struct TokenizerData;
// By id: whether a token's form says that text can become it without it being looked for: the name
// of one byte or one character; with `merges` also what a merge makes.
std::vector<bool> made_by_text(const TokenizerData& data, bool merges);

struct TokenizerData {
    std::string name{};  // file name, for errors
    TokenizerModel model = TokenizerModel::bytes;
    // "gpt-2", "llama-bpe" or "qwen2" (GGUF's `tokenizer.ggml.pre`); "default" for no words.
    std::string pre = "default";

    // By id, as a GGUF holds them: byte-level pieces in GPT-2's printable form, SentencePiece
    // pieces with U+2581 for the space and <0xNN> for bytes, added tokens as they are.
    std::vector<std::string> tokens{};
    std::vector<TokenType> types{};
    std::vector<float> scores{};  // SentencePiece only; higher scores merge first
    std::vector<Merge> merges{};  // byte-level, and SentencePiece from tokenizer.json
    std::vector<AddedToken> added{};

    std::optional<std::int32_t> bos{}, eos{}, unk{}, pad{};
    std::optional<std::int32_t> end_of_turn{};     // ends a generation like `eos`
    std::vector<std::int32_t> prefix{}, suffix{};  // ids that encode() puts around a text

    bool nfc = false;            // normalize to NFC first
    bool fuse_unk = true;        // a run of unknown characters is one `unk`
    bool ignore_merges = false;  // a word that is a token stays whole, regardless of merges
    SpacePrefix space_prefix = SpacePrefix::never;
    bool prefix_if_missing = false;  // only if the text does not begin with a space
    bool split_spaces = false;       // no merge crosses a space (Metaspace with "split")
    std::string chat_template{};
    std::string template_file{};  // file of the templates; empty: `name`
    std::string tool_template{};  // if the file has another one for conversations with tools

    // Spaces become U+2581 before normalized added tokens are looked for, rather than by Metaspace.
    // A normalizer, not a pre-tokenizer, puts the space before a text: before added tokens that are
    // normalized are looked for.
    bool prepends() const { return normalizes_spaces() && space_prefix == SpacePrefix::always; }
    bool normalizes_spaces() const {
        return model == TokenizerModel::sentencepiece_bpe && !prefix_if_missing && !split_spaces &&
               space_prefix != SpacePrefix::first;
    }
    bool add_bos() const { return bos && !prefix.empty() && prefix.front() == *bos; }
    bool add_eos() const { return eos && !suffix.empty() && suffix.back() == *eos; }
    std::string gguf_model() const {
        return model == TokenizerModel::byte_level_bpe ? "gpt2" : "llama";
    }
    std::string merge_text(const Merge& m) const {
        return tokens[static_cast<std::size_t>(m.left)] + " " +
               tokens[static_cast<std::size_t>(m.right)];
    }
};

}  // namespace mr::text
