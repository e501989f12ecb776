// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_data.h"

namespace mr::formats {
class GgufFile;
}

namespace mr::text {

// Bytes [begin, end) of a text.
struct LiteralRange {
    std::size_t begin, end;
};

struct EncodeOptions {
    bool add_special = true;    // add BOS and the like, if the file asks for it
    bool parse_special = true;  // special tokens spelled out in the text become their ids
    // Ranges of untrusted text, where special tokens stay text. In order, without overlap.
    std::span<const LiteralRange> literal{};
    // The text follows this token, so no space is put before it as before a first text; -1: the
    // text is the first. Only without add_special.
    std::int32_t after = -1;
};

// Immutable; may be used by any number of threads. The factories throw mr::Error naming the file
// and the field.
class Tokenizer {
  public:
    using Ptr = std::shared_ptr<const Tokenizer>;

    // A Hugging Face tokenizer.json; tokenizer_config.json and chat_template.jinja are read from
    // the same folder, unless `config` names the former.
    static Ptr from_json_file(const std::string& path, const std::string& config = {});
    static Ptr from_json(std::string_view json, const std::string& name,
                         std::string_view config = {});
    static Ptr from_gguf(const formats::GgufFile& file);
    // llama2.c's tokenizer.bin. vocab_size 0: all tokens in the file.
    static Ptr from_llama2c(const std::string& path, std::int32_t vocab_size = 0);
    // For models without a tokenizer: id i is the byte i, and ids past 255 print as <i>.
    static Ptr bytes(std::int32_t vocab_size);
    static Ptr from_data(TokenizerData data);

    ~Tokenizer();

    // Any bytes are allowed. Bytes that are not UTF-8 are kept if the vocabulary has byte tokens;
    // text it cannot represent becomes U+FFFD or `unk`, or is dropped if there is neither.
    std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;
    // A place to cut `text` such that encoding the two parts without add_special gives the ids of
    // the whole: the last one at or before `near` within some distance; 0 if there is none. So
    // parts of a long text can be encoded in parallel (byte-level BPE only; others return 0).
    std::size_t cut_before(std::string_view text, std::size_t near) const;
    // The bytes that `ids` print. decode(encode(x), true) == x if the vocabulary has byte tokens
    // and the file asks for no normalization; U+2581 is a space to SentencePiece. Ids outside the
    // vocabulary print nothing.
    std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
    std::string piece(std::int32_t id) const;    // the bytes this token prints
    std::string display(std::int32_t id) const;  // one printable line of valid UTF-8

    std::int32_t vocab_size() const;
    std::optional<std::int32_t> bos() const { return data().bos; }
    std::optional<std::int32_t> eos() const { return data().eos; }
    std::optional<std::int32_t> unk() const { return data().unk; }
    std::optional<std::int32_t> pad() const { return data().pad; }
    bool is_special(std::int32_t id) const;
    // EOS, or one of the tokens with which chat models end a turn (<|im_end|>, <|eot_id|>, ...).
    bool is_end_of_generation(std::int32_t id) const;
    // Finds a token by its form in the file or, failing that, by the bytes it prints.
    std::optional<std::int32_t> find(std::string_view piece) const;

    std::string kind() const;  // "byte-level BPE (qwen2)", "SentencePiece BPE", "bytes"
    const std::string& chat_template() const { return data().chat_template; }
    const TokenizerData& data() const;

    struct Impl;  // in text/tokenizer_impl.h, for internal use

  private:
    friend class StreamDecoder;
    explicit Tokenizer(TokenizerData data);

    // Appends what `id` prints. `at_start`: whether a space that encode() puts before a text would
    // be in front of this token; updated.
    void append_piece(std::int32_t id, bool skip_special, bool& at_start, std::string& out) const;

    std::unique_ptr<const Impl> impl_;
};

struct StreamOptions {
    bool skip_special = true;
    bool at_start = false;  // the first id begins a text, rather than continuing one
};

// Decodes ids one by one without splitting a UTF-8 character. Bytes that cannot become a character
// print as U+FFFD.
class StreamDecoder {
  public:
    // The tokenizer must outlive the decoder.
    explicit StreamDecoder(const Tokenizer& tokenizer, StreamOptions options = {});
    std::string push(std::int32_t id);
    std::string flush();

  private:
    const Tokenizer& tokenizer_;
    StreamOptions options_;
    bool at_start_;
    std::string pending_;  // at most 3 bytes between calls
};

}  // namespace mr::text
