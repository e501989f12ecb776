// Which files of a repository are a model, and names of models on a hub.
#include "hub/choice.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "hub/cache.h"
#include "hub/reference.h"

namespace mr::hub {
namespace {

using Names = std::vector<std::string>;

Reference reference(const std::string& text) { return read_reference(text).value(); }

std::string refusal(const std::string& wanted, const Names& files) {
    try {
        choose(reference(wanted), files);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

// As repositories of GGUF files are.
const Names kQuants = {"README.md",
                       ".gitattributes",
                       "mmproj-F16.gguf",
                       "imatrix.gguf",
                       "model-IQ4_XS.gguf",
                       "model-Q2_K.gguf",
                       "model-Q3_K_M.gguf",
                       "model-Q4_0.gguf",
                       "model-Q4_K_S.gguf",
                       "model-Q4_K_M.gguf",
                       "model-UD-Q4_K_XL.gguf",
                       "model-UD-Q4_K_M.gguf",
                       "model-Q8_0.gguf",
                       "BF16/model-BF16-00001-of-00002.gguf",
                       "BF16/model-BF16-00002-of-00002.gguf"};

TEST(HubReference, IsOwnerAndName) {
    for (const char* text : {"a/b", "Qwen/Qwen3-0.6B", "me/Tales_2.GGUF", "1/2"}) {
        ASSERT_TRUE(read_reference(text)) << text;
        EXPECT_EQ(reference(text).text(), text);
    }
    const Reference typed = reference("a/b:Q4_K_M");
    EXPECT_EQ(typed.id() + "|" + typed.what, "a/b|Q4_K_M");
    EXPECT_EQ(reference("a/b:Q4_K_M/x-00001-of-00002.gguf").what, "Q4_K_M/x-00001-of-00002.gguf");
    for (const char* text :
         {"", "a", "a/", "/b", "a/b/c", "./b", "a/..", "a/.b", "-a/b", "a/b:", "a/b:/x", "a/b:../x",
          "a/b:x/../y", "a b/c", "a/b\n", "random:llama-2-7b:q8_0", "https://h/a/b", "a--b/c"}) {
        EXPECT_FALSE(read_reference(text)) << text;
    }
}

TEST(HubAddress, NamesModelRevisionAndFile) {
    const auto read = [](const std::string& text, const std::string& hub = "") {
        const auto found = read_address(text, hub);
        return found ? found->model.text() + "@" + found->revision : "none";
    };
    const std::string page = "https://huggingface.co/Qwen/Qwen3-0.6B";
    for (const std::string& text :
         {page, page + "/", page + "?a=b/c", page + "#x/y", page + "/discussions/1",
          "http://www." + page.substr(8), std::string("hf.co/Qwen/Qwen3-0.6B")}) {
        EXPECT_EQ(read(text), "Qwen/Qwen3-0.6B@") << text;
    }
    EXPECT_EQ(read("hf.co/a/b:Q8_0"), "a/b:Q8_0@");
    EXPECT_EQ(read(page + "/tree/main"), "Qwen/Qwen3-0.6B@main");
    EXPECT_EQ(read(page + "/tree/v1/sub"), "Qwen/Qwen3-0.6B@v1");
    EXPECT_EQ(read(page + "/blob/main/x/y.gguf"), "Qwen/Qwen3-0.6B:x/y.gguf@main");
    EXPECT_EQ(read(page + "/resolve/v1/y.gguf?download=true"), "Qwen/Qwen3-0.6B:y.gguf@v1");
    EXPECT_EQ(read("https://h:1/p/a/b", "https://h:1/p/"), "a/b@");
    for (const std::string& text :
         {page + "/blob/main/../y", std::string("https://huggingface.co/Qwen"),
          std::string("https://huggingface.co//b"), std::string("https://example.org/a/b"),
          std::string("huggingface.co.example.org/a/b"), std::string("a/b"), std::string()}) {
        EXPECT_EQ(read(text), "none") << text;
    }
    EXPECT_EQ(read("https://h:10/a/b", "https://h:1"), "none");
}

TEST(HubPath, StaysBelowItsFolder) {
    for (const char* path : {"a", "a/b.gguf", "a b/c", "\xc3\xa4"}) EXPECT_TRUE(is_safe_path(path));
    for (const char* path : {"", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", ".git/config",
                             "a/.", "a\\b", "a\nb", "\x7f"}) {
        EXPECT_FALSE(is_safe_path(path)) << path;
    }
    EXPECT_FALSE(is_safe_path(std::string(256, 'a')));
    EXPECT_FALSE(is_safe_path(std::string("a\0b", 3)));
}

TEST(HubChoice, TakesTheTypeThatIsNamed) {
    const auto first = [](const std::string& what) {
        return choose(reference("a/b:" + what), kQuants).files.front();
    };
    EXPECT_EQ(first("Q4_0"), "model-Q4_0.gguf");
    EXPECT_EQ(first("q4_k_m"), "model-Q4_K_M.gguf");
    EXPECT_EQ(first("UD-Q4_K_M"), "model-UD-Q4_K_M.gguf");
    EXPECT_EQ(first("UD-Q4_K_XL"), "model-UD-Q4_K_XL.gguf");
    EXPECT_EQ(first("model-Q8_0.gguf"), "model-Q8_0.gguf");
    EXPECT_EQ(first("model-Q8_0"), "model-Q8_0.gguf");
    EXPECT_EQ(first("mmproj-F16.gguf"), "mmproj-F16.gguf");  // a file, by its name
    const Names both = {"BF16/model-BF16-00001-of-00002.gguf",
                        "BF16/model-BF16-00002-of-00002.gguf"};
    for (const char* what : {"BF16", "model-BF16-00002-of-00002.gguf", "model-BF16.gguf"}) {
        EXPECT_EQ(choose(reference(std::string("a/b:") + what), kQuants).files, both) << what;
    }
    // Q4_K is neither Q4_K_M nor Q4_K_S; 0, F1 and K_M are no types at all.
    for (const char* what : {"Q4_K", "0", "F1", "Q5_0", "K_M", "model", "gguf"}) {
        EXPECT_NE(refusal(std::string("a/b:") + what, kQuants).find("no file of this name or type"),
                  std::string::npos)
            << what;
    }
}

TEST(HubChoice, KnowsBothNamesOfAType) {
    const Names files = {"m-fp16.gguf", "m-F32.gguf", "m-BF16.gguf"};
    for (const char* what : {"F16", "f16", "FP16"}) {
        EXPECT_EQ(choose(reference(std::string("a/b:") + what), files).files, Names{"m-fp16.gguf"});
    }
    EXPECT_EQ(choose(reference("a/b:FP32"), files).files, Names{"m-F32.gguf"});
    EXPECT_EQ(choose(reference("a/b"), {"m-fp16.gguf", "m-F32.gguf"}).files, Names{"m-fp16.gguf"});
}

TEST(HubChoice, TakesTheUsualTypeIfNoneIsNamed) {
    EXPECT_EQ(choose(reference("a/b"), kQuants).files, Names{"model-Q4_K_M.gguf"});
    EXPECT_EQ(choose(reference("a/b"), {"m-Q4_0.gguf", "m-Q8_0.gguf"}).files, Names{"m-Q8_0.gguf"});
    EXPECT_EQ(choose(reference("a/b"), {"m-IQ4_XS.gguf", "m-Q4_0.gguf"}).files,
              Names{"m-Q4_0.gguf"});
    EXPECT_EQ(choose(reference("a/b"), {"m.gguf", "m-Q3_K_S.gguf"}).files, Names{"m.gguf"});
    EXPECT_EQ(choose(reference("a/b"), {"m.gguf"}).kind, Kind::gguf);
    EXPECT_NE(refusal("a/b", {"m.gguf", "n.gguf"}).find("several GGUF files"), std::string::npos);
    EXPECT_NE(refusal("a/b", {"m-Q8_0.gguf", "n-Q8_0.gguf"}).find("several GGUF files: m-Q8_0, n-"),
              std::string::npos);
}

TEST(HubChoice, TakesAFolder) {
    const Choice one = choose(reference("a/b"), {"config.json", "model.safetensors", "x.bin",
                                                 "tokenizer.json", "model-Q8_0.gguf"});
    EXPECT_EQ(one.kind, Kind::folder);
    EXPECT_FALSE(one.sharded);
    EXPECT_EQ(one.files, (Names{"config.json", "tokenizer.json", "model.safetensors"}));
    const Choice many =
        choose(reference("a/b"), {"config.json", kIndexName, "consolidated.safetensors",
                                  "model-00001-of-00001.safetensors"});
    EXPECT_TRUE(many.sharded);
    EXPECT_EQ(many.files, (Names{"config.json", kIndexName}));
    EXPECT_NE(refusal("a/b:Q8_0", {"config.json", "model.safetensors"}).find("millrace convert"),
              std::string::npos);
}

TEST(HubChoice, RefusesWhatIsNotRead) {
    EXPECT_NE(refusal("a/b:IQ4_XS", kQuants).find("does not read"), std::string::npos);
    EXPECT_NE(refusal("a/b:Q2_K", kQuants).find("Q2_K is a type"), std::string::npos);
    EXPECT_NE(refusal("a/b", {"m-IQ4_XS.gguf", "m-Q2_K.gguf"}).find("m-IQ4_XS, m-Q2_K"),
              std::string::npos);
    EXPECT_NE(refusal("a/b", {"config.json", "pytorch_model.bin"}).find("PyTorch"),
              std::string::npos);
    EXPECT_NE(refusal("a/b", {"adapter_config.json", "adapter_model.safetensors"}).find("LoRA"),
              std::string::npos);
    EXPECT_NE(refusal("a/b", {"model.safetensors"}).find("neither config.json"), std::string::npos);
    EXPECT_NE(refusal("a/b", {}).find("neither config.json"), std::string::npos);
    EXPECT_NE(refusal("a/b", {"x-Q8_0-00001-of-00002.gguf"}).find("part 2 of 2"),
              std::string::npos);
}

TEST(HubChoice, ReadsTheNamesOfShards) {
    const char* two = R"({"weight_map": {"a": "2.safetensors", "b": "1.safetensors",
                                         "c": "2.safetensors"}})";
    EXPECT_EQ(shards_of_index(two, "i"), (Names{"1.safetensors", "2.safetensors"}));
    for (const char* wrong :
         {"{}", "[]", R"({"weight_map": {}})", R"({"weight_map": {"a": "../b.safetensors"}})",
          R"({"weight_map": {"a": "b/c.safetensors"}})", R"({"weight_map": {"a": 1}})",
          R"({"weight_map": {"a": "config.json"}})", "", "null"}) {
        EXPECT_THROW(shards_of_index(wrong, "i"), Error) << wrong;
    }
}

TEST(HubCache, KnowsTheNameOfAFolderInACache) {
    const std::string commit(40, 'a');
    const std::string snapshot = "/c/models--a--b-c/snapshots/" + commit;
    EXPECT_EQ(name_in_cache(snapshot), "a/b-c");
    EXPECT_EQ(name_in_cache(snapshot + "/sub/model.gguf"), "a/b-c");
    for (const char* path : {"", "/", "/c/models--a--b", "a/b", "/c/other/snapshots/aaaaaaa",
                             "/c/models--a--b/snapshots/main"}) {
        EXPECT_EQ(name_in_cache(path), "") << path;
    }
    EXPECT_EQ(folder_name(reference("a/b-c:Q8_0")), "models--a--b-c");
}

}  // namespace
}  // namespace mr::hub
