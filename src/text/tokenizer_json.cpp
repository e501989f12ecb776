// Hugging Face tokenizer.json (and tokenizer_config.json) to TokenizerData.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/mapped_file.h"
#include "formats/json.h"
#include "text/byte_alphabet.h"
#include "text/pretokenize.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_json_steps.h"
#include "text/unicode.h"

namespace mr::text {
namespace {

using formats::JsonValue;

constexpr std::size_t kMaxFileBytes = 256u << 20;

class Loader : JsonFields {
  public:
    explicit Loader(std::string name) : JsonFields(std::move(name)) { data_.name = name_; }

    TokenizerData load(JsonValue root, JsonValue config) {
        if (!root.is_object()) throw fail("", root, "is not a JSON object");
        const JsonValue model = object(root, "model", "model");
        const std::string type = text_or(model, "model", "type", "BPE");
        if (type != "BPE") {
            throw fail("model.type", model["type"], "is not supported",
                       "supported is BPE (byte-level or SentencePiece-style)");
        }
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
            if (!text_or(model, "model", key, "").empty()) {
                throw fail(std::string("model.") + key, model[key], "is not supported");
            }
        }
        data_.ignore_merges = flag(model, "model", "ignore_merges", false);
        data_.fuse_unk = flag(model, "model", "fuse_unk", false);
        byte_fallback_ = flag(model, "model", "byte_fallback", false);
        no_dropout(model);
        steps_ = read_steps(root, data_);
        vocabulary(model, root);
        merges(model);
        pieces();
        unknown_token(model);
        if (const auto post = root.find_set("post_processor")) {
            post_processor(*post, "post_processor", 0);
        }
        special_ids(config);
        if (data_.model == TokenizerModel::sentencepiece_bpe) derive_scores();
        return std::move(data_);
    }

  private:
    std::optional<std::int32_t> find_piece(const std::string& token) const {
        const auto id = find(token);
        return id && in_vocabulary_[static_cast<std::size_t>(*id)] ? id : std::nullopt;
    }
    std::optional<std::int32_t> find(const std::string& token) const {
        const auto it = ids_.find(token);
        return it == ids_.end() ? std::nullopt : std::optional(it->second);
    }

    void no_dropout(JsonValue model) const {
        const auto dropout = model.find_set("dropout");
        if (!dropout) return;
        if (!dropout->is_number()) throw fail("model.dropout", *dropout, "is not a number");
        if (dropout->get<double>() == 0) return;
        throw fail("model.dropout", *dropout,
                   "is not supported: a text would have other ids every time", "set it to null");
    }

    // --- Vocabulary and merges ------------------------------------------------------------------

    void place(std::int32_t id, const std::string& token, const std::string& field) {
        auto& slot = data_.tokens[static_cast<std::size_t>(id)];
        auto& type = data_.types[static_cast<std::size_t>(id)];
        if (type != TokenType::unused) {
            throw fail(field, nullptr, fmt::format("{} is the id of '{}' already", id, slot));
        }
        slot = token;
        type = TokenType::normal;
        if (byte_fallback_ && byte_of_name(token) >= 0) {
            type = TokenType::byte;
        }
        ids_.emplace(token, id);
    }

    void vocabulary(JsonValue model, JsonValue root) {
        const JsonValue vocab = object(model, "vocab", "model.vocab");
        const auto found = root.find_set("added_tokens");
        if (found && !found->is_array()) throw fail("added_tokens", *found, "is not an array");
        const JsonValue added = found.value_or(JsonValue());  // null: no added tokens

        std::int32_t last = -1;
        for (const auto& [token, id] : vocab.items()) {
            last = std::max(last, token_id(id, fmt::format("model.vocab['{}']", token)));
        }
        for (std::size_t i = 0; i < added.size(); ++i) {
            const std::string field = fmt::format("added_tokens[{}]", i);
            const auto id = added[i].find_set("id");
            if (!id) throw fail(field + ".id", nullptr, "is missing");
            last = std::max(last, token_id(*id, field + ".id"));
        }
        const std::size_t count = vocab.size() + added.size();
        if (count == 0) throw fail("model.vocab", nullptr, "is empty");
        if (static_cast<std::size_t>(last) > 2 * count + 4096) {
            throw fail("model.vocab", nullptr,
                       fmt::format("has {} tokens but ids up to {}", count, last));
        }
        const auto size = static_cast<std::size_t>(last) + 1;
        data_.tokens.resize(size);
        data_.types.assign(size, TokenType::unused);
        in_vocabulary_.assign(size, false);
        vocabulary_size_ = vocab.size();
        ids_.reserve(count);
        for (const auto& [token, id] : vocab.items()) {
            place(id.get<std::int32_t>(), std::string(token),
                  fmt::format("model.vocab['{}']", token));
            in_vocabulary_[id.get<std::size_t>()] = true;
        }
        for (std::size_t i = 0; i < added.size(); ++i) {
            added_token(added[i], fmt::format("added_tokens[{}]", i));
        }
        for (std::size_t i = 0; i < size; ++i) {
            if (data_.types[i] == TokenType::unused) data_.tokens[i] = fmt::format("[PAD{}]", i);
        }
    }

    void added_token(JsonValue entry, const std::string& field) {
        AddedToken token;
        token.id = token_id(entry["id"], field + ".id");
        token.text = text_or(entry, field, "content", "");
        if (token.text.empty()) throw fail(field + ".content", nullptr, "is missing or empty");
        // A token that is in the vocabulary keeps its id, as in Hugging Face's library.
        if (data_.types[static_cast<std::size_t>(token.id)] == TokenType::unused) {
            token.id = find(token.text).value_or(token.id);
        }
        token.special = flag(entry, field, "special", false);
        token.lstrip = flag(entry, field, "lstrip", false);
        token.rstrip = flag(entry, field, "rstrip", false);
        token.single_word = flag(entry, field, "single_word", false);
        token.normalized = flag(entry, field, "normalized", !token.special);
        const auto i = static_cast<std::size_t>(token.id);
        const bool only_added = data_.types[i] == TokenType::unused;
        if (only_added) {
            // Hugging Face's library numbers them itself, behind the vocabulary.
            const std::size_t expected = vocabulary_size_ + only_added_++;
            if (i != expected) {
                throw fail(field + ".id", entry["id"],
                           fmt::format("is not {}, the next after the vocabulary and the added "
                                       "tokens before it",
                                       expected),
                           "number the added tokens in the order of the file without a gap, or "
                           "take the tokenizer.json that came with the model");
            }
        }
        if (only_added || data_.tokens[i] != token.text) {
            place(token.id, token.text, field + ".id");
        }
        // A byte token stays one: characters without a token still fall back to it.
        if (only_added || data_.types[i] != TokenType::byte) {
            data_.types[i] = token.special ? TokenType::control : TokenType::user_defined;
        }
        // Of two with the same text the later one holds.
        const auto [entry_at, is_new] = added_at_.emplace(token.text, data_.added.size());
        if (is_new) data_.added.emplace_back();
        data_.added[entry_at->second] = std::move(token);
    }

    void merges(JsonValue model) {
        const JsonValue list = array(model, "merges", "model.merges");
        data_.merges.reserve(list.size());
        for (std::size_t i = 0; i < list.size(); ++i) {
            const JsonValue entry = list[i];
            const auto where = [&] { return fmt::format("model.merges[{}]", i); };
            std::string left, right;
            if (entry.is_string()) {
                const std::string_view both = entry.text();
                if (both.starts_with("#version")) continue;
                const std::size_t space = both.find(' ');
                if (space == both.npos || both.find(' ', space + 1) != both.npos) {
                    throw fail(where(), entry, "is not two tokens with one space between them");
                }
                left = both.substr(0, space);
                right = both.substr(space + 1);
            } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
                       entry[1].is_string()) {
                left = entry[0].get<std::string>();
                right = entry[1].get<std::string>();
            } else {
                throw fail(where(), entry, "is not a pair of tokens");
            }
            const auto a = find_piece(left), b = find_piece(right);
            if (!a || !b) {
                throw fail(
                    where(), entry,
                    fmt::format("names '{}', which is not in model.vocab", a ? right : left));
            }
            if (!find_piece(left + right)) {
                throw fail(where(), entry, "makes a token that model.vocab does not have");
            }
            data_.merges.push_back({*a, *b});
        }
        if (data_.merges.empty() && data_.model == TokenizerModel::sentencepiece_bpe) no_merges();
    }

    // SentencePiece's vocabularies without merges merge by scores, which such a file has not.
    void no_merges() const {
        const auto is_part = [&](std::string_view text) {
            return char_at(text, 0).size == text.size() || find_piece(std::string(text));
        };
        for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
            const std::string_view token = data_.tokens[i];
            // Longer ones are refused later, like those of other vocabularies without merges.
            if (data_.types[i] != TokenType::normal || token.size() > 1024) continue;
            for (std::size_t cut = 1; cut < token.size(); ++cut) {
                if (is_part(token.substr(0, cut)) && is_part(token.substr(cut))) {
                    throw fail("model.merges", nullptr,
                               fmt::format("are none that make '{}'", token));
                }
            }
        }
    }

    // What is looked up whole where merges are ignored: a word, or in SentencePiece's style any
    // text.
    bool is_word_or_text(const std::string& token) const {
        if (data_.model == TokenizerModel::sentencepiece_bpe) return true;
        const auto bytes = bytes_of_token(token);
        const auto pre = pre_tokenizer_of_name(data_.pre);
        return bytes && !bytes->empty() && pre && word_end(*pre, *bytes, 0) == bytes->size();
    }

    // Which added tokens text can become, too.
    void pieces() {
        const std::vector<bool> made = made_by_text(data_, true);
        std::unordered_set<std::string> normalized;
        for (AddedToken& token : data_.added) {
            if (token.normalized && !normalized.insert(normalized_form(data_, token)).second) {
                throw fail("added_tokens", nullptr,
                           fmt::format("have another one that is normalized to the same as '{}'",
                                       token.text));
            }
            const auto i = static_cast<std::size_t>(token.id);
            token.piece = in_vocabulary_[i] &&
                          (made[i] || (data_.ignore_merges && is_word_or_text(token.text)));
            if (token.normalized && steps_.replaces && steps_.metaspace) {
                throw fail(
                    "normalizer", nullptr,
                    fmt::format("has Replace, and the pre-tokenizer is Metaspace: the added token "
                                "'{}', found between the two, is not supported",
                                token.text),
                    "set its \"normalized\" to false");
            }
        }
    }

    // --- Characters that no token represents -----------------------------------------------------

    // Whether every character of UTF-8 is a token or falls back to bytes.
    bool represents_all() const {
        for (unsigned b = 0; b < 0xF5; ++b) {
            if (b == 0xC0 || b == 0xC1) continue;
            std::string name;
            if (steps_.byte_level) append_utf8(name, byte_to_char(static_cast<unsigned char>(b)));
            if (!steps_.byte_level && byte_fallback_) name = fmt::format("<0x{:02X}>", b);
            const bool itself =
                !steps_.byte_level && b < 128 && b != ' ' && find_piece({static_cast<char>(b)});
            if (!itself && (name.empty() || !find_piece(name))) return false;
        }
        return true;
    }

    void unknown_token(JsonValue model) {
        represents_all_ = represents_all();
        if (steps_.byte_level && byte_fallback_ && !represents_all_) {
            throw fail("model.byte_fallback", model["byte_fallback"],
                       "is not supported for a byte-level vocabulary that lacks bytes");
        }
        const std::string unk = text_or(model, "model", "unk_token", "");
        if (!model.find_set("unk_token")) return;
        data_.unk = represents_all_ ? find(unk) : find_piece(unk);
        if (!data_.unk && !represents_all_) {
            throw fail(
                "model.unk_token", model["unk_token"],
                "is not in model.vocab, which does not represent every character",
                "name a token of model.vocab, or set it to null to leave such characters out");
        }
    }

    // --- Tokens around a text --------------------------------------------------------------------

    void post_processor(JsonValue part, const std::string& field, int depth) {
        const std::string type = text_or(part, field, "type", "");
        if (type == "Sequence" && depth < 4) {
            const JsonValue parts = array(part, "processors", field + ".processors");
            for (std::size_t i = 0; i < parts.size(); ++i) {
                post_processor(parts[i], fmt::format("{}.processors[{}]", field, i), depth + 1);
            }
            return;
        }
        if (type == "ByteLevel") return;  // concerns offsets alone
        // In Hugging Face's library a second one takes the first one's parts for texts.
        if (puts_tokens_) {
            throw fail(field, part, "is a second post-processor that puts tokens around the text");
        }
        puts_tokens_ = true;
        if (type == "TemplateProcessing") {
            const JsonValue single = array(part, "single", field + ".single");
            bool before = true;
            for (std::size_t i = 0; i < single.size(); ++i) {
                const std::string where = fmt::format("{}.single[{}]", field, i);
                if (const auto text = single[i].find_set("Sequence")) {
                    const bool is_a = text->is_object() && text_or(*text, where, "id", "") == "A";
                    if (!is_a || !before) {
                        throw fail(where, single[i],
                                   is_a ? "is the text a second time" : "is not the text, A");
                    }
                    before = false;
                    continue;
                }
                const JsonValue special = object(single[i], "SpecialToken", where);
                template_ids(part, field, text_or(special, where, "id", ""),
                             before ? data_.prefix : data_.suffix);
            }
            if (before) throw fail(field + ".single", single, "has no place for the text, A");
        } else if (type == "RobertaProcessing" || type == "BertProcessing") {
            for (const char* key : {"cls", "sep"}) {
                const JsonValue pair = array(part, key, field + "." + key);
                if (pair.size() != 2) throw fail(field + "." + key, pair, "is not [token, id]");
                auto& list = key[0] == 'c' ? data_.prefix : data_.suffix;
                list.push_back(token_id(pair[1], field + "." + key));
            }
        } else {
            throw fail(field, part, "is not a supported post-processor",
                       "supported are TemplateProcessing and ByteLevel");
        }
    }

    void template_ids(JsonValue part, const std::string& field, const std::string& name,
                      std::vector<std::int32_t>& out) {
        const std::string where = field + ".special_tokens['" + name + "'].ids";
        if (const auto specials = part.find_set("special_tokens")) {
            if (const auto entry = specials->find_set(name)) {
                const JsonValue ids = array(*entry, "ids", where);
                for (const JsonValue id : ids) out.push_back(token_id(id, where));
                return;
            }
        }
        const auto id = find(name);
        if (!id) throw fail(where, nullptr, "is missing, and the vocabulary has no such token");
        out.push_back(*id);
    }

    std::optional<std::int32_t> configured(JsonValue config, const char* key) const {
        auto value = config.find_set(key);
        if (!value) return std::nullopt;
        if (const auto content = value->find_set("content")) value = content;
        if (!value->is_string()) {
            throw fail(std::string("tokenizer_config.json: ") + key, *value, "is not a token");
        }
        return find(value->get<std::string>());
    }

    void special_ids(JsonValue config) {
        data_.bos = configured(config, "bos_token");
        data_.eos = configured(config, "eos_token");
        data_.pad = configured(config, "pad_token");
        // What the configuration names stands for no text: Hugging Face's library leaves out
        // unknown characters if the model names no token.
        if (!data_.unk && represents_all_) data_.unk = configured(config, "unk_token");
        const auto is_special = [&](std::int32_t id) {
            return data_.types[static_cast<std::size_t>(id)] == TokenType::control;
        };
        if (!config.is_object()) {  // not stated: use the usual names
            const auto guess = [&](std::initializer_list<const char*> names) {
                for (const char* name : names) {
                    if (const auto id = find(name); id && is_special(*id)) return id;
                }
                return std::optional<std::int32_t>();
            };
            if (!data_.prefix.empty()) data_.bos = data_.prefix.front();
            if (!data_.bos) data_.bos = guess({"<s>", "<|begin_of_text|>"});
            data_.eos =
                guess({"</s>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>"});
        }
        if (data_.unk && is_special(*data_.unk) && data_.unk != data_.bos &&
            data_.unk != data_.eos) {
            data_.types[static_cast<std::size_t>(*data_.unk)] = TokenType::unknown;
        }
        const auto set = [](std::vector<std::int32_t>& list, std::optional<std::int32_t> id,
                            bool wanted, bool front) {
            if (!id) return;
            const bool there = !list.empty() && (front ? list.front() == *id : list.back() == *id);
            if (there && !wanted) list.erase(front ? list.begin() : list.end() - 1);
            if (!there && wanted) list.insert(front ? list.begin() : list.end(), *id);
        };
        const std::string name = "tokenizer_config.json";
        if (config.find_set("add_bos_token")) {
            set(data_.prefix, data_.bos, flag(config, name, "add_bos_token", false), true);
        }
        if (config.find_set("add_eos_token")) {
            set(data_.suffix, data_.eos, flag(config, name, "add_eos_token", false), false);
        }
        if (const auto chat = config.find_set("chat_template")) chat_template(*chat);
    }

    void chat_template(JsonValue value) {
        if (value.is_string()) {
            data_.chat_template = value.get<std::string>();
        } else if (value.is_array()) {  // several templates, by name
            for (const JsonValue entry : value) {
                const auto text = entry.find_set("template");
                if (!text || !text->is_string()) continue;
                const auto name = entry.find_set("name");
                if (name && *name == "tool_use") {
                    data_.tool_template = text->get<std::string>();
                } else if (data_.chat_template.empty() || (name && *name == "default")) {
                    data_.chat_template = text->get<std::string>();
                }
            }
        } else {
            throw fail("tokenizer_config.json: chat_template", value, "is not a string");
        }
    }

    // GGUF stores SentencePiece models by score: the earlier a token is merged, the higher it is.
    void derive_scores() {
        const std::size_t n = data_.tokens.size();
        data_.scores.assign(n, -static_cast<float>(n));
        std::vector<bool> seen(n);
        float next = 0;
        for (const Merge& m : data_.merges) {
            const auto made = find(data_.tokens[static_cast<std::size_t>(m.left)] +
                                   data_.tokens[static_cast<std::size_t>(m.right)]);
            if (!made || seen[static_cast<std::size_t>(*made)]) continue;
            seen[static_cast<std::size_t>(*made)] = true;
            data_.scores[static_cast<std::size_t>(*made)] = next--;
        }
        const std::vector<float> derived = data_.scores;
        for (std::size_t i = 0; i < n; ++i) {
            if (data_.types[i] != TokenType::normal) data_.scores[i] = 0;
        }
        for (const AddedToken& token : data_.added) {
            const auto i = static_cast<std::size_t>(token.id);
            if (token.piece) data_.scores[i] = derived[i];
        }
    }

    TokenizerData data_;
    JsonSteps steps_;
    bool byte_fallback_ = false;
    bool represents_all_ = false;
    bool puts_tokens_ = false;         // a post-processor puts tokens around the text
    std::vector<bool> in_vocabulary_;  // by id: in model.vocab
    std::size_t vocabulary_size_ = 0;
    std::size_t only_added_ = 0;  // added tokens so far that are not in model.vocab
    std::unordered_map<std::string, std::int32_t> ids_;
    std::unordered_map<std::string, std::size_t> added_at_;  // by text: its place in data_.added
};

TokenizerData load_json(std::string_view text, const std::string& name, std::string_view config) {
    if (text.size() > kMaxFileBytes) {
        throw Error::input(
            {.file = name, .problem = fmt::format("is larger than {} MiB", kMaxFileBytes >> 20)});
    }
    const auto root = formats::JsonDocument::parse(text, name);
    formats::JsonDocument configuration;
    if (!config.empty()) {
        configuration = formats::JsonDocument::parse(config, name, "tokenizer_config.json");
    }
    return Loader(name).load(root.root(), configuration.root());
}

}  // namespace

Tokenizer::Ptr Tokenizer::from_json(std::string_view text, const std::string& name,
                                    std::string_view config) {
    return from_data(load_json(text, name, config));
}

Tokenizer::Ptr Tokenizer::from_json_file(const std::string& path, const std::string& config) {
    namespace fs = std::filesystem;
    const std::string text = read_text_file(path, kMaxFileBytes);
    const fs::path folder = fs::path(path).parent_path();
    std::error_code ignored;
    std::string config_path = config;
    if (config.empty() && fs::exists(folder / "tokenizer_config.json", ignored)) {
        config_path = (folder / "tokenizer_config.json").string();
    }
    const std::string config_text =
        config_path.empty() ? "" : read_text_file(config_path, kMaxFileBytes);
    TokenizerData data = load_json(text, path, config_text);
    if (!data.chat_template.empty()) data.template_file = config_path;
    const fs::path jinja = folder / "chat_template.jinja";
    if (fs::exists(jinja, ignored)) {
        data.chat_template = read_text_file(jinja.string(), 1u << 20);
        data.tool_template.clear();
        data.template_file = jinja.string();
    }
    return from_data(std::move(data));
}

}  // namespace mr::text
