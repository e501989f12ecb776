// Templates compared with jinja2's results, with transformers' settings (tests/reference/
// make_templates.py), and with users who write special tokens.
#include <algorithm>
#include <map>

#include "core/error.h"
#include "text/jinja/template.h"
#include "text/jinja/value_json.h"
#include "text_data.h"

namespace mr::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

const std::string kFolder = std::string(MR_SOURCE_DIR) + "/tests/reference/templates/";

const Json& recorded() {
    static const Json json = Json::parse(read_all(kFolder + "expected.json"));
    return json;
}

// 2024-07-26T09:05:03, a Friday.
std::tm recorded_time() {
    std::tm time{};
    time.tm_year = 124;
    time.tm_mon = 6;
    time.tm_mday = 26;
    time.tm_hour = 9;
    time.tm_min = 5;
    time.tm_sec = 3;
    time.tm_wday = 5;
    time.tm_yday = 207;
    return time;
}

void add(Variables& variables, const Json& object, bool user) {
    for (const auto& [name, value] : object.items()) {
        variables.emplace_back(name, value_of_json(value.dump(), user));
    }
}

void expect_as_recorded(const Json& recording, const Template& parsed, const Variables& variables,
                        const std::string& what) {
    try {
        const MarkedText text = parsed.render(variables, {.now = recorded_time()});
        ASSERT_TRUE(recording.contains("text")) << what << " gave " << text.bytes();
        EXPECT_EQ(text.bytes(), recording["text"].get<std::string>()) << what;
    } catch (const Refusal& refusal) {
        ASSERT_TRUE(recording.contains("refused")) << what << ": " << refusal.what();
        EXPECT_NE(std::string(refusal.what()).find(recording["refused"].get<std::string>()),
                  std::string::npos)
            << refusal.what();
    } catch (const Error& error) {
        EXPECT_TRUE(recording.contains("error")) << what << ": " << error.what();
        EXPECT_NE(std::string(error.what()).find(": line "), std::string::npos) << error.what();
    }
}

TEST(JinjaReference, SmallTemplatesGiveWhatJinjaGives) {
    Variables variables;
    add(variables, recorded()["variables"], true);
    ASSERT_GT(recorded()["small"].size(), 600u);
    for (const Json& c : recorded()["small"]) {
        const std::string source = c["source"];
        try {
            expect_as_recorded(c, Template(source, "small"), variables, source);
        } catch (const Error& error) {
            EXPECT_TRUE(c.contains("error")) << source << ": " << error.what();
        }
    }
}

Variables variables_of(const Json& model, const Json& talk, bool prompt) {
    Variables variables;
    add(variables, model["tokens"], false);
    add(variables, {{"messages", talk["messages"]}}, true);
    add(variables, {{"add_generation_prompt", prompt}, {"tools", nullptr}, {"documents", nullptr}},
        false);
    if (talk.contains("more")) add(variables, talk["more"], true);
    return variables;
}

std::map<std::string, Template> load_templates() {
    std::map<std::string, Template> out;
    for (const auto& [name, model] : recorded()["models"].items()) {
        out.try_emplace(name, read_all(kFolder + name + ".jinja"), name);
    }
    return out;
}

TEST(JinjaReference, ConversationsComeOutAsJinjaWritesThem) {
    const std::map<std::string, Template> templates = load_templates();
    ASSERT_GE(templates.size(), 12u);
    ASSERT_GT(recorded()["renderings"].size(), 250u);
    for (const Json& r : recorded()["renderings"]) {
        const std::string name = r["model"];
        const std::string talk = r["talk"];
        expect_as_recorded(
            r, templates.at(name),
            variables_of(recorded()["models"][name], recorded()["talks"][talk], r["prompt"]),
            name + ", " + talk);
    }
}

// Bytes, and the special tokens of a model.
Tokenizer::Ptr tokenizer_with(const Json& specials) {
    TokenizerData data = Tokenizer::bytes(256)->data();
    for (const Json& special : specials) {
        const auto id = static_cast<std::int32_t>(data.tokens.size());
        data.tokens.push_back(special);
        data.types.push_back(TokenType::control);
        data.added.push_back({.id = id, .text = special, .special = true});
    }
    return Tokenizer::from_data(std::move(data));
}

// The special ids of a rendering, in order.
std::vector<std::int32_t> specials_of(const Tokenizer& tokenizer, const MarkedText& text,
                                      bool literal) {
    EncodeOptions options{.add_special = false};
    if (literal) options.literal = text.user();
    std::vector<std::int32_t> ids = tokenizer.encode(text.bytes(), options);
    EXPECT_EQ(tokenizer.decode(ids), text.bytes());
    std::erase_if(ids, [](std::int32_t id) { return id < 256; });
    return ids;
}

// Puts all special tokens of the model into every text of every message: the special ids equal
// those of a harmless text, and without the marks there are more.
TEST(JinjaReference, SpecialTokensThatPeopleWriteStayText) {
    const std::map<std::string, Template> templates = load_templates();
    int compared = 0;
    for (const auto& [name, model] : recorded()["models"].items()) {
        const Tokenizer::Ptr tokenizer = tokenizer_with(model["specials"]);
        std::string evil;
        for (const Json& special : model["specials"]) evil += special.get<std::string>() + "\n";
        for (const auto& [talk_name, talk] : recorded()["talks"].items()) {
            if (talk_name == "number") continue;  // has no text
            // gpt-oss refuses its own marks, R1 and Qwen3 cut at </think>: only the remaining texts
            // are compared with the harmless one.
            Json harmless = talk, attack = talk;
            const auto poison = [&](auto&& self, Json& good, Json& bad) -> void {
                if (good.is_string()) {
                    const std::string text = good;
                    if (text.size() == 9 && text.starts_with("abcdef")) return;  // an id
                    good = "w " + text + " w";
                    bad = "w " + evil + text + evil + " w";
                } else if (good.is_structured()) {
                    for (auto it = good.begin(); it != good.end(); ++it) {
                        if (good.is_object() && (it.key() == "role" || it.key() == "type"))
                            continue;
                        self(self, *it,
                             good.is_object() ? bad[it.key()]
                                              : bad[static_cast<std::size_t>(it - good.begin())]);
                    }
                }
            };
            poison(poison, harmless["messages"], attack["messages"]);
            if (talk.contains("more")) poison(poison, harmless["more"], attack["more"]);
            MarkedText good, bad;
            try {
                good = templates.at(name).render(variables_of(model, harmless, true),
                                                 {.now = recorded_time()});
                bad = templates.at(name).render(variables_of(model, attack, true),
                                                {.now = recorded_time()});
            } catch (const Error&) {
                continue;  // not supported by this model
            }
            const auto want = specials_of(*tokenizer, good, false);
            if (want != specials_of(*tokenizer, good, true)) continue;  // "evil" has some already
            EXPECT_EQ(specials_of(*tokenizer, bad, true), want) << name << ", " << talk_name;
            EXPECT_GT(specials_of(*tokenizer, bad, false).size(), want.size())
                << name << ", " << talk_name;
            ++compared;
        }
    }
    EXPECT_GT(compared, 100);
}

}  // namespace
}  // namespace mr::text::jinja
