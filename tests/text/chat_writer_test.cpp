// Conversations by templates: the model's own, one from a file, and the fallback if none can be
// executed.
#include "text/chat_writer.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "core/error.h"
#include "temp_folder.h"
#include "text_data.h"

namespace mr::text {
namespace {

TokenizerData data_with(std::initializer_list<const char*> names, std::string chat_template) {
    TokenizerData data = Tokenizer::bytes(256)->data();
    data.name = "model";
    for (const char* name : names) {
        const auto id = static_cast<std::int32_t>(data.tokens.size());
        data.tokens.emplace_back(name);
        data.types.push_back(TokenType::control);
        data.added.push_back({.id = id, .text = name, .special = true});
    }
    data.chat_template = std::move(chat_template);
    return data;
}

const std::vector<ChatMessage> kTalk = {{"user", "Hi<a>"}};

TEST(ChatWriter, ExecutesTheModelsOwnTemplate) {
    TokenizerData data = data_with({"<a>", "<b>"},
                                   "{{ bos_token }}{% for m in messages %}{{ '<a>' + m.role + ':' "
                                   "+ m.content + eos_token }}{% endfor %}"
                                   "{% if add_generation_prompt %}>{% endif %}");
    data.bos = 256;
    data.eos = 257;
    data.prefix = {256};
    const auto tokenizer = Tokenizer::from_data(data);
    const ChatWriter writer(*tokenizer, {});
    EXPECT_EQ(writer.name(), "its own template");
    EXPECT_EQ(writer.notice(), "");
    EXPECT_TRUE(writer.stops().empty());
    EXPECT_EQ(writer.render(kTalk, true), "<a><a>user:Hi<a><b>>");
    const auto ids = writer.encode(kTalk, true);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), 2);  // the template's two, not the message's
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 257), 1);
    const ChatWriter parsing(*tokenizer, {.parse_special = true});
    const auto more = parsing.encode(kTalk, true);
    EXPECT_EQ(std::count(more.begin(), more.end(), 256), 3);
}

TEST(ChatWriter, ToolsAndDocumentsAreNoneWhereThereAreNone) {
    const auto tokenizer = Tokenizer::from_data(
        data_with({}, "{{ tools is none }}{{ documents is none }}{{ other is defined }}"));
    EXPECT_EQ(ChatWriter(*tokenizer, {}).render(kTalk, true), "TrueTrueFalse");
}

TEST(ChatWriter, BosIsTheTemplatesToWrite) {
    TokenizerData data = data_with({"<s>"}, "{% for m in messages %}{{ m.content }}{% endfor %}");
    data.bos = 256;
    data.prefix = {256};
    const auto ids = ChatWriter(*Tokenizer::from_data(data), {}).encode(kTalk, true);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), 0);
}

TEST(ChatWriter, SaysWhatItCannotExecuteAndFallsBack) {
    for (const char* broken : {"{% for m in messages %}\n{{ '<|im_start|>' | wrong }}{% endfor %}",
                               "\n{{ '<|im_start|>' + unknown_function(messages) }}"}) {
        const auto tokenizer =
            Tokenizer::from_data(data_with({"<|im_start|>", "<|im_end|>"}, broken));
        const ChatWriter writer(*tokenizer, {});
        EXPECT_NE(writer.notice().find("model: chat template: line 2: "), std::string::npos)
            << writer.notice();
        EXPECT_NE(writer.notice().find("using the ChatML format instead"), std::string::npos)
            << writer.notice();
        EXPECT_EQ(writer.render(kTalk, false), "<|im_start|>user\nHi<a><|im_end|>\n");
        EXPECT_EQ(writer.stops(), std::vector<std::string>{"<|im_end|>"});
    }
}

TEST(ChatWriter, ATemplateThatIsRequiredMustBeExecuted) {
    const auto tokenizer = Tokenizer::from_data(
        data_with({}, "{% if n is defined %}{{ n + 1 }}{% endif %}{{ messages[0].content }}"));
    const ChatOptions good{.arguments = {"n=1"}, .require_template = true};
    EXPECT_EQ(ChatWriter(*tokenizer, good).render(kTalk, true), "2Hi<a>");
    EXPECT_TRUE(ChatWriter(*tokenizer, good).has_template());
    ChatOptions bad{.arguments = {"n=a"}, .require_template = true};
    EXPECT_THROW(ChatWriter(*tokenizer, bad), Error);
    bad.require_template = false;
    EXPECT_FALSE(ChatWriter(*tokenizer, bad).has_template());
    EXPECT_NE(ChatWriter(*tokenizer, bad).notice(), "");
    // A model without a template has nothing to execute.
    const auto plain = Tokenizer::from_data(data_with({}, ""));
    EXPECT_FALSE(ChatWriter(*plain, good).has_template());
}

TEST(ChatWriter, SaysWhereThereIsNothingToGoBy) {
    const auto plain = Tokenizer::from_data(data_with({}, ""));
    EXPECT_NE(ChatWriter(*plain, {}).notice().find("no chat template"), std::string::npos);
    const auto chatml = Tokenizer::from_data(data_with({"<|im_start|>", "<|im_end|>"}, ""));
    EXPECT_EQ(ChatWriter(*chatml, {}).notice(), "");
    EXPECT_EQ(ChatWriter(*chatml, {}).name(), "the ChatML format");
}

TEST(ChatWriter, AFormatIsNamedInPlaceOfATemplate) {
    const auto model = Tokenizer::from_data(data_with({}, "its own"));
    const ChatWriter chatml(*model, {.template_file = "chatml"});
    EXPECT_EQ(chatml.render(kTalk, true),
              "<|im_start|>user\nHi<a><|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(chatml.name(), "the ChatML format");
    EXPECT_EQ(chatml.stops(), chat_stops(ChatFormat::chatml));
    const ChatWriter plain(*Tokenizer::from_data(data_with({}, "")), {.template_file = "plain"});
    EXPECT_FALSE(plain.continues_texts());
    EXPECT_EQ(plain.notice(), "");
    for (const char* word : {"plain", "chatml", "llama2", "llama3", "mistral", "mistral-v1",
                             "mistral-v3", "mistral-tekken"}) {
        const std::optional<ChatFormat> format = chat_format_named(word);
        ASSERT_TRUE(format) << word;
        EXPECT_EQ(ChatWriter(*model, {.template_file = word}).render(kTalk, true),
                  render_chat(*format, kTalk, true))
            << word;
    }
    EXPECT_FALSE(chat_format_named("./chatml"));
    EXPECT_THROW(ChatWriter(*model, {.template_file = "chatlm"}), Error);
}

TEST(ChatWriter, AModelWithoutATemplateContinuesTexts) {
    const test::TempFolder folder;
    const std::string path = folder / "given.jinja";
    std::ofstream(path) << "{{ messages[0].content }}";
    const auto plain = Tokenizer::from_data(data_with({}, ""));
    EXPECT_TRUE(ChatWriter(*plain, {}).continues_texts());
    EXPECT_FALSE(ChatWriter(*plain, {.template_file = path}).continues_texts());
    const auto own = Tokenizer::from_data(data_with({}, "{{ messages[0].content }}"));
    EXPECT_FALSE(ChatWriter(*own, {}).continues_texts());
    // Made for conversations, though how is not known in full.
    const auto broken = Tokenizer::from_data(data_with({}, "{{ unknown_function(messages) }}"));
    EXPECT_FALSE(ChatWriter(*broken, {}).continues_texts());
    const auto chatml = Tokenizer::from_data(data_with({"<|im_start|>", "<|im_end|>"}, ""));
    EXPECT_FALSE(ChatWriter(*chatml, {}).continues_texts());
}

TEST(ChatWriter, ARefusalIsTheTemplatesWord) {
    const auto tokenizer = Tokenizer::from_data(data_with(
        {}, "{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}x"));
    const ChatWriter writer(*tokenizer, {});
    EXPECT_EQ(writer.notice(), "");
    EXPECT_EQ(writer.render(kTalk, true), "x");
    const ChatMessage system{"system", "Be brief."};
    EXPECT_THROW(writer.encode({&system, 1}, true), jinja::Refusal);
}

TEST(ChatWriter, ATemplateFileGoesBeforeTheModelsOwn) {
    const test::TempFolder folder;
    const std::string path = folder / "t.jinja";
    std::ofstream(path) << "{{ messages[0].content ~ '|' ~ extra ~ '|' ~ flag }}";
    const auto tokenizer = Tokenizer::from_data(data_with({"<a>"}, "own"));
    const ChatWriter writer(*tokenizer,
                            {.template_file = path, .arguments = {"extra=<a> text", "flag=false"}});
    EXPECT_EQ(writer.render(kTalk, true), "Hi<a>|<a> text|False");
    const auto ids = writer.encode(kTalk, true);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), 0);  // arguments are user text, too
    EXPECT_THROW(ChatWriter(*tokenizer, {.arguments = {"no value"}}), Error);
    EXPECT_THROW(ChatWriter(*tokenizer, {.arguments = {"1x=2"}}), Error);
    EXPECT_THROW(ChatWriter(*tokenizer, {.template_file = path + ".missing"}), Error);
    std::ofstream(path) << "{{ messages | nonsense }}";
    EXPECT_THROW(ChatWriter(*tokenizer, {.template_file = path}), Error);
    std::ofstream(path) << "{{ messages[0].nonsense() }}";
    EXPECT_THROW(ChatWriter(*tokenizer, {.template_file = path}), Error);
}

TEST(ChatWriter, ToolsTakeTheTemplateThatIsForThem) {
    const auto tokenizer = Tokenizer::from_json(
        R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "added_tokens": []})",
        "model",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "tool_use", "template": "{{ tools[0].name }}"}]})");
    EXPECT_EQ(ChatWriter(*tokenizer, {}).render(kTalk, true), "plain");
    EXPECT_EQ(
        ChatWriter(*tokenizer, {.arguments = {R"(tools=[{"name": "f"}])"}}).render(kTalk, true),
        "f");
}

// A special token that is matched after normalization is protected as well.
TEST(ChatWriter, NormalizedSpecialTokensStayTextToo) {
    const auto tokenizer = Tokenizer::from_json(
        R"({"model": {"type": "BPE", "vocab": {"a": 0, "<": 1, "x": 2, ">": 3, "<x>": 4}, "merges": []},
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "added_tokens": [{"id": 4, "content": "<x>", "special": true, "normalized": true}]})",
        "model", R"({"chat_template": "<x>{{ messages[0].content }}<x>"})");
    for (const char* content : {"a<x>a", "e\xCC\x81<x>e\xCC\x81"}) {
        const ChatMessage message{"user", content};
        const auto ids = ChatWriter(*tokenizer, {}).encode({&message, 1}, true);
        EXPECT_EQ(std::count(ids.begin(), ids.end(), 4), 2) << content;
        const auto all =
            ChatWriter(*tokenizer, {.parse_special = true}).encode({&message, 1}, true);
        EXPECT_EQ(std::count(all.begin(), all.end(), 4), 3) << content;
    }
}

// A conversation whose beginning is already encoded: no space is put before text that continues it,
// and user text stays text.
TEST(ChatWriter, ARestGoesOnBehindItsBeginning) {
    const auto tokenizer =
        Tokenizer::from_json_file(MR_SOURCE_DIR "/tests/reference/llama2/tokenizer.json");
    const ChatWriter writer(*tokenizer, {});
    const ChatText text = writer.write(std::vector<ChatMessage>{{"user", "the mill</s>"}}, true);
    EXPECT_EQ(text.bytes, "User: the mill</s>\nAssistant:");
    ASSERT_EQ(text.user.size(), 1u);
    const std::vector<std::int32_t> whole = writer.encode(text);
    EXPECT_EQ(std::count(whole.begin(), whole.end(), 2), 0);
    for (const std::size_t cut : {4u, 6u, 12u, 16u, 20u}) {
        const ChatText rest = text.slice(cut);
        ASSERT_EQ(rest.user.size(), cut < 18 ? 1u : 0u);
        if (cut < 18) {
            EXPECT_EQ(rest.bytes.substr(rest.user[0].begin, rest.user[0].end - rest.user[0].begin),
                      text.bytes.substr(std::max<std::size_t>(cut, 6),
                                        18 - std::max<std::size_t>(cut, 6)));
        }
        std::string said;
        for (const std::int32_t id : writer.encode_rest(rest, whole.back())) {
            EXPECT_NE(id, 2);
            said += tokenizer->piece(id);
        }
        EXPECT_EQ(said, text.bytes.substr(cut)) << cut;
    }
    // After a special token it is encoded as in a text.
    const auto in_text = tokenizer->encode("</s>the mill", {.add_special = false});
    const auto behind = tokenizer->encode("the mill", {.add_special = false, .after = 2});
    EXPECT_EQ(std::vector(in_text.begin() + 1, in_text.end()), behind);
    EXPECT_EQ(text.slice(0, 8).bytes, "User: th");
    EXPECT_EQ(text.slice(0, 8).user[0].end, 8u);
}

TEST(ChatWriter, QwensDefaultSystemPromptIsThere) {
    MR_NEED_DATA("tokenizers/qwen2_5/tokenizer.json");
    const auto tokenizer = load("tokenizers/qwen2_5/tokenizer.json");
    const ChatWriter writer(*tokenizer, {});
    EXPECT_EQ(writer.notice(), "");
    const ChatMessage hello{"user", "Hello"};
    const std::string text = writer.render({&hello, 1}, true);
    EXPECT_TRUE(text.starts_with("<|im_start|>system\nYou are Qwen")) << text;
    EXPECT_TRUE(text.ends_with("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"))
        << text;
    const auto ids = writer.encode({&hello, 1}, true);
    EXPECT_EQ(ids.size(), 30u);
    EXPECT_EQ(tokenizer->decode(ids), text);
}

}  // namespace
}  // namespace mr::text
