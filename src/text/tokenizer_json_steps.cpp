#include "text/tokenizer_json_steps.h"

#include <fmt/format.h>

#include <optional>

#include "text/pretokenize.h"
#include "text/tokenizer_impl.h"

namespace mr::text {
namespace {

class StepsReader : JsonFields {
  public:
    explicit StepsReader(TokenizerData& data) : JsonFields(data.name), data_(data) {}

    JsonSteps read(JsonValue root) {
        normalizer(root);
        pre_tokenizer(root);
        decoder(root);
        decide_model();
        return steps_;
    }

  private:
    // --- Normalizer and pre-tokenizer: which of the known combinations is it? -------------------

    void normalizer(JsonValue root) {
        if (const auto n = root.find_set("normalizer")) normalizer_part(*n, "normalizer", 0);
    }

    void normalizer_part(JsonValue part, const std::string& field, int depth) {
        const std::string type = text_or(part, field, "type", "");
        if (type == "Sequence" && depth < 4) {
            const JsonValue parts = array(part, "normalizers", field + ".normalizers");
            for (std::size_t i = 0; i < parts.size(); ++i) {
                normalizer_part(parts[i], fmt::format("{}.normalizers[{}]", field, i), depth + 1);
            }
        } else if (type == "NFC") {
            data_.nfc = true;
        } else if (type == "Prepend" && text_or(part, field, "prepend", "") == kSpaceMark) {
            if (steps_.prepends)
                throw fail(field, part, "is a second Prepend", "leave one of them out");
            steps_.prepends = true;
            data_.space_prefix = SpacePrefix::always;
        } else if (type == "Replace" && text_or(part, field, "content", "") == kSpaceMark &&
                   text_or(object(part, "pattern", field + ".pattern"), field, "String", "") ==
                       " ") {
            steps_.replaces = true;
        } else {
            throw fail(
                field, part, "is not a supported normalizer",
                "supported are NFC, and Prepend and Replace as SentencePiece models use them");
        }
    }

    void pre_tokenizer(JsonValue root) {
        if (const auto p = root.find_set("pre_tokenizer")) {
            pre_tokenizer_part(*p, "pre_tokenizer", 0);
        }
    }

    [[noreturn]] void unknown_pre_tokenizer(JsonValue part, const std::string& field) const {
        throw fail(
            field, part, "is not a supported pre-tokenizer",
            std::string("supported are those of ") + kSupportedPreTokenizers + ", and Metaspace");
    }

    void pre_tokenizer_part(JsonValue part, const std::string& field, int depth) {
        const std::string type = text_or(part, field, "type", "");
        if (type == "Sequence" && depth < 4) {
            const JsonValue parts = array(part, "pretokenizers", field + ".pretokenizers");
            for (std::size_t i = 0; i < parts.size(); ++i) {
                pre_tokenizer_part(parts[i], fmt::format("{}.pretokenizers[{}]", field, i),
                                   depth + 1);
            }
        } else if (type == "ByteLevel" && !steps_.byte_level) {
            steps_.byte_level = true;
            if (flag(part, field, "add_prefix_space", true)) {
                if (pre_) {
                    throw fail(field + ".add_prefix_space", part["add_prefix_space"],
                               "is not supported behind Split: every word would get a space",
                               "set it to false");
                }
                data_.space_prefix = SpacePrefix::always;
                data_.prefix_if_missing = true;
            }
            if (flag(part, field, "use_regex", true)) {
                if (pre_) unknown_pre_tokenizer(part, field);
                pre_ = PreTokenizer::gpt2;
            }
        } else if (type == "Split" && !steps_.byte_level && !pre_) {
            const JsonValue pattern = object(part, "pattern", field + ".pattern");
            pre_ = pre_tokenizer_of_regex(text_or(pattern, field + ".pattern", "Regex", ""));
            const std::string behavior = text_or(part, field, "behavior", "");
            const bool invert = flag(part, field, "invert", false);
            const bool keeps_matches =
                (behavior == "Isolated" && !invert) || (behavior == "Removed" && invert);
            if (!pre_ || !keeps_matches) unknown_pre_tokenizer(part, field);
        } else if (type == "Metaspace" && !steps_.metaspace &&
                   text_or(part, field, "replacement", "") == kSpaceMark) {
            if (steps_.prepends) {
                throw fail(field, part, "with the normalizer Prepend is not supported",
                           "leave one of them out");
            }
            steps_.metaspace = true;
            const bool add = flag(part, field, "add_prefix_space", true);
            const std::string scheme =
                text_or(part, field, "prepend_scheme", add ? "always" : "never");
            if (!add && scheme != "never") {
                throw fail(field + ".prepend_scheme", part["prepend_scheme"],
                           "contradicts add_prefix_space: false");
            }
            data_.split_spaces = flag(part, field, "split", true);
            data_.prefix_if_missing = true;
            if (scheme == "first") {
                data_.space_prefix = SpacePrefix::first;
            } else if (scheme == "always") {
                data_.space_prefix = SpacePrefix::always;
            } else if (scheme != "never") {
                throw fail(field + ".prepend_scheme", part["prepend_scheme"],
                           "is not first, always or never");
            }
        } else {
            unknown_pre_tokenizer(part, field);
        }
    }

    void decide_model() {
        const bool marks_spaces = steps_.replaces || steps_.metaspace;
        if (steps_.byte_level && steps_.prepends) {
            throw fail("normalizer", nullptr, "has Prepend, which ByteLevel does not go with");
        }
        if (steps_.byte_level && pre_ && !marks_spaces) {
            data_.model = TokenizerModel::byte_level_bpe;
            data_.pre = pre_tokenizer_name(*pre_);
        } else if (marks_spaces && !steps_.byte_level && !pre_) {
            data_.model = TokenizerModel::sentencepiece_bpe;
        } else {
            throw fail("pre_tokenizer", nullptr,
                       "with this normalizer is neither byte-level nor SentencePiece-style",
                       std::string("supported are those of ") + kSupportedPreTokenizers +
                           ", and Metaspace");
        }
        const char* other = steps_.byte_level ? "ByteLevel" : "SentencePiece's";
        const bool fits = decodes_.empty() || (decodes_ == "ByteLevel") == steps_.byte_level;
        if (!fits) {
            throw fail("decoder", nullptr,
                       fmt::format("is {}, which does not undo the pre-tokenizer", decodes_),
                       fmt::format("it should be {}", other));
        }
    }

    // --- Decoder: what decode() does anyway ------------------------------------------------------

    void decoder(JsonValue root) {
        if (const auto d = root.find_set("decoder")) decoder_part(*d, "decoder", 0);
    }

    void decoder_part(JsonValue part, const std::string& field, int depth) {
        const std::string type = text_or(part, field, "type", "");
        if (type == "Sequence" && depth < 4) {
            const JsonValue parts = array(part, "decoders", field + ".decoders");
            for (std::size_t i = 0; i < parts.size(); ++i) {
                decoder_part(parts[i], fmt::format("{}.decoders[{}]", field, i), depth + 1);
            }
            return;
        }
        const auto says = [&](const char* key, std::string_view value) {
            return text_or(part, field, key, "") == value;
        };
        const auto replaces_mark = [&] {
            const auto pattern = part.find_set("pattern");
            return says("content", " ") && pattern && pattern->is_object() &&
                   text_or(*pattern, field, "String", "") == kSpaceMark;
        };
        if (type != "ByteLevel" && type != "ByteFallback" && type != "Fuse" &&
            !(type == "Replace" && replaces_mark()) &&
            !(type == "Metaspace" && says("replacement", kSpaceMark)) &&
            !(type == "Strip" && says("content", " "))) {
            throw fail(
                field, part, "is not a supported decoder",
                "supported are ByteLevel, and Replace, ByteFallback, Fuse, Strip and Metaspace as "
                "SentencePiece models use them");
        }
        if (type != "Fuse") decodes_ = type;
    }

    TokenizerData& data_;
    JsonSteps steps_;
    std::string decodes_;  // a type of decoder; empty: none is named
    std::optional<PreTokenizer> pre_;
};

}  // namespace

JsonSteps read_steps(formats::JsonValue root, TokenizerData& data) {
    return StepsReader(data).read(root);
}

}  // namespace mr::text
