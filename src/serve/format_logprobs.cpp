#include "serve/format_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/utf8.h"

namespace mr::serve {
namespace {

std::size_t characters_of(std::string_view utf8) {
    return static_cast<std::size_t>(
        std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// JSON has no infinity: a token that cannot come has what vLLM writes.
double shown_logprob(double logprob) { return std::max(logprob, -9999.0); }

std::span<const decode::TokenLogprob> first_of(const decode::DrawnLogprobs& logprobs, int most) {
    const std::span<const decode::TokenLogprob> all = logprobs.top;
    return all.first(std::min(all.size(), static_cast<std::size_t>(std::max(most, 0))));
}

}  // namespace

// A token's text, as in `tokens` and as a key of `top_logprobs`. As OpenAI does, bytes that are not
// text on their own are written as "bytes:\xe2\x80".
std::string CompletionLogprobs::token_text(std::int32_t id) const {
    std::string piece = tokenizer_.piece(id);
    if (!utf8_fault(piece)) return piece;
    std::string out = "bytes:";
    for (const char c : piece) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return out;
}

// The most probable tokens, and the drawn one wherever it ranks. Of several tokens with the same
// text, the drawn one counts, else the most probable.
void CompletionLogprobs::add_top(formats::JsonWriter& json, std::int32_t id,
                                 const decode::DrawnLogprobs& logprobs) const {
    std::vector<std::string> names = {token_text(id)};
    const double own = shown_logprob(logprobs.logprob);
    bool drawn = false;
    json.begin_object();
    for (const decode::TokenLogprob& other : first_of(logprobs, most_)) {
        std::string name = token_text(other.id);
        if (name == names[0]) {
            if (!std::exchange(drawn, true)) json.member(name, own);
        } else if (std::find(names.begin(), names.end(), name) == names.end()) {
            json.member(name, shown_logprob(other.logprob));
            names.push_back(std::move(name));
        }
    }
    if (!drawn) json.member(names[0], own);
    json.end_object();
}

// The character of the text, as it is sent, at which the token begins. Tokens that make up one
// character together begin at the same place.
std::size_t CompletionLogprobs::offset_of(std::int32_t id, Place& place) const {
    const std::size_t before = place.characters;
    place.characters += characters_of(place.decoder.push(id));
    const std::string piece = tokenizer_.piece(id);
    if (utf8_fault(piece)) return before;
    // Bytes before it that turn out to be no character are U+FFFD in the text.
    const std::size_t own = std::min(characters_of(piece), place.characters);
    return std::max(before, place.characters - own);
}

std::string CompletionLogprobs::json(int choice, bool begins,
                                     std::span<const decode::PromptToken> prompt,
                                     std::span<const TokenInfo> list) {
    const text::StreamOptions options{.skip_special = !special_, .at_start = begins};
    Place& place =
        places_.try_emplace(choice, Place{text::StreamDecoder(tokenizer_, options)}).first->second;
    formats::JsonWriter tokens, values, tops, offsets;
    tokens.begin_array();
    values.begin_array();
    tops.begin_array();
    offsets.begin_array();
    const auto add = [&](std::int32_t id, const decode::DrawnLogprobs& logprobs, Place& at) {
        tokens.value(token_text(id));
        values.value(shown_logprob(logprobs.logprob));
        add_top(tops, id, logprobs);
        offsets.value(offset_of(id, at));
    };
    if (!prompt.empty()) {
        Place at{text::StreamDecoder(tokenizer_, {.skip_special = !special_, .at_start = true})};
        tokens.value(token_text(prompt[0].id));  // nothing predicts it
        values.null();
        tops.null();
        offsets.value(offset_of(prompt[0].id, at));
        for (const decode::PromptToken& token : prompt.subspan(1)) {
            add(token.id, token.logprobs, at);
        }
        place.characters = at.characters + characters_of(at.decoder.flush());
    }
    for (const TokenInfo& token : list) add(token.id, token.logprobs, place);
    formats::JsonWriter json;
    json.begin_object().key("tokens").raw(tokens.end_array().text());
    json.key("token_logprobs").raw(values.end_array().text());
    json.key("top_logprobs").raw(tops.end_array().text());
    json.key("text_offset").raw(offsets.end_array().text());
    return json.end_object().take();
}

std::string prompt_logprobs_json(const text::Tokenizer& tokenizer,
                                 std::span<const decode::PromptToken> prompt, int most) {
    formats::JsonWriter json;
    json.begin_array();
    for (const decode::PromptToken& token : prompt) {
        if (token.rank == 0) {
            json.null();
            continue;
        }
        const auto add = [&](std::int32_t id, double logprob, std::int64_t rank) {
            json.key(std::to_string(id)).begin_object();
            json.member("logprob", shown_logprob(logprob)).member("rank", rank);
            json.member("decoded_token", tokenizer.piece(id)).end_object();
        };
        json.begin_object();
        add(token.id, token.logprobs.logprob, token.rank);
        std::int64_t rank = 0;
        for (const decode::TokenLogprob& other : first_of(token.logprobs, most)) {
            ++rank;
            if (other.id != token.id) add(other.id, other.logprob, rank);
        }
        json.end_object();
    }
    return json.end_array().take();
}

}  // namespace mr::serve
