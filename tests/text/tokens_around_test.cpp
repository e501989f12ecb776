// Changing the token that a tokenizer.json puts before texts, and nothing else.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/mapped_file.h"
#include "formats/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json_writer.h"

namespace mr::text {
namespace {

std::string reference(const std::string& name) {
    return read_text_file(std::string(MR_SOURCE_DIR) + "/tests/reference/" + name);
}

// GPT-2's puts no token before a text, Llama-2's already has one.
TEST(TokensAround, AnotherPostProcessorAndAllElseAsItWas) {
    for (const std::string folder : {"gpt2", "llama2"}) {
        SCOPED_TRACE(folder);
        const std::string text = reference(folder + "/tokenizer.json");
        const std::string config = reference(folder + "/tokenizer_config.json");
        const auto before = Tokenizer::from_json(text, "tokenizer.json", config);
        TokenizerData data = before->data();
        data.prefix = {*data.bos, 5};
        data.suffix = {7};
        const std::string changed = with_tokens_around(text, data);
        const auto after = Tokenizer::from_json(changed, "tokenizer.json", config);
        EXPECT_EQ(after->data().prefix, data.prefix);
        EXPECT_EQ(after->data().suffix, data.suffix);
        for (const std::string words : {"Once upon a time", "a\n\n\xC3\xA9\"\\ 123 ", ""}) {
            std::vector<std::int32_t> ids = before->encode(words, {.add_special = false});
            EXPECT_EQ(after->encode(words, {.add_special = false}), ids);
            ids.insert(ids.begin(), {*data.bos, 5});
            ids.push_back(7);
            EXPECT_EQ(after->encode(words), ids);
        }
        const auto old_file = formats::JsonDocument::parse(text, "old");
        const auto new_file = formats::JsonDocument::parse(changed, "new");
        EXPECT_EQ(new_file.root().size(), old_file.root().size());
        for (const auto& [key, value] : old_file.root().items()) {
            if (key == "post_processor") continue;
            EXPECT_EQ(new_file.root().find(key)->dump(), value.dump()) << key;
        }
        EXPECT_EQ(with_tokens_around(changed, data), changed);
    }
}

}  // namespace
}  // namespace mr::text
