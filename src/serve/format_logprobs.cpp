#include "serve/format_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/bytes.h"

namespace mr::serve {
namespace {

std::size_t characters_of(std::string_view utf8) {
    return static_cast<std::size_t>(
        std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

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

// The character of the text, as it is sent, at which the token begins. Tokens that make up one
// character together begin at the same place.
std::size_t CompletionLogprobs::offset_of(std::int32_t id, Place& place) const {
    const std::size_t before = place.characters;
    place.characters += characters_of(place.decoder.push(id));
    const std::string piece = tokenizer_.piece(id);
    if (!formats::is_utf8(piece)) return before;
    // Bytes before it that turn out to be no character are U+FFFD in the text.
    const std::size_t own = std::min(characters_of(piece), place.characters);
    return std::max(before, place.characters - own);
}

std::string CompletionLogprobs::json(int choice, bool begins, std::span<const TokenInfo> list) {
    const text::StreamOptions options{.at_start = begins};
    Place& place =
        places_.try_emplace(choice, Place{text::StreamDecoder(tokenizer_, options)}).first->second;
    formats::JsonWriter tokens, values, tops, offsets;
    tokens.begin_array();
    values.begin_array();
    tops.begin_array();
    offsets.begin_array();
    for (const TokenInfo& token : list) {
        tokens.value(token_text(token.id));
        values.value(token.logprobs.logprob);
        add_top(tops, token);
        offsets.value(offset_of(token.id, place));
    }
    formats::JsonWriter json;
    json.begin_object().key("tokens").raw(tokens.end_array().text());
    json.key("token_logprobs").raw(values.end_array().text());
    json.key("top_logprobs").raw(tops.end_array().text());
    json.key("text_offset").raw(offsets.end_array().text());
    return json.end_object().take();
}

}  // namespace mr::serve
