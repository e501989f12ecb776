// The vocabulary in a GGUF file (`tokenizer.ggml.*`) to TokenizerData, and back.
#include "text/tokenizer_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "formats/gguf.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace mr::text {
namespace {

constexpr const char* kOptions = "millrace.tokenizer.options";
// Flags of added tokens that have any: id, mask, id, mask ...
constexpr const char* kAdded = "millrace.tokenizer.added";
// Pairs of ids, in order: a file of SentencePiece's kind has scores, from which other merges
// follow.
constexpr const char* kMerges = "millrace.tokenizer.merges";
// Ids around a text, where they are more than the usual BOS and EOS.
constexpr const char* kPrefix = "millrace.tokenizer.prefix";
constexpr const char* kSuffix = "millrace.tokenizer.suffix";
constexpr const char* kToolTemplate = "tokenizer.chat_template.tool_use";

constexpr std::pair<std::int32_t, bool AddedToken::*> kFlags[] = {
    {1, &AddedToken::lstrip},
    {2, &AddedToken::rstrip},
    {4, &AddedToken::single_word},
    {8, &AddedToken::normalized},
};
// It is a piece though its form does not say so (made_by_text()), or the reverse.
constexpr std::int32_t kOtherPiece = 16;
// Its type says that it stands for a byte, and not whether it is special.
constexpr std::int32_t kPlainByte = 32, kSpecialByte = 64;
constexpr std::int32_t kAllFlags = 127;

// A file of SentencePiece's kind keeps no merges.
std::vector<bool> pieces_by_form(const TokenizerData& data) {
    return made_by_text(data, data.model == TokenizerModel::byte_level_bpe);
}

// The usual ids before and after a text.
std::vector<std::int32_t> usual_ids(const std::optional<std::int32_t>& id, bool add) {
    return id && add ? std::vector<std::int32_t>{*id} : std::vector<std::int32_t>{};
}

// Converters fill unused ids with these; they stand for no text.
bool is_filling(const TokenizerData& data, std::size_t id) {
    return data.types[id] == TokenType::user_defined &&
           data.tokens[id] == fmt::format("[PAD{}]", id);
}

// A GGUF says by its type that a token is an added one.
bool is_added(TokenType type) {
    return type == TokenType::control || type == TokenType::unknown ||
           type == TokenType::user_defined;
}

class Loader {
  public:
    explicit Loader(const formats::GgufFile& file) : file_(file) { data_.name = file.path(); }

    TokenizerData load() {
        const auto model = file_.get_string("tokenizer.ggml.model");
        if (!model) {
            throw fail("tokenizer.ggml.model", "", "is missing",
                       "the file holds no vocabulary: give one with --tokenizer");
        }
        if (*model == "gpt2") {
            data_.model = TokenizerModel::byte_level_bpe;
            data_.pre = file_.get_string("tokenizer.ggml.pre").value_or("gpt-2");
        } else if (*model == "llama") {
            data_.model = TokenizerModel::sentencepiece_bpe;
        } else {
            throw fail("tokenizer.ggml.model", *model, "is not supported",
                       "supported are gpt2 (byte-level BPE) and llama (SentencePiece BPE)");
        }
        tokens();
        if (data_.model == TokenizerModel::byte_level_bpe) {
            merges();
        } else {
            scores();
            merges_of_pairs();
        }
        special_ids();
        tokens_around(kPrefix, data_.prefix);
        tokens_around(kSuffix, data_.suffix);
        added();
        added_flags();
        options();
        data_.chat_template = file_.get_string("tokenizer.chat_template").value_or("");
        data_.tool_template = file_.get_string(kToolTemplate).value_or("");
        return std::move(data_);
    }

  private:
    Error fail(std::string field, std::string value, std::string problem,
               std::string remedy = {}) const {
        return Error::input({.file = data_.name,
                             .field = std::move(field),
                             .value = std::move(value),
                             .problem = std::move(problem),
                             .remedy = std::move(remedy)});
    }

    void tokens() {
        const auto list = file_.get_strings("tokenizer.ggml.tokens");
        if (!list) throw fail("tokenizer.ggml.tokens", "", "is missing");
        data_.tokens.assign(list->begin(), list->end());
        data_.types.assign(data_.tokens.size(), TokenType::normal);
        const auto types = file_.get_ints("tokenizer.ggml.token_type");
        if (!types) return;
        if (types->size() != data_.tokens.size()) {
            throw fail("tokenizer.ggml.token_type", fmt::format("{} entries", types->size()),
                       fmt::format("are not as many as the {} tokens", data_.tokens.size()));
        }
        for (std::size_t i = 0; i < types->size(); ++i) {
            const std::int64_t type = (*types)[i];
            if (type < 0 || type > 6) {
                throw fail(fmt::format("tokenizer.ggml.token_type[{}]", i), std::to_string(type),
                           "is not a token type from 0 to 6");
            }
            data_.types[i] = type == 0 ? TokenType::normal : static_cast<TokenType>(type);
        }
    }

    void merges() {
        const auto list = file_.get_strings("tokenizer.ggml.merges");
        if (!list) throw fail("tokenizer.ggml.merges", "", "is missing");
        StringIndex ids;
        ids.reserve(data_.tokens.size());
        for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
            ids.insert(data_.tokens[i], static_cast<std::int32_t>(i));
        }
        data_.merges.reserve(list->size());
        for (std::size_t i = 0; i < list->size(); ++i) {
            const std::string_view both = (*list)[i];
            const std::size_t space = both.find(' ', 1);
            const std::string field = fmt::format("tokenizer.ggml.merges[{}]", i);
            if (space == std::string_view::npos) {
                throw fail(field, std::string(both), "is not two tokens with a space between them");
            }
            const std::int32_t left = ids.find(both.substr(0, space));
            const std::int32_t right = ids.find(both.substr(space + 1));
            if (left < 0 || right < 0) {
                throw fail(field, std::string(both),
                           "names a token that tokenizer.ggml.tokens does not have");
            }
            data_.merges.push_back({left, right});
        }
    }

    void scores() {
        auto list = file_.get_floats("tokenizer.ggml.scores");
        if (!list) throw fail("tokenizer.ggml.scores", "", "is missing");
        if (list->size() != data_.tokens.size()) {
            throw fail("tokenizer.ggml.scores", fmt::format("{} entries", list->size()),
                       fmt::format("are not as many as the {} tokens", data_.tokens.size()));
        }
        data_.scores = std::move(*list);
        if (file_.get_bool("tokenizer.ggml.add_space_prefix").value_or(true)) {
            data_.space_prefix = SpacePrefix::always;
        }
    }

    void merges_of_pairs() {
        const auto list = file_.get_ints(kMerges).value_or(std::vector<std::int64_t>());
        if (list.size() % 2 != 0) {
            throw fail(kMerges, fmt::format("{} entries", list.size()), "are not pairs of ids");
        }
        data_.merges.reserve(list.size() / 2);
        for (std::size_t i = 0; i < list.size(); i += 2) {
            data_.merges.push_back({token_id(list[i], fmt::format("{}[{}]", kMerges, i)),
                                    token_id(list[i + 1], fmt::format("{}[{}]", kMerges, i + 1))});
        }
    }

    std::optional<std::int32_t> id(const char* key) const {
        const auto value = file_.get_uint(key);
        if (!value) return std::nullopt;
        // Some writers encode "none" as the highest number of the type.
        if (*value == 0xFFFFFFFFu) return std::nullopt;
        if (*value >= data_.tokens.size()) {
            throw fail(key, std::to_string(*value),
                       fmt::format("is not below the {} tokens", data_.tokens.size()));
        }
        return static_cast<std::int32_t>(*value);
    }

    void special_ids() {
        const bool sentencepiece = data_.model == TokenizerModel::sentencepiece_bpe;
        data_.bos = id("tokenizer.ggml.bos_token_id");
        data_.eos = id("tokenizer.ggml.eos_token_id");
        data_.unk = id("tokenizer.ggml.unknown_token_id");
        data_.pad = id("tokenizer.ggml.padding_token_id");
        data_.end_of_turn = id("tokenizer.ggml.eot_token_id");
        const bool llama3 = !sentencepiece && (data_.pre == "llama-bpe" || data_.pre == "llama3" ||
                                               data_.pre == "llama-v3");
        data_.ignore_merges = llama3;
        data_.prefix = usual_ids(
            data_.bos,
            file_.get_bool("tokenizer.ggml.add_bos_token").value_or(sentencepiece || llama3));
        data_.suffix =
            usual_ids(data_.eos, file_.get_bool("tokenizer.ggml.add_eos_token").value_or(false));
    }

    void tokens_around(const char* key, std::vector<std::int32_t>& ids) {
        const auto list = file_.get_ints(key);
        if (!list) return;
        ids.clear();
        for (std::size_t i = 0; i < list->size(); ++i) {
            ids.push_back(token_id((*list)[i], fmt::format("{}[{}]", key, i)));
        }
    }

    std::int32_t token_id(std::int64_t value, std::string field) const {
        if (value < 0 || value >= static_cast<std::int64_t>(data_.tokens.size())) {
            throw fail(std::move(field), std::to_string(value),
                       fmt::format("is not the id of one of the {} tokens", data_.tokens.size()));
        }
        return static_cast<std::int32_t>(value);
    }

    void options() {
        if (data_.model == TokenizerModel::byte_level_bpe) data_.prefix_if_missing = true;
        for (std::string_view option :
             file_.get_strings(kOptions).value_or(std::vector<std::string_view>())) {
            if (option == "nfc") {
                data_.nfc = true;
            } else if (option == "ignore_merges") {
                data_.ignore_merges = true;
            } else if (option == "space_first") {
                data_.space_prefix = SpacePrefix::first;
            } else if (option == "space_always") {
                data_.space_prefix = SpacePrefix::always;
            } else if (option == "space_if_missing") {
                data_.prefix_if_missing = true;
            } else if (option == "split_spaces") {
                data_.split_spaces = true;
            } else if (option == "single_unk") {
                data_.fuse_unk = false;
            } else {
                throw fail(kOptions, std::string(option), "is not an option this version knows");
            }
        }
    }

    void added() {
        const std::vector<bool> pieces = pieces_by_form(data_);
        std::map<std::int64_t, bool> bytes;  // added tokens of that type: whether they are special
        const auto list = file_.get_ints(kAdded).value_or(std::vector<std::int64_t>());
        for (std::size_t i = 0; i + 1 < list.size(); i += 2) {
            if ((list[i + 1] & (kPlainByte | kSpecialByte)) != 0) {
                bytes[list[i]] = (list[i + 1] & kSpecialByte) != 0;
            }
        }
        for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
            TokenType& type = data_.types[i];
            if (is_filling(data_, i)) type = TokenType::unused;
            const auto byte = bytes.find(static_cast<std::int64_t>(i));
            const bool is_byte = type == TokenType::byte && byte != bytes.end();
            if (!is_added(type) && !is_byte) continue;
            data_.added.push_back(
                {.id = static_cast<std::int32_t>(i),
                 .text = data_.tokens[i],
                 .special = is_byte ? byte->second : type != TokenType::user_defined,
                 .piece = pieces[i]});
        }
    }

    void added_flags() {
        const auto list = file_.get_ints(kAdded).value_or(std::vector<std::int64_t>());
        if (list.size() % 2 != 0) {
            throw fail(kAdded, fmt::format("{} entries", list.size()),
                       "are not pairs of an id and its flags");
        }
        for (std::size_t i = 0; i < list.size(); i += 2) {
            const std::int32_t id = token_id(list[i], fmt::format("{}[{}]", kAdded, i));
            // In the order of the ids, as added() made them.
            const auto token = std::lower_bound(
                data_.added.begin(), data_.added.end(), id,
                [](const AddedToken& added, std::int32_t wanted) { return added.id < wanted; });
            if (token == data_.added.end() || token->id != id) {
                throw fail(fmt::format("{}[{}]", kAdded, i), std::to_string(id),
                           "is not the id of an added token");
            }
            const std::int64_t mask = list[i + 1];
            const bool byte = data_.types[static_cast<std::size_t>(id)] == TokenType::byte;
            if (mask < 0 || mask > kAllFlags ||
                byte != ((mask & (kPlainByte | kSpecialByte)) != 0)) {
                throw fail(fmt::format("{}[{}]", kAdded, i + 1), std::to_string(mask),
                           "is not a mask of flags that such a token has");
            }
            for (const auto& [bit, flag] : kFlags) (*token).*flag = (mask & bit) != 0;
            if ((mask & kOtherPiece) != 0) token->piece = !token->piece;
        }
    }

    const formats::GgufFile& file_;
    TokenizerData data_;
};

std::vector<std::int32_t> flags_of_added(const TokenizerData& data) {
    std::vector<std::int32_t> out;
    const std::vector<bool> pieces = pieces_by_form(data);
    for (const AddedToken& token : data.added) {
        const auto id = static_cast<std::size_t>(token.id);
        std::int32_t mask = token.piece != pieces[id] ? kOtherPiece : 0;
        for (const auto& [bit, flag] : kFlags) mask |= token.*flag ? bit : 0;
        if (data.types[id] == TokenType::byte) mask |= token.special ? kSpecialByte : kPlainByte;
        if (mask == 0 || is_filling(data, id)) continue;
        if (!is_added(data.types[id]) && data.types[id] != TokenType::byte) continue;
        out.insert(out.end(), {token.id, mask});
    }
    return out;
}

}  // namespace

void write_tokenizer(formats::GgufWriter& writer, const TokenizerData& data) {
    if (data.model == TokenizerModel::bytes) return;
    const bool byte_level = data.model == TokenizerModel::byte_level_bpe;
    writer.set_string("tokenizer.ggml.model", data.gguf_model());
    writer.set_string("tokenizer.ggml.pre", data.pre);
    writer.set_strings("tokenizer.ggml.tokens", std::span<const std::string>(data.tokens));
    std::vector<std::int32_t> types;
    for (TokenType type : data.types) types.push_back(static_cast<std::int32_t>(type));
    writer.set_ints("tokenizer.ggml.token_type", types);
    if (byte_level) {
        std::vector<std::string> merges;
        for (const Merge& m : data.merges) merges.push_back(data.merge_text(m));
        writer.set_strings("tokenizer.ggml.merges", std::span<const std::string>(merges));
    } else {
        writer.set_floats("tokenizer.ggml.scores", data.scores);
        writer.set_bool("tokenizer.ggml.add_space_prefix", data.space_prefix != SpacePrefix::never);
        std::vector<std::int32_t> merges;
        for (const Merge& m : data.merges) merges.insert(merges.end(), {m.left, m.right});
        if (!merges.empty()) writer.set_ints(kMerges, merges);
    }
    const auto set_id = [&](const char* key, std::optional<std::int32_t> id) {
        if (id) writer.set_u32(key, static_cast<std::uint32_t>(*id));
    };
    set_id("tokenizer.ggml.bos_token_id", data.bos);
    set_id("tokenizer.ggml.eos_token_id", data.eos);
    set_id("tokenizer.ggml.unknown_token_id", data.unk);
    set_id("tokenizer.ggml.padding_token_id", data.pad);
    set_id("tokenizer.ggml.eot_token_id", data.end_of_turn);
    writer.set_bool("tokenizer.ggml.add_bos_token", data.add_bos());
    writer.set_bool("tokenizer.ggml.add_eos_token", data.add_eos());
    if (data.prefix != usual_ids(data.bos, data.add_bos())) writer.set_ints(kPrefix, data.prefix);
    if (data.suffix != usual_ids(data.eos, data.add_eos())) writer.set_ints(kSuffix, data.suffix);
    if (const auto flags = flags_of_added(data); !flags.empty()) writer.set_ints(kAdded, flags);
    if (!data.chat_template.empty())
        writer.set_string("tokenizer.chat_template", data.chat_template);
    if (!data.tool_template.empty()) {
        const std::string name = "tool_use";
        writer.set_strings("tokenizer.chat_templates", std::span<const std::string>(&name, 1));
        writer.set_string(kToolTemplate, data.tool_template);
    }

    std::vector<std::string> options;
    if (data.nfc) options.push_back("nfc");
    if (data.ignore_merges) options.push_back("ignore_merges");
    if (data.space_prefix == SpacePrefix::first) options.push_back("space_first");
    if (byte_level && data.space_prefix == SpacePrefix::always) options.push_back("space_always");
    if (!byte_level && data.prefix_if_missing) options.push_back("space_if_missing");
    if (data.split_spaces) options.push_back("split_spaces");
    if (!data.fuse_unk && data.unk) options.push_back("single_unk");
    if (!options.empty()) writer.set_strings(kOptions, std::span<const std::string>(options));
}

Tokenizer::Ptr Tokenizer::from_gguf(const formats::GgufFile& file) {
    return from_data(Loader(file).load());
}

}  // namespace mr::text
