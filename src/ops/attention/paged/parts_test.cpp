// Parts of keys are adjacent without gaps, and the kernel of decode is the one that
// docs/attention.md found the fastest.
#include "ops/attention/paged/parts.h"

#include <gtest/gtest.h>

namespace mr::cuda::attn {
namespace {

TEST(AttentionParts, FollowOneAnother) {
    EXPECT_EQ(parts_of(0), 0);
    for (int key = 0; key < 3 * kShortKeys; ++key) {
        const int part = part_of(key);
        ASSERT_LE(part_begin(part), key);
        ASSERT_GT(part_begin(part + 1), key);
        ASSERT_EQ(parts_of(key + 1), part + 1);
        const int length = part_begin(part + 1) - part_begin(part);
        ASSERT_EQ(length, key < kShortKeys ? kStepKeys : kLongPart);
    }
}

// The keys of a view, and of calls with sinks, are in parts of one step.
TEST(AttentionParts, AllAreShortWhereAsked) {
    for (const int key : {0, 63, 64, kShortKeys, 5 * kShortKeys + 17, (1 << 30) - 1}) {
        const int part = part_of(key, kAllShort);
        EXPECT_EQ(part, key / kStepKeys);
        EXPECT_EQ(part_begin(part, kAllShort), part * kStepKeys);
        EXPECT_EQ(parts_of(key + 1, kAllShort), part + 1);
    }
    // A view moves by whole groups of the parts that are added together, for any number of sinks.
    for (const int sinks : {0, 1, 4, 64, 65, 256, 257, 1000}) {
        EXPECT_EQ(view_lead(sinks) % kViewStep, 0);
        EXPECT_GE(view_lead(sinks), sinks);
        EXPECT_LT(view_lead(sinks), sinks + kViewStep);
    }
}

TEST(AttentionParts, TheKernelOfDecodeIsChosenByTheWork) {
    // 32 heads on 132 multiprocessors.
    const auto kernel = [](int batch, int keys, int group, int dim) {
        return decode_kernel({batch, 32 / group, group, keys, dim}, 132);
    };
    EXPECT_EQ(kernel(1, 512, 1, 128), DecodeKernel::blocks);
    EXPECT_EQ(kernel(1, 2048, 1, 128), DecodeKernel::warps);
    EXPECT_EQ(kernel(4, 512, 1, 128), DecodeKernel::warps);
    EXPECT_EQ(kernel(32, 512, 1, 128), DecodeKernel::warps);
    EXPECT_EQ(kernel(32, 512, 1, 64), DecodeKernel::warps);
    EXPECT_EQ(kernel(32, 1024, 1, 128), DecodeKernel::warps);
    EXPECT_EQ(kernel(32, 1025, 1, 128), DecodeKernel::teams);
    EXPECT_EQ(kernel(32, 2048, 1, 64), DecodeKernel::warps);
    EXPECT_EQ(kernel(4, 1025, 1, 128), DecodeKernel::warps);
    EXPECT_EQ(kernel(4, 2048, 1, 128), DecodeKernel::warps);
    EXPECT_EQ(kernel(4, 2049, 1, 128), DecodeKernel::teams);
    EXPECT_EQ(kernel(64, 1024, 1, 128), DecodeKernel::warps);
    EXPECT_EQ(kernel(128, 1024, 1, 128), DecodeKernel::teams);
    EXPECT_EQ(kernel(32, 2048, 1, 128), DecodeKernel::teams);
    EXPECT_EQ(kernel(32, 512, 4, 128), DecodeKernel::teams);
    EXPECT_EQ(kernel(1, 4096, 4, 128), DecodeKernel::teams);
    EXPECT_EQ(kernel(1, 32768, 1, 128), DecodeKernel::teams);
    // Several tiles of rows per sequence: 8 kv heads, groups of 4.
    const auto blocks = [](int sequences, int row_tiles, int keys, int group = 4) {
        return decode_kernel({std::int64_t{sequences} * row_tiles, 8, group, keys, 128, row_tiles},
                             132);
    };
    EXPECT_EQ(blocks(128, 4, 256), DecodeKernel::sequences);
    EXPECT_EQ(blocks(17, 2, 2048), DecodeKernel::sequences);
    EXPECT_EQ(blocks(128, 4, 2049), DecodeKernel::teams);
    EXPECT_EQ(blocks(16, 4, 1024), DecodeKernel::teams);
    EXPECT_EQ(blocks(1, 8, 256), DecodeKernel::blocks);
    EXPECT_EQ(blocks(128, 2, 256, 16), DecodeKernel::teams);  // one row each
    EXPECT_EQ(decode_kernel({512, 8, 4, 256, 128, 4, true}, 132), DecodeKernel::teams);
}

}  // namespace
}  // namespace mr::cuda::attn
