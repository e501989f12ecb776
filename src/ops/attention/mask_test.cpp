// Tests the definition of what a query sees against the description of AttentionMask, and every
// form of it in an op or a kernel against the definition: exhaustively, for small numbers.
#include "ops/attention/mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/attention/flash/mask.h"
#include "ops/attention/flash/reference.h"
#include "ops/attention/mask_testing.h"
#include "ops/attention/paged/parts.h"
#include "ops/attention/paged/problem.h"

namespace mr::ops::mask_test {
namespace {

using Kind = AttentionMask::Kind;

// Also as compile-time constants.
constexpr KeyMask kWindow(AttentionMask{Kind::causal, 1, 4, 2});
static_assert(kWindow.lo(10) == 7 && kWindow.hi(10, 100) == 11 && kWindow.hi(10, 9) == 9);
static_assert(kWindow.sees(10, 1, 100) && !kWindow.sees(10, 2, 100) && kWindow.sees(10, 7, 100));
static_assert(visible_keys(AttentionMask{Kind::block_causal, 4}, 5, 100).hi == 8);
static_assert(visible_keys(AttentionMask{Kind::block_before, 4}, 5, 100).hi == 4);
static_assert(visible_keys(AttentionMask{Kind::block_before, 4}, 3, 100).count() == 0);
// Blocks from position 6 on: [0, 2), [2, 6), [6, 10), ...
static_assert(visible_keys(AttentionMask{Kind::block_causal, 4, 0, 0, 6}, 1, 100).hi == 2);
static_assert(visible_keys(AttentionMask{Kind::block_causal, 4, 0, 0, 6}, 5, 100).hi == 6);
static_assert(visible_keys(AttentionMask{Kind::block_causal, 4, 0, 0, 6}, 6, 100).hi == 10);

std::vector<AttentionMask> masks() {
    std::vector<AttentionMask> out;
    for (const Kind kind : {Kind::full, Kind::causal, Kind::block_causal, Kind::block_before}) {
        for (const int block : {1, 2, 3, 5, 8, 64, 1 << 30}) {
            if (block > 1 && kind != Kind::block_causal && kind != Kind::block_before) continue;
            for (const int window : {0, 1, 2, 5, 7, 20, 1 << 30}) {
                for (const int sinks : {0, 1, 3, 6, 30, 1 << 30}) {
                    out.push_back({kind, block, window, sinks});
                }
            }
        }
    }
    for (AttentionMask mask : reference::origin_masks()) {
        for (const int window : {0, 5, 20}) {
            for (const int sinks : {0, 3, 30}) {
                mask.window = window;
                mask.sinks = sinks;
                out.push_back(mask);
            }
        }
    }
    for (const int origin : {-1, -7, 5, 39, 40, 1 << 30, 0x7fffffff, -0x7fffffff}) {
        for (const int block : {1, 3, 8, 1 << 30, 0x7fffffff}) {
            out.push_back({Kind::block_causal, block, 0, 0, origin});
        }
    }
    return out;
}

// Calls visit(mask, position, keys) for all combinations, also with positions before the first key:
// a sequence may have more queries than keys.
template <typename Visit>
void for_every_query(Visit&& visit) {
    for (const AttentionMask& mask : masks()) {
        for (const int keys : {0, 1, 2, 7, 13, 40}) {
            for (int position = -12; position < keys; ++position) {
                SCOPED_TRACE(::testing::Message()
                             << "kind " << static_cast<int>(mask.kind) << " block " << mask.block
                             << " window " << mask.window << " sinks " << mask.sinks << " keys "
                             << keys << " origin " << mask.origin << " position " << position);
                visit(mask, position, keys);
                if (::testing::Test::HasFatalFailure()) return;
            }
        }
    }
}

TEST(AttentionMask, DefinitionIsTheWords) {
    for_every_query([](const AttentionMask& words, int p, int keys) {
        const KeyMask mask(words);
        for (int j = 0; j < keys; ++j) {
            ASSERT_EQ(mask.sees(p, j, keys), reference::sees(words, p, j)) << "key " << j;
        }
        ASSERT_GE(mask.hi(p, keys), 0);
        ASSERT_LE(mask.hi(p, keys), keys);
        ASSERT_GE(mask.lo(p), 0);
    });
}

// Tiles rely on it: their first and last query bound what all of them see.
TEST(AttentionMask, BoundsNeverFall) {
    for_every_query([](const AttentionMask& words, int p, int keys) {
        const KeyMask mask(words);
        ASSERT_LE(mask.hi(p - 1, keys), mask.hi(p, keys));
        ASSERT_LE(mask.lo(p - 1), mask.lo(p));
    });
}

// The largest numbers do not overflow.
TEST(AttentionMask, LargestNumbers) {
    constexpr int kLast = KeyMask::kNever - 1, kMost = 0x7fffffff;
    const KeyMask never(AttentionMask{Kind::causal, 1, 0, 9});
    EXPECT_EQ(never.lo(kLast), 0);
    EXPECT_EQ(never.hi(kLast, kLast), kLast);
    EXPECT_EQ(never.sinks, 0);  // only a window needs them
    for (const int block : {1 << 29, (1 << 29) + 1, (1 << 30) - 1, 1 << 30}) {
        for (const int origin : {0, 1, block - 1}) {
            const AttentionMask words{Kind::block_causal, block, kMost, kMost, origin};
            const AttentionMask own = cuda::attn::for_kernels(words);
            EXPECT_EQ(cuda::attn::seen_to(own, kLast, kLast), kLast) << block << ' ' << origin;
            EXPECT_EQ(cuda::attn::seen_from(own.window, 0, kLast), 0) << block << ' ' << origin;
        }
    }
    for (const int block : {1, 1 << 29, (1 << 29) + 1, (1 << 30) - 1, 1 << 30, kMost}) {
        const KeyMask before(AttentionMask{Kind::block_before, block});
        EXPECT_EQ(before.hi(kLast, kLast), block <= kLast ? kLast / block * block : 0) << block;
        for (const int origin : {0, 1, block - 1, kMost, -kMost}) {
            const KeyMask mask(AttentionMask{Kind::block_causal, block, kMost, kMost, origin});
            EXPECT_EQ(mask.hi(kLast, kLast), kLast) << block << ' ' << origin;
            EXPECT_EQ(mask.lo(kLast), 0) << block << ' ' << origin;
        }
    }
}

TEST(AttentionMask, VisibleKeysAreTheDefinition) {
    for_every_query([](const AttentionMask& words, int p, int keys) {
        const KeyMask mask(words);
        const VisibleKeys range = visible_keys(words, p, keys);
        int count = 0;
        for (int j = 0; j < keys; ++j) {
            const bool in = j < range.sinks || (j >= range.lo && j < range.hi);
            ASSERT_EQ(in, mask.sees(p, j, keys)) << "key " << j;
            count += in;
        }
        ASSERT_EQ(range.count(), count);
        ASSERT_TRUE(range.sinks == 0 || range.sinks < range.lo);
    });
}

// The kernels over pages; their comparison is KeyRange::holds() of common.cuh. The call drops sinks
// if there is no window.
TEST(AttentionMask, BoundsOverPagesAreTheDefinition) {
    for_every_query([](const AttentionMask& words, int p, int keys) {
        const KeyMask mask(words);
        if (p < 0 && mask.origin > 0) return;  // rows of a cache have positions
        if (words.kind == Kind::block_before) return;
        const AttentionMask own = cuda::attn::for_kernels(words);
        const int hi = cuda::attn::seen_to(own, keys, p);
        const int lo = cuda::attn::seen_from(own.window, 0, p);
        ASSERT_EQ(std::max(hi, 0), mask.hi(p, keys));
        ASSERT_EQ(lo, mask.lo(p));
        for (int j = 0; j < keys; ++j) {
            ASSERT_EQ((j >= lo || j < mask.sinks) && j < hi, mask.sees(p, j, keys)) << "key " << j;
        }
    });
}

// With sinks they renumber the keys (parts.h), for a tile whose first row is anywhere before the
// query; the sinks of a row are those below its end.
TEST(AttentionMask, AViewIsTheDefinition) {
    using namespace cuda::attn;
    for_every_query([](const AttentionMask& words, int p, int keys) {
        const KeyMask mask(words);
        if (p < 0 || mask.sinks == 0 || words.kind == Kind::block_before) return;
        const AttentionMask own = for_kernels(words);
        for (const int first : {p, std::max(0, p - 3), std::max(0, p - 40)}) {
            const int shift = view_shift(own.sinks, seen_from(own.window, own.sinks, first));
            ASSERT_EQ(shift % kViewStep, 0);
            const int lo = seen_from(own.window, own.sinks - shift, p - shift);
            const int hi = seen_to(own, keys, p) - shift;
            ASSERT_GE(lo, view_lead(own.sinks));
            for (int j = 0; j < keys; ++j) {
                const int number = j - shift;
                const bool seen = j < own.sinks ? j < hi + shift : number >= lo && number < hi;
                ASSERT_EQ(seen, mask.sees(p, j, keys)) << "key " << j << ", first " << first;
                if (!seen || j < own.sinks || own.kind != Kind::causal) continue;
                ASSERT_LT(number, view_keys(own.sinks, own.window, p - first + 1));
            }
        }
    });
}

// The one-pass backward; its comparison is that of hide_scores() in tiles.cuh.
TEST(AttentionMask, ScoreBoundsAreTheDefinition) {
    for_every_query([](const AttentionMask& words, int p, int keys) {
        const KeyMask mask(words);
        const cuda::flash::ScoreBounds bounds(mask);
        const int hi = bounds.hi(p, keys), lo = bounds.lo(p);
        for (int j = 0; j < keys; ++j) {
            const bool hidden = j >= hi || (j < lo && j >= mask.sinks);
            ASSERT_EQ(!hidden, mask.sees(p, j, keys)) << "key " << j;
        }
    });
}

// The tiles of a single query and of a single key: exactly its keys and its queries. Tiles of
// several are tested in flash/problem_test.cpp.
TEST(AttentionMask, TilesOfOneAreTheDefinition) {
    for_every_query([](const AttentionMask& words, int p, int keys) {
        const KeyMask mask(words);
        const cuda::flash::KeyTiles<1> tiles(mask, p, p, keys);
        const cuda::flash::Sequence s{0, 0, keys + 12, keys};
        for (int j = 0; j < keys; ++j) {
            ASSERT_EQ(tiles.visits(j), mask.sees(p, j, keys)) << "key " << j;
            const cuda::flash::QueryTiles<1> queries(mask, s, j, 1);
            const int query = p - s.position(0);
            ASSERT_EQ(query >= queries.begin && query < queries.end, mask.sees(p, j, keys))
                << "key " << j;
        }
    });
}

}  // namespace
}  // namespace mr::ops::mask_test
