// Requests and answers of the API over a tiny model.
#include <algorithm>
#include <fstream>

#include "api_cases.h"

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

}  // namespace
}  // namespace mr::serve
