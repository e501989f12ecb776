// The `logprobs` of /v1/completions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "formats/json_writer.h"
#include "serve/answer.h"

namespace mr::serve {

class CompletionLogprobs {
  public:
    // The tokenizer must outlive the object.
    explicit CompletionLogprobs(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    // The next tokens of a choice. `begins`: it begins a text (decode::begins_text).
    std::string json(int choice, bool begins, std::span<const TokenInfo> tokens);

  private:
    // The end of a choice's text so far.
    struct Place {
        text::StreamDecoder decoder;
        std::size_t characters = 0;
    };
    std::size_t offset_of(std::int32_t id, Place& place) const;
    std::string token_text(std::int32_t id) const;
    void add_top(formats::JsonWriter& json, const TokenInfo& token) const;

    const text::Tokenizer& tokenizer_;
    std::map<int, Place> places_;  // by choice
};

}  // namespace mr::serve
