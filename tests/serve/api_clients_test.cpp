// What clients of other servers send: log-probabilities of prompts, and further names and fields.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "api_cases.h"
#include "core/utf8.h"
#include "decode/scheduler_cases.h"

namespace mr::serve::api_clients_test {
namespace {

class ApiClients : public ApiTest {
  protected:
    // The NLL of a prompt's tokens after the first, by an engine of its own.
    std::vector<double> nll_of(const std::vector<std::int32_t>& prompt) {
        if (!plain_) {
            model::EngineOptions options;
            options.threads = 1;
            options.context = kContext;
            options.max_logits = model::kCut;
            plain_ = model::make_engine(
                std::make_shared<model::Model>(model::load_model(test::reference("llama2"))),
                options);
        }
        return test::plain_nll(*plain_, prompt);
    }
    std::int32_t eos() const { return *desk_->model().tokenizer->eos(); }

    std::unique_ptr<model::Engine> plain_;
};

const Json kTalk = {{{"role", "user"}, {"content", "Hi"}}};

// All entries of the choices' `logprobs`, whole or from a stream, and their texts.
struct Listed {
    std::vector<Json> entries;
    std::vector<std::string> texts;
};
Listed listed(const std::vector<Json>& events, std::size_t choices) {
    Listed out{std::vector<Json>(choices), std::vector<std::string>(choices)};
    for (const Json& event : events) {
        for (const Json& choice : event["choices"]) {
            const auto i = choice["index"].get<std::size_t>();
            out.texts[i] += choice["text"].get<std::string>();
            if (choice["logprobs"].is_null()) continue;
            for (const auto& [name, list] : choice["logprobs"].items()) {
                for (const Json& entry : list) out.entries[i][name].push_back(entry);
            }
        }
    }
    return out;
}

TEST_F(ApiClients, EchoHasTheLogprobsOfPrompts) {
    open();
    const std::int32_t vocab = desk_->model().spec.vocab;
    std::vector<std::vector<std::int32_t>> prompts;
    for (const int length : {1, 2, 64, 65, 300}) {
        std::vector<std::int32_t> ids;
        for (int i = 0; i < length; ++i) ids.push_back((i * i * 37 + length) % vocab);
        prompts.push_back(ids);
    }
    for (const int made : {0, 1, 5}) {
        for (const int choices : {1, 2}) {
            const Json asked = {{"prompt", prompts}, {"echo", true},      {"logprobs", 2},
                                {"n", choices},      {"seed", 1},         {"max_tokens", made},
                                {"temperature", 0},  {"ignore_eos", true}};
            const std::size_t all = prompts.size() * static_cast<std::size_t>(choices);
            const Json whole = ok("/v1/completions", asked);
            const Listed got = listed({whole}, all);
            const Listed stream = listed(streamed("/v1/completions", asked), all);
            EXPECT_EQ(stream.entries, got.entries);
            EXPECT_EQ(stream.texts, got.texts);
            for (std::size_t i = 0; i < all; ++i) {
                const std::vector<std::int32_t>& prompt =
                    prompts[i / static_cast<std::size_t>(choices)];
                const Json& list = got.entries[i];
                const std::size_t count = prompt.size() + static_cast<std::size_t>(made);
                for (const char* name :
                     {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
                    ASSERT_EQ(list[name].size(), count) << name;
                }
                EXPECT_TRUE(list["token_logprobs"][0].is_null());
                EXPECT_TRUE(list["top_logprobs"][0].is_null());
                const std::vector<double> nll = nll_of(prompt);
                for (std::size_t t = 1; t < count; ++t) {
                    const double own = list["token_logprobs"][t];
                    const Json& top = list["top_logprobs"][t];
                    ASSERT_EQ(top[list["tokens"][t].get<std::string>()], own);
                    ASSERT_GE(top.size(), 1U);
                    ASSERT_LE(top.size(), 3U);
                    if (t < prompt.size()) {
                        ASSERT_NEAR(-own, nll[t - 1], 1e-4);
                    }
                }
            }
        }
    }
}

// What lm-eval reads from an echo, added up, is what `millrace eval` says of the same text.
TEST_F(ApiClients, EchoesAddUpToTheEvaluation) {
    open();
    model::EngineOptions options;
    options.threads = 1;
    options.context = kContext;
    options.max_logits = decode::eval_logit_rows(desk_->model().spec);
    const auto engine = model::make_engine(
        std::make_shared<model::Model>(model::load_model(test::reference("llama2"))), options);
    std::string longer;
    for (int i = 0; i < 40; ++i) longer += "Tom saw " + std::to_string(i * i) + " birds. ";
    const std::vector<std::string> texts = {"a", "Once upon a time there was a cat.\nThe end.",
                                            " caf\xC3\xA9 \xF0\x9F\x98\x80", longer};
    for (const std::string& text : texts) {
        const decode::EvalResult whole = decode::evaluate(*engine, text, {});
        for (const int made : {0, 1}) {
            const Json list =
                ok("/v1/completions",
                   {{"prompt", text},
                    {"echo", true},
                    {"logprobs", 1},
                    {"max_tokens", made},
                    {"temperature", 0},
                    {"ignore_eos", true}})["choices"][0]["logprobs"]["token_logprobs"];
            const auto end = static_cast<std::size_t>(whole.tokens) + 1;  // the first has none
            ASSERT_EQ(list.size(), end + static_cast<std::size_t>(made)) << text;
            EXPECT_TRUE(list[0].is_null());
            double nats = 0;
            for (std::size_t i = 1; i < end; ++i) nats -= list[i].get<double>();
            const auto tokens = static_cast<double>(whole.tokens);
            EXPECT_NEAR(nats / tokens, whole.nll, 1e-4) << text;
            EXPECT_GT(whole.nll, 0.1);
        }
    }
}

// Where a text has no byte tokens, it is the text of its tokens at their offsets.
TEST_F(ApiClients, OffsetsOfEchoesCountThePrompt) {
    open();
    const Json made = ok("/v1/completions", {{"prompt", "Once upon a time there was"},
                                             {"echo", true},
                                             {"logprobs", 0},
                                             {"max_tokens", 8},
                                             {"temperature", 0},
                                             {"ignore_eos", true}})["choices"][0];
    const std::string text = made["text"];
    const Json& list = made["logprobs"];
    int checked = 0;
    for (std::size_t i = 0; i < list["tokens"].size(); ++i) {
        const std::string token = list["tokens"][i];
        const auto at = list["text_offset"][i].get<std::size_t>();
        const auto id = desk_->model().tokenizer->find(token);
        if (token.starts_with("bytes:") || (id && desk_->model().tokenizer->is_special(*id))) {
            continue;
        }
        if (std::any_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at),
                        [](char c) { return c < 0; })) {
            break;  // offsets count characters
        }
        // The space before the first word is not printed.
        const std::string shown = at == 0 && token[0] == ' ' ? token.substr(1) : token;
        EXPECT_EQ(text.substr(at, shown.size()), shown) << i;
        ++checked;
    }
    EXPECT_GT(checked, 6);
    EXPECT_EQ(list["text_offset"][0], 0);
}

// lm-eval leaves out the last entry, which is that of the token it asks for.
TEST_F(ApiClients, TheEndTokenOfAnEchoHasAnEntry) {
    open();
    Json asked = {{"prompt", {5, 6, 7}},
                  {"max_tokens", 1},
                  {"logprobs", 1},
                  {"logit_bias", {{std::to_string(eos()), 100}}}};
    EXPECT_EQ(ok("/v1/completions", asked)["choices"][0]["logprobs"]["tokens"].size(), 0U);
    asked["echo"] = true;
    const Json made = ok("/v1/completions", asked)["choices"][0];
    EXPECT_EQ(made["finish_reason"], "stop");
    EXPECT_EQ(made["logprobs"]["tokens"].size(), 4U);
    EXPECT_EQ(listed(streamed("/v1/completions", asked), 1).entries[0], made["logprobs"]);
}

TEST_F(ApiClients, PromptLogprobsAreVllms) {
    open();
    const std::vector<std::int32_t> prompt = {5, 60, 7, 8, 7, 8};
    const std::vector<double> nll = nll_of(prompt);
    for (const int count : {0, 1, 4}) {
        const Json made =
            ok("/v1/completions",
               {{"prompt", prompt}, {"max_tokens", 0}, {"prompt_logprobs", count}})["choices"][0];
        EXPECT_EQ(made["text"], "");
        EXPECT_TRUE(made["logprobs"].is_null());
        const Json& list = made["prompt_logprobs"];
        ASSERT_EQ(list.size(), prompt.size());
        EXPECT_TRUE(list[0].is_null());
        for (std::size_t t = 1; t < list.size(); ++t) {
            const Json& own = list[t][std::to_string(prompt[t])];
            ASSERT_NEAR(own["logprob"].get<double>(), -nll[t - 1], 1e-4);
            const int rank = own["rank"];
            EXPECT_EQ(own["decoded_token"], desk_->model().tokenizer->piece(prompt[t]));
            ASSERT_EQ(list[t].size(), static_cast<std::size_t>(count + (rank > count ? 1 : 0)));
            for (const auto& [id, other] : list[t].items()) {
                EXPECT_EQ(other["rank"].get<int>() < rank, other["logprob"] > own["logprob"]) << id;
            }
        }
    }
    // Beside `echo`, with another count; and of a conversation.
    const Json both = ok("/v1/completions", {{"prompt", prompt},
                                             {"max_tokens", 1},
                                             {"echo", true},
                                             {"logprobs", 3},
                                             {"prompt_logprobs", 0}})["choices"][0];
    EXPECT_EQ(both["logprobs"]["tokens"].size(), prompt.size() + 1);
    EXPECT_EQ(both["prompt_logprobs"][3].size(), 1U);
    EXPECT_GE(both["logprobs"]["top_logprobs"][3].size(), 3U);
    const Json chat =
        ok("/v1/chat/completions",
           {{"messages", kTalk}, {"max_tokens", 3}, {"n", 2}, {"prompt_logprobs", 2}});
    const Json shown = ok("/apply-template", {{"messages", kTalk}})["tokens"];
    ASSERT_EQ(chat["prompt_logprobs"].size(), shown.size());
    const std::vector<double> talk = nll_of(shown.get<std::vector<std::int32_t>>());
    for (std::size_t t = 1; t < shown.size(); ++t) {
        const Json& own = chat["prompt_logprobs"][t][std::to_string(shown[t].get<int>())];
        EXPECT_NEAR(own["logprob"].get<double>(), -talk[t - 1], 1e-4);
    }
    EXPECT_FALSE(ok("/v1/chat/completions", {{"messages", kTalk}, {"max_tokens", 1}})
                     .contains("prompt_logprobs"));
}

TEST_F(ApiClients, PromptLogprobsThatCannotBe) {
    open();
    for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
        Json asked = {{"prompt_logprobs", 1}, {"stream", true}};
        path == std::string("/v1/completions") ? asked["prompt"] = "a" : asked["messages"] = kTalk;
        EXPECT_EQ(refused(path, asked)["param"], "prompt_logprobs");
        asked["stream"] = false;
        asked["prompt_logprobs"] = 21;
        EXPECT_EQ(refused(path, asked)["param"], "prompt_logprobs");
    }
    // 128 prompts of 4,000 tokens with 21 entries each.
    const std::vector<std::vector<std::int32_t>> prompts(128, std::vector<std::int32_t>(4000, 5));
    for (const char* field : {"logprobs", "prompt_logprobs"}) {
        EXPECT_EQ(
            refused("/v1/completions",
                    {{"prompt", prompts}, {"echo", true}, {"max_tokens", 0}, {field, 20}})["param"],
            "prompt");
    }
    // The context has room for the prompt alone.
    const std::vector<std::int32_t> longest(kContext, 5);
    Json asked = {{"prompt", longest}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 1}};
    EXPECT_EQ(refused("/v1/completions", asked)["code"], "context_length_exceeded");
    asked["max_tokens"] = 0;
    EXPECT_EQ(ok("/v1/completions", asked)["choices"][0]["logprobs"]["tokens"].size(),
              longest.size());
}

TEST_F(ApiClients, PenaltiesHaveOtherNames) {
    open();
    const auto text = [&](const Json& more) {
        Json asked = {{"prompt", "Once upon a time"}, {"max_tokens", 60}, {"temperature", 0}};
        asked.update(more);
        return ok("/v1/completions", asked)["choices"][0]["text"].get<std::string>();
    };
    const std::string plain = text(Json::object());
    const std::string penalised = text({{"repetition_penalty", 1.5}});
    EXPECT_NE(penalised, plain);
    EXPECT_EQ(text({{"repeat_penalty", 1.5}}), penalised);
    EXPECT_EQ(text({{"repeat_penalty", 1.5}, {"repetition_penalty", 1.5}}), penalised);
    EXPECT_EQ(text({{"repeat_penalty", 1.5}, {"repeat_last_n", 64}}), penalised);
    EXPECT_EQ(text({{"repeat_penalty", 1.5}, {"repeat_last_n", 0}}), plain);
    const std::string all = text({{"repeat_penalty", 1.5}, {"repeat_last_n", -1}});
    EXPECT_EQ(all, text({{"repeat_penalty", 1.5}, {"repeat_window", 4096}}));
    EXPECT_NE(all, text({{"repeat_penalty", 1.5}, {"repeat_window", 5}}));
    const Json asked = {{"prompt", "a"}, {"repeat_penalty", 1.5}, {"repetition_penalty", 1.2}};
    EXPECT_EQ(refused("/v1/completions", asked)["param"], "repeat_penalty");
}

TEST_F(ApiClients, TextsEndAtStopTokens) {
    open();
    Json asked = {{"prompt", "Once upon a time"},
                  {"max_tokens", 12},
                  {"seed", 3},
                  {"logprobs", 0},
                  {"ignore_eos", true}};
    const Json plain = ok("/v1/completions", asked)["choices"][0];
    std::int32_t id = -1;  // of a token that prints something, in the middle
    for (std::size_t i = 3; i < 7 && id < 0; ++i) {
        const std::string token = plain["logprobs"]["tokens"][i];
        if (!token.starts_with("bytes:")) id = *desk_->model().tokenizer->find(token);
    }
    ASSERT_GE(id, 0);
    asked["stop_token_ids"] = {id};
    const auto count = [&] {
        const Json made = ok("/v1/completions", asked)["choices"][0];
        const Json& tokens = made["logprobs"]["tokens"];
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            EXPECT_EQ(tokens[i], plain["logprobs"]["tokens"][i]);
        }
        EXPECT_EQ(made["finish_reason"], "stop");
        EXPECT_TRUE(plain["text"].get<std::string>().starts_with(made["text"].get<std::string>()));
        return std::pair(tokens.size(), made["text"].get<std::string>().size());
    };
    const auto [without, text] = count();
    ASSERT_LE(without, 6U);
    asked["include_stop_str_in_output"] = true;
    const auto [with, longer] = count();
    EXPECT_EQ(with, without + 1);
    EXPECT_GT(longer, text);
    asked["min_tokens"] = 12;
    EXPECT_EQ(ok("/v1/completions", asked)["usage"]["completion_tokens"], 12);
    for (const Json& wrong : {Json{-1}, Json{1 << 20}, Json{"a"}, Json{1.5}}) {
        asked["stop_token_ids"] = wrong;
        EXPECT_EQ(refused("/v1/completions", asked)["param"], "stop_token_ids");
    }
}

TEST_F(ApiClients, SpecialTokensAreShownIfAskedFor) {
    open();
    Json asked = {{"prompt", "a"},
                  {"max_tokens", 2},
                  {"ignore_eos", true},
                  {"logit_bias", {{std::to_string(eos()), 100}}}};
    EXPECT_EQ(ok("/v1/completions", asked)["choices"][0]["text"], "");
    asked["skip_special_tokens"] = false;
    const std::string twice = ok("/v1/completions", asked)["choices"][0]["text"];
    const std::string piece = desk_->model().tokenizer->piece(eos());
    EXPECT_EQ(twice, piece + piece);
    // The echo has them, too, and offsets count them.
    asked["echo"] = true;
    asked["logprobs"] = 0;
    asked["prompt"] = {5, eos()};
    const Json made = ok("/v1/completions", asked)["choices"][0];
    EXPECT_TRUE(made["text"].get<std::string>().ends_with(piece + piece + piece));
    EXPECT_EQ(made["logprobs"]["text_offset"][3].get<std::size_t>() -
                  made["logprobs"]["text_offset"][1].get<std::size_t>(),
              2 * piece.size());
}

TEST_F(ApiClients, APromptMayStayOutOfTheCache) {
    open();
    const std::vector<int> prompt(100, 7);
    const auto cached = [&](bool cache) {
        return ok("/v1/completions",
                  {{"prompt", prompt},
                   {"max_tokens", 1},
                   {"cache_prompt", cache}})["usage"]["prompt_tokens_details"]["cached_tokens"]
            .get<int>();
    };
    EXPECT_EQ(cached(false), 0);
    EXPECT_EQ(cached(true), 0);
    EXPECT_EQ(cached(false), 0);
    EXPECT_GT(cached(true), 90);
}

// lm-eval takes the ids of the special tokens from their texts.
TEST_F(ApiClients, TokensAreToldAsVllmDoes) {
    open();
    const auto [status, body] = get("/tokenizer_info");
    ASSERT_EQ(status, 200) << body;
    const Json info = Json::parse(body);
    const text::Tokenizer& tokenizer = *desk_->model().tokenizer;
    const auto tokens = [&](const Json& asked) { return ok("/tokenize", asked)["tokens"]; };
    for (const auto& [name, id] :
         {std::pair{"bos_token", tokenizer.bos()}, {"eos_token", tokenizer.eos()}}) {
        EXPECT_EQ(tokens({{"prompt", info[name]}, {"add_special_tokens", false}}),
                  Json::array({*id}));
        EXPECT_NE(tokens({{"content", info[name]}}), Json::array({*id}));
    }
    EXPECT_TRUE(info["pad_token"].is_null());
    const Json plain = tokens({{"content", "a cat"}});
    EXPECT_EQ(tokens({{"prompt", "a cat"}, {"add_special_tokens", false}}), plain);
    EXPECT_EQ(tokens({{"prompt", "a cat"}})[0], *tokenizer.bos());
    EXPECT_EQ(tokens({{"prompt", "a cat"}}).size(), plain.size() + 1);
    EXPECT_EQ(tokens({{"content", "a cat"}, {"add_special_tokens", true}}).size(),
              plain.size() + 1);
}

TEST_F(ApiClients, AnthropicsFormatBindsTheAnswer) {
    open();
    const Json schema = {{"type", "object"},
                         {"properties", {{"place", {{"enum", {"hill", "lake"}}}}}},
                         {"required", {"place"}},
                         {"additionalProperties", false}};
    const auto asked = [](const Json& config) {
        return Json{{"messages", kTalk}, {"max_tokens", 60}, {"output_config", config}};
    };
    const Json format = {{"type", "json_schema"}, {"schema", schema}};
    const Json made = ok("/v1/messages", asked({{"format", format}, {"effort", "low"}}));
    EXPECT_EQ(made["stop_reason"], "end_turn");
    const Json place = Json::parse(made["content"][0]["text"].get<std::string>())["place"];
    EXPECT_TRUE(place == "hill" || place == "lake") << place;
    ok("/v1/messages", asked({{"effort", "high"}}));
    ok("/v1/messages/count_tokens", {{"messages", kTalk}, {"output_config", {{"format", format}}}});
    Json wrong = format;
    wrong["schema"]["properties"]["place"] = {{"type", "nothing"}};
    const std::string param =
        refused("/v1/messages", asked({{"format", wrong}}))["param"].get<std::string>();
    EXPECT_TRUE(param.starts_with("output_config.format.schema")) << param;
    EXPECT_EQ(refused("/v1/messages", asked({{"format", {{"type", "json_object"}}}}))["param"],
              "output_config.format.type");
    EXPECT_EQ(refused("/v1/messages", asked({{"format", {{"type", "json_schema"}}}}))["param"],
              "output_config.format.schema");
}

TEST_F(ApiClients, ThinkingOfEarlierTurnsIsLeftOut) {
    open();
    const auto tokens = [&](const Json& answer) {
        const Json talk = {{{"role", "user"}, {"content", "Hi"}},
                           {{"role", "assistant"}, {"content", answer}},
                           {{"role", "user"}, {"content", "Where?"}}};
        ok("/v1/messages", {{"messages", talk}, {"max_tokens", 2}});
        return ok("/v1/messages/count_tokens", {{"messages", talk}})["input_tokens"].get<int>();
    };
    const Json text = {{"type", "text"}, {"text", "There."}};
    const Json thinking = {
        {"type", "thinking"}, {"thinking", "A long thought."}, {"signature", "x"}};
    const Json hidden = {{"type", "redacted_thinking"}, {"data", "abc="}};
    const int plain = tokens(Json::array({text}));
    EXPECT_EQ(tokens(Json::array({thinking, text})), plain);
    EXPECT_EQ(tokens(Json::array({hidden, thinking, text})), plain);
    EXPECT_LT(tokens(Json::array({thinking})), plain);
    const auto fails = [&](const char* role, const Json& block) {
        const Json talk = {{{"role", role}, {"content", Json::array({block})}},
                           {{"role", "user"}, {"content", "Where?"}}};
        return refused("/v1/messages", {{"messages", talk}, {"max_tokens", 2}})["param"]
            .get<std::string>();
    };
    EXPECT_EQ(fails("user", thinking), "messages[0].content[0]");
    EXPECT_EQ(fails("assistant", {{"type", "thinking"}}), "messages[0].content[0].thinking");
    EXPECT_EQ(fails("assistant", {{"type", "redacted_thinking"}, {"data", 3}}),
              "messages[0].content[0].data");
}

}  // namespace
}  // namespace mr::serve::api_clients_test
