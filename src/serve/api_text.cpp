// Routes that generate no text: tokens, templates, embeddings.
#include <fmt/format.h>

#include <cstring>

#include "formats/json_writer.h"
#include "serve/api.h"

namespace mr::serve {
namespace {

using formats::JsonWriter;

constexpr std::size_t kMostTexts = 2048;  // per request for embeddings

std::string base64(std::string_view bytes) {
    static constexpr char kLetters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t word = 0;
        for (std::size_t j = 0; j < 3; ++j) {
            word = (word << 8) |
                   (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
        }
        for (std::size_t j = 0; j < 4; ++j) {
            out += i + j <= bytes.size() ? kLetters[(word >> (18 - 6 * j)) & 63] : '=';
        }
    }
    return out;
}

class Vectors final : public VectorSink {
  public:
    Vectors(ExchangePtr exchange, std::string model, bool as_base64, std::int64_t tokens)
        : exchange_(std::move(exchange)),
          model_(std::move(model)),
          as_base64_(as_base64),
          tokens_(tokens) {}

    void made(std::vector<std::vector<float>> vectors) override {
        JsonWriter json;
        json.begin_object().member("object", "list").key("data").begin_array();
        for (std::size_t i = 0; i < vectors.size(); ++i) {
            json.begin_object().member("object", "embedding").member("index", i);
            json.key("embedding");
            add(json, vectors[i]);
            json.end_object();
        }
        json.end_array().member("model", model_).key("usage").begin_object();
        json.member("prompt_tokens", tokens_).member("total_tokens", tokens_).end_object();
        exchange_->reply({.body = json.end_object().take()});
    }
    void failed(const Failure& failure) override { exchange_->reply(failure_reply(failure)); }
    bool gone() const override { return exchange_->gone(); }

  private:
    void add(JsonWriter& json, const std::vector<float>& vector) const {
        if (as_base64_) {  // f32 in the machine's order: little-endian
            std::string bytes(vector.size() * sizeof(float), '\0');
            std::memcpy(bytes.data(), vector.data(), bytes.size());
            json.value(base64(bytes));
            return;
        }
        json.begin_array();
        for (const float x : vector) json.raw(fmt::format("{}", x));
        json.end_array();
    }

    ExchangePtr exchange_;
    std::string model_;
    bool as_base64_;
    std::int64_t tokens_;
};

}  // namespace

void Api::embeddings(const Call& call) {
    const Fields& fields = call.fields;
    const model::ModelSpec& spec = desk_.model().spec;
    if (spec.diffusion) {
        throw Failure::bad("model", "embeddings are not supported for diffusion models",
                           "not_supported");
    }
    const std::string encoding = fields.text("encoding_format", "float");
    if (encoding != "float" && encoding != "base64") {
        throw Failure::bad("encoding_format", "'encoding_format' must be 'float' or 'base64'",
                           "invalid_value");
    }
    const std::string pooling = fields.text("pooling", "mean");
    if (pooling != "mean" && pooling != "last") {
        throw Failure::bad("pooling", "'pooling' must be 'mean' or 'last'", "invalid_value");
    }
    if (fields.integer("dimensions", spec.dim) != spec.dim) {
        throw Failure::bad("dimensions",
                           fmt::format("'dimensions' must be {}, those of the model", spec.dim),
                           "invalid_value");
    }
    std::vector<std::vector<std::int32_t>> texts = token_lists(fields, "input", kMostTexts, 0);
    std::int64_t tokens = 0;
    for (const auto& ids : texts) tokens += static_cast<std::int64_t>(ids.size());
    auto sink =
        std::make_shared<Vectors>(call.exchange, options_.model, encoding == "base64", tokens);
    desk_.embed(gate_.client_of(call.exchange->request()), std::move(texts), pooling == "last",
                std::move(sink));
}

void Api::tokenize(const Call& call) {
    const Fields& fields = call.fields;
    const std::string text = fields.text("content", fields.text("prompt"));
    const bool vllm = !fields.given("content");
    const std::vector<std::int32_t> ids = tokenizer_.encode(
        text, {.add_special = fields.flag("add_special_tokens", fields.flag("add_special", vllm)),
               .parse_special = fields.flag("parse_special", vllm)});
    const bool pieces = fields.flag("with_pieces");
    JsonWriter json;
    json.begin_object().key("tokens").begin_array();
    for (const std::int32_t id : ids) {
        if (pieces) {
            json.begin_object().member("id", id).member("piece", tokenizer_.piece(id)).end_object();
        } else {
            json.value(id);
        }
    }
    json.end_array().member("count", ids.size());
    json.member("max_model_len", desk_.most_positions());
    call.exchange->reply({.body = json.end_object().take()});
}

// As vLLM says it, for clients that count tokens without the model's files.
void Api::tokenizer_info(const Call& call) {
    JsonWriter json;
    json.begin_object();
    const auto add = [&](const char* name, std::optional<std::int32_t> id) {
        json.key(name);
        id ? json.value(tokenizer_.piece(*id)) : json.null();
    };
    add("bos_token", tokenizer_.bos());
    add("eos_token", tokenizer_.eos());
    add("pad_token", tokenizer_.pad());
    json.key("chat_template");
    tokenizer_.chat_template().empty() ? json.null() : json.value(tokenizer_.chat_template());
    call.exchange->reply({.body = json.end_object().take()});
}

void Api::detokenize(const Call& call) {
    std::vector<std::int32_t> ids;
    const formats::JsonValue tokens = *call.fields.find("tokens");
    for (const formats::JsonValue id : tokens) {
        if (!id.is_integer_in(0, tokenizer_.vocab_size() - 1)) {
            throw Failure::bad(
                "tokens",
                fmt::format("'tokens' has {}, which is not a token of this model", id.shown(40)),
                "invalid_value");
        }
        ids.push_back(id.get<std::int32_t>());
    }
    const std::string text = tokenizer_.decode(ids);
    JsonWriter json;
    json.begin_object().member("content", text).member("prompt", text).end_object();
    call.exchange->reply({.body = json.take()});
}

void Api::apply_template(const Call& call) {
    std::vector<std::int32_t> ids;
    std::vector<std::string> stops;
    const text::ChatText text = written(conversation(call.fields, false), call.fields, ids, stops,
                                        call.fields.flag("add_generation_prompt", true));
    JsonWriter json;
    json.begin_object().member("prompt", text.bytes).key("tokens").begin_array();
    for (const std::int32_t id : ids) json.value(id);
    call.exchange->reply({.body = json.end_array().end_object().take()});
}

void Api::count_tokens(const Call& call) {
    std::vector<std::int32_t> ids;
    std::vector<std::string> stops;
    written(conversation(call.fields, true), call.fields, ids, stops);
    JsonWriter json;
    json.begin_object().member("input_tokens", ids.size()).end_object();
    call.exchange->reply({.body = json.take()});
}

}  // namespace mr::serve
