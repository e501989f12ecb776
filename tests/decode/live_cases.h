// Shared by the tests of live sequences, for any engine.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "decode/generate.h"

namespace mr::test {

inline decode::GenerateOptions sampled(int tokens, std::uint64_t seed = 7) {
    decode::GenerateOptions options;
    options.max_tokens = tokens;
    options.ignore_end = true;
    options.sampling.temperature = 0.9f;
    options.sampling.repeat_penalty = 1.2f;
    options.sampling.seed = seed;
    return options;
}

// Ids below `vocab`.
inline std::vector<std::int32_t> some_tokens(int count, int salt, int vocab) {
    std::vector<std::int32_t> out;
    for (int i = 0; i < count; ++i) out.push_back((i * 7919 + salt * 104729) % vocab);
    return out;
}

inline void append(std::vector<std::int32_t>& to, std::span<const std::int32_t> more) {
    to.insert(to.end(), more.begin(), more.end());
}

inline void expect_equal(const decode::Generated& got, const decode::Generated& want) {
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(got.confidence, want.confidence);  // the same bits
    EXPECT_EQ(got.text, want.text);
    EXPECT_EQ(got.evicted, want.evicted);
    EXPECT_EQ(got.prompt_tokens, want.prompt_tokens);
}

}  // namespace mr::test
