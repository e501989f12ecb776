// The `logprobs` of /v1/completions.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "formats/json_writer.h"
#include "serve/answer.h"

namespace mr::serve {

class CompletionLogprobs {
  public:
    // The tokenizer must outlive the object.
    explicit CompletionLogprobs(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    // `offset`: bytes of the text before the tokens.
    std::string json(std::span<const TokenInfo> tokens, std::size_t offset) const;

  private:
    std::string token_text(std::int32_t id) const;
    void add_top(formats::JsonWriter& json, const TokenInfo& token) const;

    const text::Tokenizer& tokenizer_;
};

}  // namespace mr::serve
