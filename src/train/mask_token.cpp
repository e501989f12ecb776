#include "train/mask_token.h"

#include <utility>

#include "text/tokenizer_json_writer.h"

namespace mr::train {

MaskToken mask_token(std::shared_ptr<const text::Tokenizer> tokenizer, const std::string& json) {
    for (const char* name : {"<|mask|>", "<|MASK|>", "[MASK]", "<mask>"}) {
        // Some ordinary pieces of a tokenizer may be spelled like that; a mask token is special.
        const std::optional<std::int32_t> id = tokenizer->find(name);
        if (id && tokenizer->is_special(*id)) return {*id, std::move(tokenizer), json};
    }
    text::AddedToken added;
    added.id = tokenizer->vocab_size();
    added.text = "<|mask|>";
    added.special = true;
    text::TokenizerData data = tokenizer->data();
    const std::string text = text::with_added_token(json, data, added);
    data.tokens.push_back(added.text);
    data.types.push_back(text::TokenType::control);
    if (!data.scores.empty()) data.scores.push_back(0);
    data.added.push_back(added);
    return {added.id, text::Tokenizer::from_data(std::move(data)), text};
}

}  // namespace mr::train
