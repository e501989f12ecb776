#include "text/tokenizer_json_writer.h"

#include <fmt/format.h>

#include <optional>

#include "core/error.h"
#include "formats/json.h"
#include "text/pretokenize.h"
#include "text/unicode.h"

namespace mr::text {
namespace {

constexpr const char* kPostProcessor = "post_processor";

std::string quoted(const TokenizerData& data, const std::string& text) {
    if (replace_invalid(text) != text) {
        throw Error::input({.file = data.name,
                            .field = "token",
                            .value = replace_invalid(text),
                            .problem = "is not UTF-8 and cannot be written as JSON"});
    }
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
            out += c;
        }
    }
    return out + "\"";
}

const char* boolean(bool value) { return value ? "true" : "false"; }

std::string added_token(const TokenizerData& data, const AddedToken& token) {
    return fmt::format(
        "{{\"id\": {}, \"content\": {}, \"single_word\": {}, \"lstrip\": {}, "
        "\"rstrip\": {}, \"normalized\": {}, \"special\": {}}}",
        token.id, quoted(data, token.text), boolean(token.single_word), boolean(token.lstrip),
        boolean(token.rstrip), boolean(token.normalized), boolean(token.special));
}

std::string added_tokens(const TokenizerData& data) {
    std::string out;
    for (const AddedToken& token : data.added) {
        out += fmt::format("{}\n    {}", out.empty() ? "" : ",", added_token(data, token));
    }
    return out.empty() ? "[]" : "[" + out + "\n  ]";
}

std::string pre_tokenizer(const TokenizerData& data) {
    const auto byte_level = [](bool use_regex) {
        return fmt::format(
            "{{\"type\": \"ByteLevel\", \"add_prefix_space\": {}, \"trim_offsets\": true, "
            "\"use_regex\": {}}}",
            boolean(false), boolean(use_regex));
    };
    const auto kind = pre_tokenizer_of_name(data.pre);
    if (!kind) {
        throw Error::input({.file = data.name,
                            .field = "pre-tokenizer",
                            .value = data.pre,
                            .problem = "is not supported"});
    }
    if (*kind == PreTokenizer::gpt2) return byte_level(true);
    return fmt::format(
        "{{\"type\": \"Sequence\", \"pretokenizers\": [\n    {{\"type\": \"Split\", \"pattern\": "
        "{{\"Regex\": {}}}, \"behavior\": \"Isolated\", \"invert\": false}},\n    {}]}}",
        quoted(data, pre_tokenizer_regex(*kind)), byte_level(false));
}

// The tokens around a text: "single" has them; "pair" adds a second text without any.
std::string post_processor(const TokenizerData& data) {
    if (data.prefix.empty() && data.suffix.empty()) {
        return "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, "
               "\"use_regex\": true}";
    }
    const auto name = [&](std::int32_t id) {
        return quoted(data, data.tokens[static_cast<std::size_t>(id)]);
    };
    std::string pieces, specials, known;
    const auto special = [&](std::int32_t id) {
        pieces += fmt::format("{}{{\"SpecialToken\": {{\"id\": {}, \"type_id\": 0}}}}",
                              pieces.empty() ? "" : ", ", name(id));
        const std::string entry =
            fmt::format("{0}: {{\"id\": {0}, \"ids\": [{1}], \"tokens\": [{0}]}}", name(id), id);
        if (specials.find(entry) != std::string::npos) return;
        specials += (specials.empty() ? "" : ", ") + entry;
    };
    for (const std::int32_t id : data.prefix) special(id);
    pieces += fmt::format("{}{{\"Sequence\": {{\"id\": \"A\", \"type_id\": 0}}}}",
                          pieces.empty() ? "" : ", ");
    for (const std::int32_t id : data.suffix) special(id);
    return fmt::format(
        "{{\"type\": \"TemplateProcessing\",\n    \"single\": [{0}],\n    \"pair\": [{0}, "
        "{{\"Sequence\": {{\"id\": \"B\", \"type_id\": 1}}}}],\n    \"special_tokens\": {{{1}}}}}",
        pieces, specials);
}

}  // namespace

std::string tokenizer_json(const TokenizerData& data) {
    if (data.model != TokenizerModel::byte_level_bpe) {
        throw Error::input({.file = data.name,
                            .field = "tokenizer",
                            .problem = "only a byte-level one can be written as tokenizer.json",
                            .remedy = "give the model's own tokenizer.json"});
    }
    std::string vocab, merges;
    for (std::size_t i = 0; i < data.tokens.size(); ++i) {
        vocab +=
            fmt::format("{}\n      {}: {}", i == 0 ? "" : ",", quoted(data, data.tokens[i]), i);
    }
    for (const Merge& m : data.merges) {
        merges += fmt::format("{}\n      {}", merges.empty() ? "" : ",",
                              quoted(data, data.merge_text(m)));
    }
    return fmt::format(
        "{{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
        "  \"added_tokens\": {},\n  \"normalizer\": {},\n  \"pre_tokenizer\": {},\n"
        "  \"post_processor\": {},\n"
        "  \"decoder\": {{\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
        "\"trim_offsets\": true, \"use_regex\": true}},\n"
        "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": "
        "null,\n"
        "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
        "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": {},\n"
        "    \"vocab\": {{{}\n    }},\n    \"merges\": [{}\n    ]\n  }}\n}}\n",
        added_tokens(data), data.nfc ? "{\"type\": \"NFC\"}" : "null", pre_tokenizer(data),
        post_processor(data), boolean(data.ignore_merges), vocab, merges);
}

std::string with_tokens_around(std::string_view json, const TokenizerData& data) {
    const auto document = formats::JsonDocument::parse(json, data.name);
    std::string out;
    for (const auto& [key, value] : document.root().items_in_file_order()) {
        if (key == kPostProcessor) continue;
        out += fmt::format("{}: {},\n", formats::json_quoted(key), value.dump());
    }
    return fmt::format("{{{}\"{}\": {}}}\n", out, kPostProcessor, post_processor(data));
}

std::string with_added_token(std::string_view json, const TokenizerData& data,
                             const AddedToken& token) {
    constexpr std::string_view kAdded = "added_tokens";
    const auto document = formats::JsonDocument::parse(json, data.name);
    std::string out, added;
    for (const auto& [key, value] : document.root().items_in_file_order()) {
        if (key == kAdded && value.is_array()) {
            for (const formats::JsonValue each : value) added += each.dump() + ",\n    ";
        } else if (key != kAdded) {
            out += fmt::format(",\n{}: {}", formats::json_quoted(key), value.dump());
        }
    }
    return fmt::format("{{\"{}\": [{}{}]{}}}\n", kAdded, added, added_token(data, token), out);
}

std::string tokenizer_config_json(const TokenizerData& data) {
    const auto token = [&](const std::optional<std::int32_t>& id) {
        return id ? quoted(data, data.tokens[static_cast<std::size_t>(*id)]) : "null";
    };
    std::string chat;
    if (!data.tool_template.empty()) {
        chat = fmt::format(
            ",\n  \"chat_template\": [\n    {{\"name\": \"default\", \"template\": {}}},\n"
            "    {{\"name\": \"tool_use\", \"template\": {}}}\n  ]",
            quoted(data, data.chat_template), quoted(data, data.tool_template));
    } else if (!data.chat_template.empty()) {
        chat = fmt::format(",\n  \"chat_template\": {}", quoted(data, data.chat_template));
    }
    return fmt::format(
        "{{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": {},\n"
        "  \"eos_token\": {},\n  \"pad_token\": {},\n  \"clean_up_tokenization_spaces\": false,\n"
        "  \"model_max_length\": 1000000000{}\n}}\n",
        token(data.bos), token(data.eos), token(data.pad), chat);
}

}  // namespace mr::text
