// The ids of a conversation: tokens drawn by the model are kept.
#include "decode/chat_thread.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "model/model.h"
#include "support.h"
#include "temp_folder.h"

namespace mr::decode {
namespace {

using Ids = std::vector<std::int32_t>;

struct Case {
    explicit Case(const std::string& source, text::Tokenizer::Ptr by)
        : tokenizer(std::move(by)), writer(*tokenizer, {.template_file = written(source)}) {}
    std::string written(const std::string& source) const {
        const std::string path = folder / "t.jinja";
        std::ofstream(path) << source;
        return path;
    }

    // One turn with `answer`, and the ids of the next.
    Ids next(const std::string& said, const Ids& answer, const std::string& heard) {
        std::vector<text::ChatMessage> talk = {{"user", "Hello"}};
        text::ChatText text = writer.write(talk, true);
        ChatThread thread(writer, *tokenizer);
        first = thread.encode(text);
        EXPECT_EQ(first, writer.encode(talk, true));
        thread.go_on(text, first, answer);
        talk.push_back({"assistant", heard});
        talk.push_back({"user", said});
        const text::ChatText now = writer.write(talk, true);
        whole = writer.encode(now);
        return thread.encode(now);
    }

    test::TempFolder folder;
    text::Tokenizer::Ptr tokenizer;
    text::ChatWriter writer;
    Ids first, whole;
};

constexpr char kSimple[] =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

text::Tokenizer::Ptr sentencepiece() {
    return model::load_model(test::reference("llama2")).tokenizer;
}

// Split as no encoder would: letter by letter.
TEST(ChatThread, KeepsTheTokensOfAnAnswer) {
    Case c(kSimple, sentencepiece());
    Ids answer;
    const std::string said = " there was a mill";
    for (const char letter : said) {
        const auto id = c.tokenizer->find(std::string(1, letter));
        ASSERT_TRUE(id) << letter;
        answer.push_back(*id);
    }
    answer.push_back(*c.tokenizer->eos());
    const Ids ids = c.next("And then?", answer, said);
    ASSERT_GT(ids.size(), c.first.size() + said.size());
    EXPECT_TRUE(std::equal(c.first.begin(), c.first.end(), ids.begin()));
    EXPECT_TRUE(std::equal(answer.begin(), answer.end() - 1,
                           ids.begin() + static_cast<std::ptrdiff_t>(c.first.size())));
    EXPECT_NE(ids, c.whole);
    EXPECT_EQ(c.tokenizer->decode(ids), c.tokenizer->decode(c.whole));
    // The rest is encoded as after a special token.
    const Ids rest(ids.begin() + static_cast<std::ptrdiff_t>(c.first.size() + said.size()),
                   ids.end());
    ASSERT_LT(rest.size(), c.whole.size());
    EXPECT_TRUE(std::equal(rest.rbegin(), rest.rend(), c.whole.rbegin()));
}

// No space is put before text in the middle of a conversation.
TEST(ChatThread, ARestBeginsNoText) {
    Case c(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
        sentencepiece());
    const Ids answer = c.tokenizer->encode(
        " there was a mill", {.add_special = false, .after = *c.tokenizer->find("a")});
    const std::string said = " there was a mill";
    ASSERT_EQ(c.tokenizer->piece(answer.front()).front(), ' ');
    const Ids ids = c.next("And then?", answer, said);
    EXPECT_EQ(c.tokenizer->decode(ids), c.tokenizer->decode(c.whole));
    EXPECT_TRUE(std::equal(answer.begin(), answer.end(),
                           ids.begin() + static_cast<std::ptrdiff_t>(c.first.size())));
}

TEST(ChatThread, WhatTheTemplateWritesInAnotherWayIsEncodedBehindTheLastThatIsTheSame) {
    Case c(
        "{% for m in messages %}{{ m.role }}:{{ m.content | trim }}|{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
        text::Tokenizer::bytes(256));
    EXPECT_EQ(c.next("Go", Ids{' ', 'a', 'b'}, " ab"), c.whole);
    EXPECT_EQ(c.next("Go", Ids{'a', 'b', ' ', ' '}, "ab  "), c.whole);
    EXPECT_EQ(c.next("Go", Ids{'a', 0xe2, 0x82}, "a\xef\xbf\xbd"), c.whole);
    EXPECT_EQ(c.next("Go", Ids{}, ""), c.whole);
    // A stop string is the beginning of what the template writes next.
    EXPECT_EQ(c.next("Go", Ids{'a', '|', 'u', 's', 'e', 'r'}, "a"), c.whole);
}

// If an answer spells out a special token, its letters do not replace the template's
// token.
TEST(ChatThread, SpecialTokensOfTheTemplateStayTokens) {
    Case c(kSimple, sentencepiece());
    const std::string eos = c.tokenizer->piece(*c.tokenizer->eos());
    ASSERT_EQ(eos, "</s>");
    Ids answer = c.tokenizer->encode(
        "yes</s>",
        {.add_special = false, .parse_special = false, .after = *c.tokenizer->find("a")});
    const Ids ids = c.next("Go", answer, "yes");
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *c.tokenizer->eos()),
              std::count(c.whole.begin(), c.whole.end(), *c.tokenizer->eos()));
    // In user text they are plain text.
    const Ids more = c.next("Go</s>", answer, "yes</s>");
    EXPECT_EQ(std::count(more.begin(), more.end(), *c.tokenizer->eos()), 3);  // one per turn
    EXPECT_TRUE(std::equal(answer.begin(), answer.end(),
                           more.begin() + static_cast<std::ptrdiff_t>(c.first.size())));
}

text::Tokenizer::Ptr bytes_with_ends() {
    text::TokenizerData data = text::Tokenizer::bytes(256)->data();
    for (const char* name : {"<s>", "</s>"}) {
        const auto id = static_cast<std::int32_t>(data.tokens.size());
        data.tokens.emplace_back(name);
        data.types.push_back(text::TokenType::control);
        data.added.push_back({.id = id, .text = name, .special = true});
    }
    data.bos = 256;
    data.eos = 257;
    return text::Tokenizer::from_data(data);
}

// Templates of real models write an answer again as it was drawn, or nearly so; templates that drop
// a model's reasoning are encoded anew from the question on.
TEST(ChatThread, TemplatesOfRealModels) {
    const auto run = [](const std::string& name, const std::string& said) {
        SCOPED_TRACE(name + ": " + said);
        std::ifstream file(test::reference("templates/" + name + ".jinja"));
        const std::string source{std::istreambuf_iterator<char>(file), {}};
        Case c(source, bytes_with_ends());
        const Ids answer(said.begin(), said.end());
        const Ids ids = c.next("And then?", answer, said);
        EXPECT_EQ(ids, c.whole);  // a text has only one encoding as bytes
        c.first.insert(c.first.end(), answer.begin(), answer.end());
        return ids.size() > c.first.size() &&
               std::equal(c.first.begin(), c.first.end(), ids.begin());
    };
    for (const char* name : {"chatml", "llama31", "phi4", "qwen25", "qwen3", "smollm3", "zephyr"}) {
        EXPECT_TRUE(run(name, "There was a mill.")) << name;
    }
    for (const char* name : {"llama2", "mistral"}) {  // answers begin with a space
        EXPECT_TRUE(run(name, " There was a mill.")) << name;
    }
    for (const char* name : {"deepseek_r1", "qwen3"}) {
        EXPECT_FALSE(run(name, "<think>\nHm.\n</think>\n\nThere was a mill.")) << name;
    }
}

TEST(ChatThread, AnotherConversationIsEncodedWhole) {
    Case c("{{ messages | length }}{% for m in messages %}{{ m.content }}|{% endfor %}",
           text::Tokenizer::bytes(256));
    EXPECT_EQ(c.next("Go", Ids{'a', 'b'}, "ab"), c.whole);
}

}  // namespace
}  // namespace mr::decode
