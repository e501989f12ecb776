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
    // With this many of the most probable tokens. `special`: the texts have special tokens. The
    // tokenizer must outlive the object.
    CompletionLogprobs(const text::Tokenizer& tokenizer, int most, bool special)
        : tokenizer_(tokenizer), most_(most), special_(special) {}

    // The next tokens of a choice, behind the `prompt` if it is not empty. `begins`: they begin a
    // text (decode::begins_text).
    std::string json(int choice, bool begins, std::span<const decode::PromptToken> prompt,
                     std::span<const TokenInfo> tokens);

  private:
    // The end of a choice's text so far.
    struct Place {
        text::StreamDecoder decoder;
        std::size_t characters = 0;
    };
    std::size_t offset_of(std::int32_t id, Place& place) const;
    std::string token_text(std::int32_t id) const;
    void add_top(formats::JsonWriter& json, std::int32_t id,
                 const decode::DrawnLogprobs& logprobs) const;

    const text::Tokenizer& tokenizer_;
    const int most_;
    const bool special_;
    std::map<int, Place> places_;  // by choice
};

// A prompt's log-probabilities as vLLM writes them, with `most` of the most probable tokens.
std::string prompt_logprobs_json(const text::Tokenizer& tokenizer,
                                 std::span<const decode::PromptToken> prompt, int most);

}  // namespace mr::serve
