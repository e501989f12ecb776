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
    bool add_special = true;    // BOS and the like, where the file asks for them
    bool parse_special = true;  // special tokens written out in the text become their ids
    // Where they do not, all the same: what strangers wrote. In order, without overlap.
    std::span<const LiteralRange> literal{};
    // The text goes on behind this token, and no space is put before it that is put before a first
    // text; -1: it is the first. Without add_special.
    std::int32_t after = -1;
};

// Immutable once made; any number of threads may use one. The makers throw mr::Error naming the
// file and the field.
class Tokenizer {
  public:
    using Ptr = std::shared_ptr<const Tokenizer>;

    // A Hugging Face tokenizer.json; tokenizer_config.json and chat_template.jinja are taken from
    // beside it unless `config` names the former.
    static Ptr from_json_file(const std::string& path, const std::string& config = {});
    static Ptr from_json(std::string_view json, const std::string& name,
                         std::string_view config = {});
    static Ptr from_gguf(const formats::GgufFile& file);
    // llama2.c's tokenizer.bin. vocab_size 0: as many as the file holds.
    static Ptr from_llama2c(const std::string& path, std::int32_t vocab_size = 0);
    // For models without a tokenizer: id i is the byte i, and ids past 255 print as <i>.
    static Ptr bytes(std::int32_t vocab_size);
    static Ptr from_data(TokenizerData data);

    ~Tokenizer();

    // Any bytes are allowed. Bytes that are not UTF-8 are kept wherever the vocabulary has byte
    // tokens; what it cannot say becomes U+FFFD or `unk`, or is left out where there is neither.
    std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;
    // A place to cut `text` in two such that encode() of the parts, without add_special, gives the
    // ids of the whole: the last one at or before `near`, if it is not far; 0 where there is none.
    // So parts of a long text can be encoded side by side (byte-level BPE; others give 0).
    std::size_t cut_before(std::string_view text, std::size_t near) const;
    // The bytes that `ids` print. decode(encode(x), true) == x where the vocabulary has byte tokens
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
    // EOS, or one of the marks with which chat models end a turn (<|im_end|>, <|eot_id|>, ...).
    bool is_end_of_generation(std::int32_t id) const;
    // By the token's form in the file or, failing that, by the bytes it prints.
    std::optional<std::int32_t> find(std::string_view piece) const;

    std::string kind() const;  // "byte-level BPE (qwen2)", "SentencePiece BPE", "bytes"
    const std::string& chat_template() const { return data().chat_template; }
    const TokenizerData& data() const;

    struct Impl;  // in text/tokenizer_impl.h; nothing for callers

  private:
    friend class StreamDecoder;
    explicit Tokenizer(TokenizerData data);

    // Appends what `id` prints. `at_start` says whether the space that encode() puts before a text
    // would be in front of this token; updated.
    void append_piece(std::int32_t id, bool skip_special, bool& at_start, std::string& out) const;

    std::unique_ptr<const Impl> impl_;
};

struct StreamOptions {
    bool skip_special = true;
    bool at_start = false;  // true where the first id begins a text instead of going on with one
};

// Turns ids into text as they come, never splitting a UTF-8 character. Bytes that can no longer
// become one print as U+FFFD.
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
