#include "serve/format_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/bytes.h"

namespace mr::serve {

// A token's text, as in `tokens` and as a key of `top_logprobs`. As OpenAI does, bytes that are not
// text on their own are written as "bytes:\xe2\x80".
std::string CompletionLogprobs::token_text(std::int32_t id) const {
    std::string piece = tokenizer_.piece(id);
    if (formats::is_utf8(piece)) return piece;
    std::string out = "bytes:";
    for (const char c : piece) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return out;
}

// The most probable tokens, and the drawn one wherever it ranks. Of several tokens with the same
// text, the drawn one counts, else the most probable.
void CompletionLogprobs::add_top(formats::JsonWriter& json, const TokenInfo& token) const {
    std::vector<std::string> names = {token_text(token.id)};
    bool drawn = false;
    json.begin_object();
    for (const decode::TokenLogprob& other : token.logprobs.top) {
        std::string name = token_text(other.id);
        if (name == names[0]) {
            if (!std::exchange(drawn, true)) json.member(name, token.logprobs.logprob);
        } else if (std::find(names.begin(), names.end(), name) == names.end()) {
            json.member(name, other.logprob);
            names.push_back(std::move(name));
        }
    }
    if (!drawn) json.member(names[0], token.logprobs.logprob);
    json.end_object();
}

std::string CompletionLogprobs::json(std::span<const TokenInfo> list, std::size_t offset) const {
    formats::JsonWriter tokens, values, tops, offsets;
    tokens.begin_array();
    values.begin_array();
    tops.begin_array();
    offsets.begin_array();
    for (const TokenInfo& token : list) {
        tokens.value(token_text(token.id));
        values.value(token.logprobs.logprob);
        add_top(tops, token);
        offsets.value(offset);
        offset += tokenizer_.piece(token.id).size();
    }
    formats::JsonWriter json;
    json.begin_object().key("tokens").raw(tokens.end_array().text());
    json.key("token_logprobs").raw(values.end_array().text());
    json.key("top_logprobs").raw(tops.end_array().text());
    json.key("text_offset").raw(offsets.end_array().text());
    return json.end_object().take();
}

}  // namespace mr::serve
