// The small models of tests/reference, one or more per family, and the logits that transformers
// gave for them in f64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace mr::test {

inline constexpr const char* kFamilies[] = {
    "llama2",       "llama3", "llama-linear", "llama-yarn", "mistral",  "qwen2",       "qwen2-yarn",
    "qwen2-window", "qwen3",  "gpt2",         "gpt2-hub",   "gpt-neox", "gpt-neox-seq"};

// The diffusion models. Their tokens see later ones, so a text may only be cut between blocks, and
// not at all with full attention.
inline constexpr const char* kDiffusionFamilies[] = {"sdar", "sdar-llama", "fast-dllm", "llada",
                                                     "dream"};

inline std::vector<const char*> all_families() {
    std::vector<const char*> out(std::begin(kFamilies), std::end(kFamilies));
    out.insert(out.end(), std::begin(kDiffusionFamilies), std::end(kDiffusionFamilies));
    return out;
}

// For INSTANTIATE_TEST_SUITE_P: test names have no dashes.
inline std::string family_name(const ::testing::TestParamInfo<const char*>& info) {
    std::string name = info.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

struct Expected {
    std::vector<std::int32_t> ids;
    std::vector<float> logits;  // [ids, vocab]
};

inline Expected read_expected(const std::string& folder) {
    const auto file = formats::SafetensorsFile::open(folder + "/expected.safetensors");
    const Tensor ids = file.find_tensor("input_ids")->view;
    const Tensor logits = file.find_tensor("logits")->view;
    Expected out;
    for (std::int64_t i = 0; i < ids.shape.count(); ++i) {
        std::int64_t id = 0;
        std::memcpy(&id, static_cast<const std::byte*>(ids.data) + 8 * i, 8);
        out.ids.push_back(static_cast<std::int32_t>(id));
    }
    out.logits.resize(static_cast<std::size_t>(logits.shape.count()));
    std::memcpy(out.logits.data(), logits.data, out.logits.size() * sizeof(float));
    return out;
}

// Root mean square of a - b, relative to that of b.
inline double relative_rms(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    double error = 0, total = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        error += std::pow(static_cast<double>(a[i]) - b[i], 2);
        total += std::pow(static_cast<double>(b[i]), 2);
    }
    return std::sqrt(error / total);
}

}  // namespace mr::test
