// Writes a vocabulary as Hugging Face's tokenizer.json and tokenizer_config.json.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>

#include "formats/bytes.h"
#include "model/io/convert_formats.h"

namespace mr::model {
namespace {

using nlohmann::json;
using text::SpacePrefix;
using text::TokenizerData;
using text::TokenizerModel;
using text::TokenType;

constexpr const char* kMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

// The published regular expressions of Llama-3 and Qwen2, which differ in how many digits make a
// word.
constexpr const char* kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Regex = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                                    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json added_tokens(const TokenizerData& data) {
    json out = json::array();
    for (const text::AddedToken& token : data.added) {
        out.push_back({{"id", token.id},
                       {"content", token.text},
                       {"single_word", token.single_word},
                       {"lstrip", token.lstrip},
                       {"rstrip", token.rstrip},
                       {"normalized", token.normalized},
                       {"special", token.special}});
    }
    return out;
}

json replace(const char* pattern, const char* content) {
    return {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
}

void add_byte_level(json& root, const TokenizerData& data) {
    root["normalizer"] = nullptr;
    if (data.nfc) root["normalizer"] = {{"type", "NFC"}};
    const bool own_regex = data.pre != "llama-bpe" && data.pre != "qwen2";
    const json bytes = {{"type", "ByteLevel"},
                        {"add_prefix_space", data.space_prefix != SpacePrefix::never},
                        {"trim_offsets", true},
                        {"use_regex", own_regex}};
    if (own_regex) {
        root["pre_tokenizer"] = bytes;
    } else {
        const char* regex = data.pre == "qwen2" ? kQwen2Regex : kLlama3Regex;
        root["pre_tokenizer"] = {{"type", "Sequence"},
                                 {"pretokenizers",
                                  {{{"type", "Split"},
                                    {"pattern", {{"Regex", regex}}},
                                    {"behavior", "Isolated"},
                                    {"invert", false}},
                                   bytes}}};
    }
    root["decoder"] = bytes;
}

void add_sentencepiece(json& root, const TokenizerData& data) {
    json normalizers = json::array();
    if (data.nfc) normalizers.push_back({{"type", "NFC"}});
    root["pre_tokenizer"] = nullptr;
    const bool metaspace =
        data.split_spaces || data.prefix_if_missing || data.space_prefix == SpacePrefix::first;
    if (metaspace) {
        root["pre_tokenizer"] = {
            {"type", "Metaspace"},
            {"replacement", kMark},
            {"prepend_scheme", data.space_prefix == SpacePrefix::first    ? "first"
                               : data.space_prefix == SpacePrefix::always ? "always"
                                                                          : "never"},
            {"split", data.split_spaces}};
    } else {
        if (data.space_prefix != SpacePrefix::never) {
            normalizers.push_back({{"type", "Prepend"}, {"prepend", kMark}});
        }
        normalizers.push_back(replace(" ", kMark));
    }
    root["normalizer"] = nullptr;
    if (!normalizers.empty()) {
        root["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    }
    json decoders = {replace(kMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    if (data.space_prefix != SpacePrefix::never) {
        decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    root["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
}

json template_entry(const char* kind, const std::string& id) {
    return {{kind, {{"id", id}, {"type_id", 0}}}};
}

void add_post_processor(json& root, const TokenizerData& data) {
    root["post_processor"] = nullptr;
    if (data.prefix.empty() && data.suffix.empty()) return;
    json single = json::array(), specials = json::object();
    const auto add = [&](const std::vector<std::int32_t>& ids) {
        for (std::int32_t id : ids) {
            const std::string& token = data.tokens[static_cast<std::size_t>(id)];
            single.push_back(template_entry("SpecialToken", token));
            specials[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
        }
    };
    add(data.prefix);
    single.push_back(template_entry("Sequence", "A"));
    add(data.suffix);
    json pair = single;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    root["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", std::move(single)},
                              {"pair", std::move(pair)},
                              {"special_tokens", std::move(specials)}};
}

// SentencePiece merges any two pieces whose joined text is a token, best score first. As merges:
// every split of every token into two, in the order of the scores.
json merges_of_scores(const TokenizerData& data,
                      const std::map<std::string_view, std::int32_t>& ids) {
    std::vector<std::tuple<float, std::int32_t, std::int32_t>> cuts;  // -score, left, right
    for (std::size_t i = 0; i < data.tokens.size(); ++i) {
        if (data.types[i] != TokenType::normal) continue;
        const std::string_view token = data.tokens[i];
        for (std::size_t cut = 1; cut < token.size(); ++cut) {
            const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
            if (left == ids.end() || right == ids.end()) continue;
            cuts.emplace_back(-data.scores[i], left->second, right->second);
        }
    }
    std::sort(cuts.begin(), cuts.end());
    json out = json::array();
    for (const auto& [score, left, right] : cuts) {
        out.push_back({data.tokens[static_cast<std::size_t>(left)],
                       data.tokens[static_cast<std::size_t>(right)]});
    }
    return out;
}

}  // namespace

std::optional<TokenizerFiles> huggingface_tokenizer(const TokenizerData& data,
                                                    const std::string& family) {
    if (data.model == TokenizerModel::bytes) return std::nullopt;
    std::map<std::string_view, std::int32_t> ids, mergeable;
    json vocab = json::object();
    for (std::size_t i = 0; i < data.tokens.size(); ++i) {
        const std::string& token = data.tokens[i];
        const auto id = static_cast<std::int32_t>(i);
        // JSON holds each text once, and only valid UTF-8.
        if (!formats::is_utf8(token) || !ids.emplace(token, id).second) return std::nullopt;
        if (data.types[i] == TokenType::normal) mergeable.emplace(token, id);
        vocab[token] = id;
    }
    const bool byte_level = data.model == TokenizerModel::byte_level_bpe;
    json root;
    root["version"] = "1.0";
    root["truncation"] = nullptr;
    root["padding"] = nullptr;
    root["added_tokens"] = added_tokens(data);
    if (byte_level) {
        add_byte_level(root, data);
    } else {
        add_sentencepiece(root, data);
    }
    add_post_processor(root, data);
    json model;
    model["type"] = "BPE";
    model["dropout"] = nullptr;
    model["unk_token"] = nullptr;
    if (!byte_level && data.unk) {
        model["unk_token"] = data.tokens[static_cast<std::size_t>(*data.unk)];
    }
    model["continuing_subword_prefix"] = nullptr;
    model["end_of_word_suffix"] = nullptr;
    model["fuse_unk"] = data.fuse_unk;
    model["byte_fallback"] = !byte_level;
    model["ignore_merges"] = data.ignore_merges;
    model["vocab"] = std::move(vocab);
    if (data.merges.empty() && !byte_level) {
        model["merges"] = merges_of_scores(data, mergeable);
    } else {
        json merges = json::array();
        for (const text::Merge& merge : data.merges) {
            merges.push_back({data.tokens[static_cast<std::size_t>(merge.left)],
                              data.tokens[static_cast<std::size_t>(merge.right)]});
        }
        model["merges"] = std::move(merges);
    }
    root["model"] = std::move(model);

    json config;
    // transformers 5 reads every Qwen2 model's tokenizer with Qwen's normalizer and words,
    // regardless of tokenizer.json, unless this class is named: byte-level ones are then read as
    // they are.
    const bool as_qwen = data.pre == "qwen2" && data.nfc;
    config["tokenizer_class"] = family == "qwen2" && byte_level && !as_qwen
                                    ? "LlamaTokenizerFast"
                                    : "PreTrainedTokenizerFast";
    const auto name = [&](const char* key, std::optional<std::int32_t> id) {
        if (id) config[key] = data.tokens[static_cast<std::size_t>(*id)];
    };
    name("bos_token", data.bos);
    name("eos_token", data.eos);
    name("unk_token", data.unk);
    name("pad_token", data.pad);
    config["add_bos_token"] = data.add_bos();
    config["add_eos_token"] = data.add_eos();
    if (!data.tool_template.empty()) {
        config["chat_template"] =
            json::array({{{"name", "default"}, {"template", data.chat_template}},
                         {{"name", "tool_use"}, {"template", data.tool_template}}});
    } else if (!data.chat_template.empty()) {
        config["chat_template"] = data.chat_template;
    }
    return TokenizerFiles{root.dump(1) + "\n", config.dump(2) + "\n"};
}

}  // namespace mr::model
