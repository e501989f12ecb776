// Where the tests of this module find real tokenizers and texts.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "formats/gguf.h"
#include "temp_folder.h"
#include "text/tokenizer.h"

namespace mr::text {

inline std::string data_path(const std::string& name) {
    const char* given = std::getenv("MILLRACE_DATA");
    return std::string(given ? given : MR_TEST_DATA) + "/" + name;
}

using test::read_all;

// A reference to a static object: loops over a part of it must not outlive it.
inline const nlohmann::json& golden() {
    static const nlohmann::json value =
        nlohmann::json::parse(read_all(std::string(MR_SOURCE_DIR) + "/tests/text/golden_ids.json"));
    return value;
}

// Read once per process: under sanitizers a large tokenizer.json takes seconds.
inline Tokenizer::Ptr load(const std::string& name) {
    static std::map<std::string, Tokenizer::Ptr> loaded;
    Tokenizer::Ptr& tokenizer = loaded[name];
    if (tokenizer) return tokenizer;
    const std::string path = data_path(name);
    if (name.ends_with(".gguf")) {
        tokenizer = Tokenizer::from_gguf(formats::GgufFile::open(path));
    } else if (name.ends_with(".bin")) {
        tokenizer = Tokenizer::from_llama2c(path);
    } else {
        tokenizer = Tokenizer::from_json_file(path);
    }
    return tokenizer;
}

inline constexpr const char* kTokenizers[] = {
    "tokenizers/gpt2/tokenizer.json",
    "tokenizers/gpt-neox/tokenizer.json",
    "tokenizers/qwen2_5/tokenizer.json",
    "tokenizers/llama2/tokenizer.json",
    "tokenizers/llama2/tokenizer.bin",
    "tokenizers/gguf/ggml-vocab-gpt-2.gguf",
    "tokenizers/gguf/ggml-vocab-gpt-neox.gguf",
    "tokenizers/gguf/ggml-vocab-llama-spm.gguf",
    "models/tok512.bin",
};

}  // namespace mr::text

#define MR_NEED_DATA(name)                                     \
    if (!std::filesystem::exists(::mr::text::data_path(name))) \
    GTEST_SKIP() << ::mr::text::data_path(name) << " is absent (set MILLRACE_DATA)"
