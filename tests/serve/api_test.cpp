// Requests and answers of the API over a tiny model.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "api_cases.h"
#include "core/utf8.h"

namespace mr::serve {
namespace {

// The most memory that this process had since the last call, in bytes.
std::size_t peak_memory() {
    std::size_t kilobytes = 0;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        if (word == "VmHWM:") status >> kilobytes;
    }
    std::ofstream("/proc/self/clear_refs") << 5;
    return kilobytes << 10;
}

TEST_F(ApiTest, EchoesAreStoredOncePerPrompt) {
    open();
    const Json two = ok(
        "/v1/completions",
        {{"prompt", {"The cat", "A dog"}}, {"n", 2}, {"echo", true}, {"max_tokens", 0}})["choices"];
    ASSERT_EQ(two.size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(two[i]["text"], i < 2 ? "The cat" : "A dog");
    std::string texts[4];
    for (const Json& event : streamed(
             "/v1/completions",
             {{"prompt", {"The cat", "A dog"}}, {"n", 2}, {"echo", true}, {"max_tokens", 0}})) {
        for (const Json& choice : event["choices"]) {
            texts[choice["index"].get<std::size_t>()] += choice["text"].get<std::string>();
        }
    }
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(texts[i], i < 2 ? "The cat" : "A dog");
}

// 128 prompts of 16 kB, each 128 times, would be 256 MB.
TEST_F(ApiTest, TooManyEchoesAreRefusedBeforeTheyAreMade) {
    open();
    const text::Tokenizer& tokenizer = *desk_->model().tokenizer;
    std::int32_t longest = 0;
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        if (tokenizer.is_special(id)) continue;
        if (tokenizer.piece(id).size() > tokenizer.piece(longest).size()) longest = id;
    }
    const std::size_t count = (16 << 10) / tokenizer.piece(longest).size();
    ASSERT_LT(count, kContext);
    const Json body = {{"prompt", std::vector(128, std::vector(count, longest))},
                       {"n", 128},
                       {"echo", true},
                       {"max_tokens", 1}};
    const Json small = {{"prompt", "a"}, {"max_tokens", 1}};
    ok("/v1/completions", small);
    peak_memory();
    const std::size_t before = peak_memory();
    EXPECT_EQ(refused("/v1/completions", body)["param"], "n");
    EXPECT_LT(peak_memory(), before + (128 << 20));
}

TEST_F(ApiTest, NamesOfModelsInPathsAreDecoded) {
    open();
    for (const char* name : {"tiny", "t%69ny", "a%20b%25"}) {
        const auto [status, answer] = get(std::string("/v1/models/") + name);
        EXPECT_EQ(status, 200) << name << answer;
    }
    for (const auto& [name, wanted] : {std::pair{"tin%79%79", 404},
                                       {"%00", 404},
                                       {"%", 400},
                                       {"tiny%2", 400},
                                       {"%-1", 400},
                                       {"%7gtiny", 400}}) {
        const auto [status, answer] = get(std::string("/v1/models/") + name);
        EXPECT_EQ(status, wanted) << name << answer;
        EXPECT_EQ(Json::parse(answer)["error"]["param"], "model");
    }
}

// The longest list that the table of fields allows is read, and a longer one is refused as such.
TEST_F(ApiTest, DetokenizeTakesAsManyTokensAsItSays) {
    open();
    std::string body = R"({"tokens":[)";
    for (int i = 0; i < 2000000; ++i) body += "5,";
    const auto ask = [&](const std::string& end) {
        const auto exchange = std::make_shared<CaughtExchange>("/detokenize", body + end);
        api_->handle(exchange);
        return exchange->wait();
    };
    body.pop_back();
    EXPECT_EQ(ask("]}").first, 200);
    const auto [status, answer] = ask(",5]}");
    EXPECT_EQ(status, 400);
    EXPECT_EQ(Json::parse(answer)["error"]["param"], "tokens") << answer;
}

// Also where the transport refuses the request before the API sees it.
TEST(Api, RefusalsHaveTheFormatOfTheirRoute) {
    const struct {
        int status;
        const char *openai, *anthropic;
    } cases[] = {{408, "invalid_request_error", "invalid_request_error"},
                 {413, "invalid_request_error", "request_too_large"},
                 {431, "invalid_request_error", "invalid_request_error"},
                 {500, "server_error", "api_error"},
                 {503, "server_error", "api_error"}};
    for (const auto& c : cases) {
        const auto body = [&](const char* path) {
            HttpRequest head;
            head.path = path;
            return Json::parse(Api::refuse(head, c.status, "no").body);
        };
        for (const char* path : {"", "/v1/chat/completions"}) {
            EXPECT_EQ(body(path)["error"]["type"], c.openai) << path << c.status;
            EXPECT_FALSE(body(path).contains("type"));
        }
        for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
            EXPECT_EQ(body(path)["type"], "error") << path;
            EXPECT_EQ(body(path)["error"]["type"], c.anthropic) << path << c.status;
        }
    }
}

const Json kTalk = {{{"role", "user"}, {"content", "Hi"}}};

Json tool(const Json& function) { return {{{"type", "function"}, {"function", function}}}; }

// A template that breaks on some tools and variables.
void use_breaking_template(text::TokenizerData& data) {
    data.chat_template =
        "{% for t in tools or [] %}{{ t.function.name + t.function.description }}{% endfor %}"
        "{% if n is defined %}{{ n + 1 }}{% endif %}own:{{ messages[0].content }}";
}

TEST_F(ApiTest, RequestsThatBreakTheTemplateAreRefused) {
    open(use_breaking_template);
    const Json good = tool({{"name", "f"}, {"description", "x"}});
    const Json bad = tool({{"name", "f"}, {"description", 3}});
    const auto asked = [](const Json& more) {
        Json body = {{"messages", kTalk}};
        body.update(more);
        return body;
    };
    const auto prompt = [&](const Json& more) {
        return ok("/apply-template", asked(more))["prompt"].get<std::string>();
    };
    EXPECT_EQ(prompt(Json::object()), "own:Hi");
    EXPECT_EQ(prompt({{"tools", good}}), "fxown:Hi");
    EXPECT_EQ(prompt({{"chat_template_kwargs", {{"n", 1}}}}), "2own:Hi");
    for (const char* path : {"/apply-template", "/v1/chat/completions"}) {
        const Json kwargs = refused(path, asked({{"chat_template_kwargs", {{"n", "a"}}}}));
        EXPECT_EQ(kwargs["param"], "chat_template_kwargs");
        EXPECT_NE(kwargs["message"].get<std::string>().find("chat template: line 1: "),
                  std::string::npos)
            << kwargs;
        EXPECT_EQ(refused(path, asked({{"tools", bad}}))["param"], "tools");
        EXPECT_EQ(refused(path, asked({{"tools", good},
                                       {"chat_template_kwargs", {{"n", "a"}}}}))["param"],
                  "chat_template_kwargs");
        EXPECT_EQ(
            refused(path, asked({{"tools", bad}, {"chat_template_kwargs", {{"n", 1}}}}))["param"],
            "tools");
    }
    // Where the model's template never works, its format is used with and without variables.
    open([](text::TokenizerData& data) { data.chat_template = "{{ messages[0].nonsense() }}"; });
    EXPECT_EQ(prompt(Json::object()), "User: Hi\nAssistant:");
    EXPECT_EQ(prompt({{"chat_template_kwargs", {{"n", 1}}}}), "User: Hi\nAssistant:");
}

TEST_F(ApiTest, PublicTemplatesTakeToolsWithoutDescriptionAndParameters) {
    int shown = 0;
    for (const auto& entry : std::filesystem::directory_iterator(test::reference("templates"))) {
        if (entry.path().extension() != ".jinja") continue;
        std::ostringstream source;
        source << std::ifstream(entry.path()).rdbuf();
        open([&](text::TokenizerData& data) { data.chat_template = source.str(); });
        const std::string usual =
            ok("/apply-template", {{"messages", kTalk}})["prompt"].get<std::string>();
        for (const Json& function :
             {Json{{"name", "now"}}, Json{{"name", "now"}, {"parameters", nullptr}},
              Json{{"name", "now"}, {"description", ""}, {"parameters", {{"type", "object"}}}}}) {
            const auto [status, answer] =
                send("/apply-template", {{"messages", kTalk}, {"tools", tool(function)}});
            ASSERT_EQ(status, 200) << entry.path() << answer;
            const std::string prompt = Json::parse(answer)["prompt"];
            EXPECT_NE(prompt.find("now"), std::string::npos) << entry.path() << prompt;
            // The template's own format: its generation prompt comes last.
            EXPECT_EQ(prompt.substr(prompt.size() - 8), usual.substr(usual.size() - 8))
                << entry.path();
            ++shown;
        }
    }
    EXPECT_EQ(shown, 3 * 12);
}

TEST_F(ApiTest, TemplatesSeeOneTime) {
    open([](text::TokenizerData& data) {
        data.chat_template =
            "{% if tools %}{{ tools[0].function.name }}{% endif %}{{ strftime_now('%H:%M:%S') }}";
    });
    const std::time_t start = std::time(nullptr);
    const std::string now = ok("/apply-template", {{"messages", kTalk}})["prompt"];
    while (std::time(nullptr) <= start + 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const Json variables = {{"x", 1}};
    EXPECT_EQ(ok("/apply-template", {{"messages", kTalk}})["prompt"], now);
    EXPECT_EQ(
        ok("/apply-template", {{"messages", kTalk}, {"chat_template_kwargs", variables}})["prompt"],
        now);
    EXPECT_EQ(
        ok("/apply-template", {{"messages", kTalk}, {"tools", tool({{"name", "f"}})}})["prompt"],
        "f" + now);
}

// A hot text of a tiny model: bytes, line ends and rare characters, most of them improbable.
TEST_F(ApiTest, TheDrawnTokenIsAmongTheTopLogprobs) {
    open();
    int bytes = 0, lines = 0, beyond = 0;
    for (int seed = 0; seed < 20; ++seed) {
        const Json made = ok("/v1/completions", {{"prompt", "Once"},
                                                 {"max_tokens", 100},
                                                 {"temperature", 2},
                                                 {"logprobs", 3},
                                                 {"ignore_eos", true},
                                                 {"seed", seed}})["choices"][0]["logprobs"];
        for (std::size_t i = 0; i < made["tokens"].size(); ++i) {
            const std::string token = made["tokens"][i];
            const Json& top = made["top_logprobs"][i];
            ASSERT_TRUE(top.contains(token)) << token << top;
            EXPECT_EQ(top[token], made["token_logprobs"][i]);
            bytes += token.starts_with("bytes:\\x") ? 1 : 0;
            lines += token == "\n" ? 1 : 0;
            beyond += top.size() > 3 ? 1 : 0;
            EXPECT_EQ(token.find("\xEF\xBF\xBD"), std::string::npos) << token;
        }
    }
    EXPECT_GT(bytes, 0);
    EXPECT_GT(lines, 0);
    EXPECT_GT(beyond, 0);
}

// The entries of `logprobs` of a completion, and of the same completion as a stream.
std::pair<Json, Json> entries_of(const Json& whole, const std::vector<Json>& events) {
    Json streamed;
    for (const Json& event : events) {
        const Json& logprobs = event["choices"][0]["logprobs"];
        if (logprobs.is_null()) continue;
        for (const auto& [name, list] : logprobs.items()) {
            for (const Json& entry : list) streamed[name].push_back(entry);
        }
    }
    return {whole["choices"][0]["logprobs"], streamed};
}

// The end of the text may be the beginning of the stop string, so it is held back until the end
// token is drawn.
TEST_F(ApiTest, StreamsHaveTheLogprobsOfBodies) {
    open();
    const std::int32_t eos = *desk_->model().tokenizer->eos();
    Json asked = {{"prompt", "Once"}, {"max_tokens", 40}, {"temperature", 0}, {"logprobs", 2}};
    int held = 0;
    for (int bias = 1; bias < 40; ++bias) {
        asked["logit_bias"][std::to_string(eos)] = bias / 4.0;
        asked.erase("stop");
        const Json plain = ok("/v1/completions", asked);
        const std::string text = plain["choices"][0]["text"];
        if (plain["choices"][0]["finish_reason"] != "stop" || text.empty()) continue;
        if (static_cast<unsigned char>(text.back()) > 127) continue;
        asked["stop"] = {text.substr(text.size() - 1) + "QQQ"};
        const auto [whole, stream] =
            entries_of(ok("/v1/completions", asked), streamed("/v1/completions", asked));
        EXPECT_EQ(whole, plain["choices"][0]["logprobs"]);
        EXPECT_EQ(stream, whole);
        ++held;
    }
    EXPECT_GT(held, 0);
}

TEST_F(ApiTest, CachedTokensAreThoseFoundInTheCache) {
    open();
    const std::vector<int> prompt(100, 7);
    const auto cached = [&](int tokens, int choices) {
        const Json usage = ok("/v1/completions", {{"prompt", prompt},
                                                  {"max_tokens", tokens},
                                                  {"n", choices},
                                                  {"ignore_eos", true}})["usage"];
        EXPECT_EQ(usage["prompt_tokens"], 100);
        return usage["prompt_tokens_details"]["cached_tokens"].get<int>();
    };
    EXPECT_EQ(cached(0, 1), 0);
    EXPECT_EQ(metrics_.found_tokens, 0U);
    EXPECT_EQ(cached(1, 1), 0);
    EXPECT_EQ(metrics_.found_tokens, 0U);
    EXPECT_EQ(cached(0, 1), 0);
    EXPECT_EQ(metrics_.found_tokens, 0U);
    const int found = cached(1, 1);
    EXPECT_GT(found, 90);
    EXPECT_LT(found, 100);  // the last token is computed for its logits
    EXPECT_EQ(metrics_.found_tokens, static_cast<std::uint64_t>(found));
}

std::u32string characters(const std::string& utf8) {
    std::u32string out;
    for (std::size_t at = 0; at < utf8.size();) {
        const Utf8Char c = utf8_at(utf8, at);
        EXPECT_TRUE(c.valid);
        out += c.code;
        at += c.size;
    }
    return out;
}

TEST_F(ApiTest, OffsetsCountCharacters) {
    open();
    int checked = 0, wide = 0;
    for (int seed = 0; seed < 20; ++seed) {
        const Json asked = {{"prompt", seed % 2 ? "Once" : ""},
                            {"max_tokens", 100},
                            {"temperature", 2},
                            {"logprobs", 0},
                            {"seed", seed},
                            {"stop", {"QQ"}},
                            {"ignore_eos", true}};
        const Json made = ok("/v1/completions", asked);
        const auto [whole, stream] = entries_of(made, streamed("/v1/completions", asked));
        EXPECT_EQ(stream, whole);
        const std::u32string text = characters(made["choices"][0]["text"]);
        for (std::size_t i = 0; i < whole["tokens"].size(); ++i) {
            const std::string name = whole["tokens"][i];
            const auto at = whole["text_offset"][i].get<std::size_t>();
            ASSERT_LE(at, text.size());
            const auto id = desk_->model().tokenizer->find(name);
            if (name.starts_with("bytes:") || (id && desk_->model().tokenizer->is_special(*id))) {
                continue;
            }
            std::u32string token = characters(name);
            if (i == 0 && seed % 2 == 0 && token[0] == U' ') token.erase(0, 1);  // not printed
            EXPECT_EQ(text.substr(at, token.size()) == token, true) << seed << " " << i << name;
            ++checked;
        }
        wide +=
            std::any_of(text.begin(), text.end(), [](char32_t c) { return c > 127 && c != 0xFFFD; })
                ? 1
                : 0;
    }
    EXPECT_GT(checked, 500);
    EXPECT_GT(wide, 5);
}

}  // namespace
}  // namespace mr::serve
