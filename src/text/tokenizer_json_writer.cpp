// Writes a vocabulary as Hugging Face's tokenizer.json and tokenizer_config.json.
#include "text/tokenizer_json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "core/utf8.h"
#include "formats/json.h"
#include "text/pretokenize.h"
#include "text/tokenizer_impl.h"

namespace mr::text {
namespace {

using nlohmann::json;

constexpr const char* kPostProcessor = "post_processor";

json added_token(const AddedToken& token) {
    return {{"id", token.id},          {"content", token.text},  {"single_word", token.single_word},
            {"lstrip", token.lstrip},  {"rstrip", token.rstrip}, {"normalized", token.normalized},
            {"special", token.special}};
}

json replace(std::string_view pattern, std::string_view content) {
    return {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
}

void add_byte_level(json& root, const TokenizerData& data, PreTokenizer kind) {
    root["normalizer"] = nullptr;
    if (data.nfc) root["normalizer"] = {{"type", "NFC"}};
    const bool own_regex = kind == PreTokenizer::gpt2;
    const json bytes = {{"type", "ByteLevel"},
                        {"add_prefix_space", data.space_prefix != SpacePrefix::never},
                        {"trim_offsets", true},
                        {"use_regex", own_regex}};
    if (own_regex) {
        root["pre_tokenizer"] = bytes;
    } else {
        root["pre_tokenizer"] = {{"type", "Sequence"},
                                 {"pretokenizers",
                                  {{{"type", "Split"},
                                    {"pattern", {{"Regex", pre_tokenizer_regex(kind)}}},
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
    if (!data.normalizes_spaces()) {
        root["pre_tokenizer"] = {
            {"type", "Metaspace"},
            {"replacement", kSpaceMark},
            {"prepend_scheme", data.space_prefix == SpacePrefix::first    ? "first"
                               : data.space_prefix == SpacePrefix::always ? "always"
                                                                          : "never"},
            {"split", data.split_spaces}};
    } else {
        if (data.space_prefix != SpacePrefix::never) {
            normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
        }
        normalizers.push_back(replace(" ", kSpaceMark));
    }
    root["normalizer"] = nullptr;
    if (!normalizers.empty()) {
        root["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    }
    json decoders = {replace(kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    if (data.space_prefix != SpacePrefix::never) {
        decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    root["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
}

json template_entry(const char* kind, const std::string& id) {
    return {{kind, {{"id", id}, {"type_id", 0}}}};
}

// The tokens around a text: "single" has them; "pair" adds a second text without any.
json post_processor(const TokenizerData& data) {
    if (data.prefix.empty() && data.suffix.empty()) return nullptr;
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
    return {{"type", "TemplateProcessing"},
            {"single", std::move(single)},
            {"pair", std::move(pair)},
            {"special_tokens", std::move(specials)}};
}

// SentencePiece merges any two pieces whose joined text is a token, best score first. As merges:
// every split of every token into two, in the order of the scores.
std::vector<Merge> merges_of_scores(const TokenizerData& data,
                                    const std::map<std::string_view, std::int32_t>& ids) {
    std::vector<std::tuple<float, std::int32_t, std::int32_t>> cuts;  // -score, left, right
    for (std::size_t i = 0; i < data.tokens.size(); ++i) {
        if (!ids.contains(data.tokens[i])) continue;
        const std::string_view token = data.tokens[i];
        for (std::size_t cut = 1; cut < token.size(); ++cut) {
            const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
            if (left == ids.end() || right == ids.end()) continue;
            cuts.emplace_back(-data.scores[i], left->second, right->second);
        }
    }
    std::sort(cuts.begin(), cuts.end());
    std::vector<Merge> out;
    out.reserve(cuts.size());
    for (const auto& [score, left, right] : cuts) out.push_back({left, right});
    return out;
}

// How many tokens are in the model's vocabulary: the added tokens behind it, if text does not
// become them, are left to the list of added tokens, where Hugging Face's library numbers them the
// same. Nothing if text would become an added token that lies among the others and is no piece.
std::optional<std::size_t> vocabulary_size(const TokenizerData& data) {
    std::vector<const AddedToken*> added(data.tokens.size());
    for (const AddedToken& token : data.added) {
        added[static_cast<std::size_t>(token.id)] = &token;
    }
    const std::vector<bool> named = made_by_text(data, false), made = made_by_text(data, true);
    std::vector<bool> merges(data.tokens.size());  // those that merges take or make
    for (std::size_t i = 0; i < merges.size(); ++i) merges[i] = made[i] && !named[i];
    for (const Merge& m : data.merges) {
        merges[static_cast<std::size_t>(m.left)] = merges[static_cast<std::size_t>(m.right)] = true;
    }
    std::size_t size = data.tokens.size();
    const auto only_added = [&](std::size_t i) {
        return added[i] && !added[i]->piece && !merges[i] && data.types[i] != TokenType::byte &&
               data.tokens[i] == added[i]->text && data.unk != static_cast<std::int32_t>(i);
    };
    while (size > 0 && only_added(size - 1)) --size;
    // Their order in the file numbers them.
    std::size_t next = size;
    for (const AddedToken& token : data.added) {
        const auto i = static_cast<std::size_t>(token.id);
        if (i < size) continue;
        if (i != next++) return std::nullopt;
    }
    for (std::size_t i = 0; i < size; ++i) {
        if (only_added(i) && named[i]) return std::nullopt;
    }
    return size;
}

// As "left right", which every version of Hugging Face's library reads, or as pairs if such a text
// would be ambiguous.
json merge_list(const TokenizerData& data, const std::vector<Merge>& merges) {
    const auto token = [&](std::int32_t id) -> const std::string& {
        return data.tokens[static_cast<std::size_t>(id)];
    };
    const bool pairs = std::any_of(merges.begin(), merges.end(), [&](const Merge& m) {
        return token(m.left).find(' ') != std::string::npos ||
               token(m.right).find(' ') != std::string::npos ||
               token(m.left).starts_with("#version");  // readers skip such a line
    });
    json out = json::array();
    for (const Merge& m : merges) {
        if (pairs) {
            out.push_back({token(m.left), token(m.right)});
        } else {
            out.push_back(data.merge_text(m));
        }
    }
    return out;
}

// tokenizer.json can put a space before every section of a text that has none, or before none.
bool has_space_prefix_of_byte_level(const TokenizerData& data) {
    return data.space_prefix == SpacePrefix::never ||
           (data.space_prefix == SpacePrefix::always && data.prefix_if_missing);
}

}  // namespace

std::optional<TokenizerFiles> huggingface_tokenizer(const TokenizerData& data,
                                                    std::string_view family) {
    if (data.model == TokenizerModel::bytes) return std::nullopt;
    const bool byte_level = data.model == TokenizerModel::byte_level_bpe;
    const auto pre = pre_tokenizer_of_name(data.pre);
    if (byte_level && (!pre || !has_space_prefix_of_byte_level(data))) return std::nullopt;
    const auto size = vocabulary_size(data);
    if (!size) return std::nullopt;
    std::vector<bool> pieces(data.tokens.size());
    for (const AddedToken& token : data.added) {
        pieces[static_cast<std::size_t>(token.id)] = token.piece;
    }
    std::map<std::string_view, std::int32_t> ids, mergeable;
    json vocab = json::object();
    for (std::size_t i = 0; i < data.tokens.size(); ++i) {
        const std::string& token = data.tokens[i];
        const auto id = static_cast<std::int32_t>(i);
        // JSON holds each text once, and only valid UTF-8.
        if (utf8_fault(token) || !ids.emplace(token, id).second) return std::nullopt;
        if (data.types[i] == TokenType::normal || pieces[i]) mergeable.emplace(token, id);
        if (i < *size) vocab[token] = id;
    }
    json root;
    root["version"] = "1.0";
    root["truncation"] = nullptr;
    root["padding"] = nullptr;
    root["added_tokens"] = json::array();
    for (const AddedToken& token : data.added) root["added_tokens"].push_back(added_token(token));
    if (byte_level) {
        add_byte_level(root, data, *pre);
    } else {
        add_sentencepiece(root, data);
    }
    root[kPostProcessor] = post_processor(data);
    json model;
    model["type"] = "BPE";
    model["dropout"] = nullptr;
    model["unk_token"] = nullptr;
    if (data.unk) {
        model["unk_token"] = data.tokens[static_cast<std::size_t>(*data.unk)];
    }
    model["continuing_subword_prefix"] = nullptr;
    model["end_of_word_suffix"] = nullptr;
    model["fuse_unk"] = data.fuse_unk;
    model["byte_fallback"] = !byte_level && std::ranges::count(data.types, TokenType::byte) > 0;
    model["ignore_merges"] = data.ignore_merges;
    model["vocab"] = std::move(vocab);
    const bool of_scores = data.merges.empty() && !byte_level;
    model["merges"] = merge_list(data, of_scores ? merges_of_scores(data, mergeable) : data.merges);
    root["model"] = std::move(model);

    json config;
    // transformers 5 reads every Qwen2 model's tokenizer with Qwen's normalizer and words,
    // regardless of tokenizer.json, unless this class is named: byte-level ones are then read as
    // they are.
    const bool as_qwen = pre == PreTokenizer::qwen2 && data.nfc;
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
    config["clean_up_tokenization_spaces"] = false;
    config["add_bos_token"] = data.add_bos();
    config["add_eos_token"] = data.add_eos();
    if (!data.tool_template.empty()) {
        config["chat_template"] =
            json::array({{{"name", "default"}, {"template", data.chat_template}},
                         {{"name", "tool_use"}, {"template", data.tool_template}}});
    } else if (!data.chat_template.empty()) {
        config["chat_template"] = data.chat_template;
    }
    // A GGUF's template may hold any bytes.
    constexpr auto kReplace = json::error_handler_t::replace;
    return TokenizerFiles{root.dump(1) + "\n", config.dump(2, ' ', false, kReplace) + "\n"};
}

std::string with_tokens_around(std::string_view json, const TokenizerData& data) {
    const auto document = formats::JsonDocument::parse(json, data.name);
    std::string out;
    for (const auto& [key, value] : document.root().items_in_file_order()) {
        if (key == kPostProcessor) continue;
        out += fmt::format("{}: {},\n", formats::json_quoted(key), value.dump());
    }
    return fmt::format("{{{}\"{}\": {}}}\n", out, kPostProcessor, post_processor(data).dump());
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
    return fmt::format("{{\"{}\": [{}{}]{}}}\n", kAdded, added, added_token(token).dump(), out);
}

}  // namespace mr::text
