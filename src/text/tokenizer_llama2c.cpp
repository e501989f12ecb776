// llama2.c's tokenizer.bin: int32 length of the longest token, then for each token f32 score, int32
// length, bytes. Little-endian, like every machine that Millrace builds on.
#include <fmt/format.h>

#include <cstring>

#include "core/error.h"
#include "core/mapped_file.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_impl.h"

namespace mr::text {
namespace {

// SentencePiece's form of a token; llama2.c's exporter replaced U+2581 by spaces and put line ends
// around the two control tokens.
std::string to_piece(std::string_view bytes) {
    if (bytes == "\n<s>\n") return "<s>";
    if (bytes == "\n</s>\n") return "</s>";
    std::string out;
    for (char c : bytes) {
        if (c == ' ') {
            out += kSpaceMark;
        } else {
            out += c;
        }
    }
    return out;
}

}  // namespace

Tokenizer::Ptr Tokenizer::from_llama2c(const std::string& path, std::int32_t vocab_size) {
    const MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    std::size_t pos = 0;
    TokenizerData data;
    const auto fail = [&](std::string value, std::string problem) {
        return Error::input(
            {.file = path,
             .field = fmt::format("token {} at byte {}", data.tokens.size(), pos),
             .value = std::move(value),
             .problem = std::move(problem),
             .remedy = "is it a llama2.c tokenizer.bin, with the model's vocabulary?"});
    };
    const auto read = [&](auto& value) {
        if (bytes.size() - pos < sizeof value) throw fail("", "the file ends here");
        std::memcpy(&value, bytes.data() + pos, sizeof value);
        pos += sizeof value;
    };
    std::int32_t longest = 0;
    read(longest);
    data.name = path;
    data.model = TokenizerModel::sentencepiece_bpe;
    while (vocab_size > 0 ? data.tokens.size() < static_cast<std::size_t>(vocab_size)
                          : pos < bytes.size()) {
        float score = 0;
        std::int32_t length = 0;
        read(score);
        read(length);
        if (length < 0 || static_cast<std::size_t>(length) > bytes.size() - pos) {
            throw fail(std::to_string(length), "is not a length that the file has room for");
        }
        const std::string_view raw(reinterpret_cast<const char*>(bytes.data()) + pos,
                                   static_cast<std::size_t>(length));
        data.tokens.push_back(to_piece(raw));
        data.scores.push_back(score);
        data.types.push_back(byte_of_name(raw) >= 0 ? TokenType::byte : TokenType::normal);
        pos += static_cast<std::size_t>(length);
    }
    // The ids are the same in every file of this format.
    if (data.tokens.size() < 3) {
        throw fail(std::to_string(data.tokens.size()), "are fewer tokens than <unk>, <s> and </s>");
    }
    data.unk = 0;
    data.bos = 1;
    data.eos = 2;
    data.types[0] = TokenType::unknown;
    data.types[1] = data.types[2] = TokenType::control;
    for (std::int32_t id : {0, 1, 2}) {
        data.added.push_back(
            {.id = id, .text = data.tokens[static_cast<std::size_t>(id)], .special = true});
    }
    data.prefix = {1};
    data.space_prefix = SpacePrefix::always;
    return from_data(std::move(data));
}

}  // namespace mr::text
