#include "decode/prompt.h"

#include "core/error.h"
#include "text/tokenizer.h"

namespace mr::decode {

const text::Tokenizer& require_tokenizer(const model::Model& model) {
    if (model.tokenizer) return *model.tokenizer;
    throw Error::input({.file = model.source,
                        .problem = "the model has no tokenizer",
                        .remedy = "give one with --tokenizer"});
}

std::vector<std::int32_t> encode_prompt(const model::Model& model, std::string_view text) {
    const text::Tokenizer& tokenizer = require_tokenizer(model);
    std::vector<std::int32_t> ids = tokenizer.encode(text);
    if (!ids.empty()) return ids;
    if (tokenizer.bos()) return {*tokenizer.bos()};
    if (tokenizer.eos()) return {*tokenizer.eos()};
    throw Error::input({.file = model.source,
                        .field = "prompt",
                        .problem = "it is empty, and the tokenizer has no token to begin from",
                        .remedy = "give a prompt with -p"});
}

bool begins_text(const text::Tokenizer& tokenizer, std::span<const std::int32_t> prompt) {
    return prompt.size() == 1 && tokenizer.bos() == prompt[0];
}

}  // namespace mr::decode
