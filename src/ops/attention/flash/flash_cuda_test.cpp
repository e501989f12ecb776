// The forward of attention on plain tensors, every path that this device can run, against the
// reference in f64 with bounds for every element.
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "ops/attention/flash/forward/testing.cuh"
#include "ops/attention/mask_testing.h"

namespace mr::cuda {
namespace {

namespace reference = ops::reference;
using ops::AttentionMask;
using ops::HeadRows;
using Kind = AttentionMask::Kind;
using reference::Problem;
using Path = FlashForwardTest::Path;

class FlashTest : public FlashForwardTest {};

std::vector<AttentionMask> masks() {
    return {{Kind::full},
            {Kind::causal},
            {Kind::block_causal, 48},
            {Kind::block_causal, 7},
            {Kind::causal, 1, 50},
            {Kind::causal, 1, 100, 5},
            {Kind::full, 1, 33, 2},
            {Kind::block_causal, 32, 70, 3, 9},
            {Kind::block_before, 48},
            {Kind::block_before, 4}};
}

std::string text(int dim, DType dtype, const AttentionMask& mask) {
    return std::string(dtype_name(dtype)) + " head_dim " + std::to_string(dim) + " mask " +
           std::to_string(static_cast<int>(mask.kind)) + " block " + std::to_string(mask.block) +
           " window " + std::to_string(mask.window);
}

// Head sizes differ in their tiles, and so in how they walk over a mask. Queries before the first
// key see none, unless they see all: so every size has rows without weight.
TEST_F(FlashTest, EveryMaskHeadSizeAndType) {
    struct Case {
        int dim;
        std::vector<int> q, k;
    };
    for (const Case& c :
         {Case{64, {150, 1, 63, 200}, {150, 64, 65, 131}}, Case{80, {131, 1, 30}, {150, 40, 7}},
          Case{96, {1, 140, 6, 30}, {9, 140, 90, 11}}, Case{128, {150, 9}, {131, 70}},
          Case{256, {129, 5, 20}, {137, 70, 9}}}) {
        for (const AttentionMask& mask : masks()) {
            for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
                const Problem p = random(2, 1, c.dim, c.q, c.k, mask, dtype);
                expect_all_paths(p, dtype, text(c.dim, dtype, mask));
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(FlashTest, BlocksFromEveryOrigin) {
    for (const AttentionMask& mask : ops::reference::origin_masks()) {
        for (const int dim : {64, 128}) {
            for (const DType dtype : {DType::bf16, DType::f32}) {
                const Problem p = random(2, 1, dim, {70, 9, 40}, {70, 41, 13}, mask, dtype);
                expect_all_paths(p, dtype,
                                 text(dim, dtype, mask) + " origin " + std::to_string(mask.origin));
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(FlashTest, EveryHeadSize) {
    for (const int dim : {8, 16, 32, 40, 64, 72, 80, 96, 104, 128, 136, 192, 256}) {
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
            const Problem p = random(2, 2, dim, {190, 5}, {200, 300}, {Kind::causal}, dtype);
            expect_all_paths(p, dtype, "head_dim " + std::to_string(dim));
        }
    }
}

TEST_F(FlashTest, EveryLength) {
    for (const int n : {1,   2,   15,  16,  17,  63,  64,  65,  79,  81,
                        127, 128, 129, 175, 177, 191, 193, 257, 385, 1000}) {
        for (const int dim : {64, 128}) {
            const Problem p = random(1, 1, dim, {n}, {n}, {Kind::causal}, DType::bf16);
            expect_all_paths(p, DType::bf16, "length " + std::to_string(n));
            if (n > 400) continue;
            const Problem full = random(1, 1, dim, {n}, {n}, {Kind::full}, DType::f16);
            expect_all_paths(full, DType::f16, "full length " + std::to_string(n));
        }
    }
    for (const int n : {1, 63, 64, 65, 127, 129, 193, 1000}) {
        for (const int dim : {80, 96, 256}) {
            const DType dtype = n % 2 ? DType::f16 : DType::bf16;
            const Problem p = random(1, 1, dim, {n}, {n}, {Kind::causal}, dtype);
            expect_all_paths(p, dtype, std::to_string(n) + " of " + std::to_string(dim));
        }
    }
}

TEST_F(FlashTest, QueriesAndKeysDiffer) {
    for (const auto& [queries, keys] :
         {std::pair{1, 500}, {17, 500}, {130, 131}, {300, 40}, {129, 1}, {200, 0}, {64, 1000}}) {
        for (const AttentionMask& mask :
             {AttentionMask{Kind::full}, AttentionMask{Kind::causal},
              AttentionMask{Kind::block_causal, 16}, AttentionMask{Kind::causal, 1, 64, 4},
              AttentionMask{Kind::block_before, 16}}) {
            const Problem p = random(2, 2, 128, {queries}, {keys}, mask, DType::bf16);
            if (keys > 0)
                expect_all_paths(p, DType::bf16,
                                 std::to_string(queries) + " x " + std::to_string(keys));
        }
    }
    // No key at all in one of the sequences.
    const Problem p = random(2, 1, 128, {200, 70, 0}, {0, 70, 9}, {Kind::full}, DType::bf16);
    expect_all_paths(p, DType::bf16, "no keys");
}

TEST_F(FlashTest, GroupsOfHeads) {
    for (const auto& [heads, kv_heads] : {std::pair{8, 8}, {8, 4}, {6, 2}, {8, 1}, {5, 1}}) {
        for (const auto& [dim, dtype] : {std::pair{64, DType::f16},
                                         {64, DType::bf16},
                                         {128, DType::f16},
                                         {128, DType::bf16}}) {
            const Problem p = random(heads, kv_heads, dim, {70, 33}, {70, 90}, {}, dtype);
            expect_all_paths(p, dtype, "heads " + std::to_string(heads));
        }
    }
}

TEST_F(FlashTest, ExtremeScores) {
    for (const float deviation : {10.0f, 60.0f}) {  // scores of hundreds, and beyond 1e4
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
            const Problem p = random(2, 2, 128, {130}, {300}, {Kind::causal}, dtype, deviation);
            if (deviation > 50) {
                EXPECT_GT(largest_score(p), 1e4);
            }
            expect_all_paths(p, dtype, "deviation " + std::to_string(deviation));
        }
    }
    for (const int dim : {64, 80, 96, 128, 256}) {
        for (const AttentionMask& mask : masks()) {
            for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
                if (dim != 64 && mask.window == 0 && mask.kind != Kind::causal) continue;
                Problem p = random(2, 1, dim, {150}, {150}, mask, dtype);
                make_extreme(p);
                if (HasFatalFailure()) return;
                expect_all_paths(p, dtype, "beyond 1e4, " + text(dim, dtype, mask));
                if (HasFatalFailure()) return;
            }
        }
    }
    // A maximum that keeps growing, slowly and fast, and one that falls.
    for (const double step : {0.02, 0.2, 3.0, -0.2}) {
        Problem p = random(1, 1, 64, {64}, {600}, {Kind::full}, DType::bf16);
        for (int i = 0; i < 64; ++i) {
            for (int d = 0; d < 64; ++d) p.q[p.q_at(0, i, 0) + Problem::at(d)] = d == 0 ? 8 : 0;
        }
        for (int j = 0; j < 600; ++j) {
            p.k[p.k_at(0, j, 0)] = rounding(DType::bf16)(static_cast<float>(j * step));
        }
        expect_all_paths(p, DType::bf16, "growing by " + std::to_string(step));
    }
}

TEST_F(FlashTest, RowsWithoutWeight) {
    // Some rows have only scores of -infinity; others see no key.
    for (const int dim : {64, 80, 96, 128, 256}) {
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
            for (const AttentionMask& mask :
                 {AttentionMask{Kind::causal}, AttentionMask{Kind::full, 1, 33, 2}}) {
                Problem p = random(2, 2, dim, {100}, {100}, mask, dtype);
                for (double& x : p.k) {
                    x = rounding(dtype)(static_cast<float>(std::abs(x) + 0.5));
                }
                for (const int i : {0, 3, 64, 99}) {
                    double* q = &p.q[p.q_at(0, i, 0)];
                    std::fill(q, q + 2 * dim, -std::numeric_limits<double>::infinity());
                }
                expect_all_paths(p, dtype, "-infinity, " + text(dim, dtype, mask));
                if (HasFatalFailure()) return;
            }
            const AttentionMask window{Kind::causal, 1, 20};
            const Problem before = random(2, 1, dim, {300, 3}, {40, 3}, window, dtype);
            expect_all_paths(before, dtype, "before every key, " + text(dim, dtype, window));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashTest, ASequenceIsItsOwn) {
    // The bits of a sequence alone, and between others that are all NaN or infinity.
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double inf = std::numeric_limits<double>::infinity();
    for (const auto& [dim, foreign, kind] : {std::tuple{64, nan, Kind::full},
                                             {64, -inf, Kind::causal},
                                             {80, inf, Kind::full},
                                             {128, nan, Kind::causal},
                                             {128, inf, Kind::full},
                                             {256, nan, Kind::full},
                                             {256, inf, Kind::causal}}) {
        const Problem p = random(4, 2, dim, {77}, {133}, {kind}, DType::bf16);
        for (const Path path : paths(DType::bf16)) {
            memory_.reset();
            const Device alone = device_copy(p, DType::bf16);
            forward(path, alone, p);
            const std::vector<float> want = download(alone.out), want_lse = download(alone.lse);

            Problem wide = random(4, 2, dim, {50, 77, 90}, {61, 133, 200}, {kind}, DType::bf16);
            for (std::vector<double>* x : {&wide.q, &wide.k, &wide.v}) {
                x->assign(x->size(), foreign);
            }
            std::copy(p.q.begin(), p.q.end(),
                      wide.q.begin() + static_cast<std::ptrdiff_t>(wide.q_at(1, 0, 0)));
            const auto k_begin = static_cast<std::ptrdiff_t>(wide.k_at(1, 0, 0));
            std::copy(p.k.begin(), p.k.end(), wide.k.begin() + k_begin);
            std::copy(p.v.begin(), p.v.end(), wide.v.begin() + k_begin);
            const Device d = device_copy(wide, DType::bf16);
            forward(path, d, wide);
            const std::vector<float> out = download(d.out), lse = download(d.lse);
            for (std::size_t i = 0; i < want.size(); ++i) {
                ASSERT_EQ(out[wide.q_at(1, 0, 0) + i], want[i]) << name(path) << ' ' << i;
            }
            for (int h = 0; h < 4; ++h) {
                for (int i = 0; i < 77; ++i) {
                    ASSERT_EQ(lse[wide.lse_at(1, i, h)], want_lse[p.lse_at(0, i, h)]);
                }
            }
        }
    }
}

TEST_F(FlashTest, TheSameBitsEveryTime) {
    for (const auto& [dim, dtype] :
         {std::pair{64, DType::bf16}, {128, DType::bf16}, {128, DType::f16}}) {
        const Problem p = random(8, 4, dim, {700, 1, 300}, {700, 50, 350}, {Kind::causal}, dtype);
        expect_same_bits(p, dtype, text(dim, dtype, p.mask));
        if (HasFatalFailure()) return;
    }
    for (const auto& [dim, dtype] : {std::pair{64, DType::f16},
                                     {80, DType::bf16},
                                     {96, DType::f16},
                                     {128, DType::bf16},
                                     {256, DType::bf16},
                                     {64, DType::f32}}) {
        for (const AttentionMask& mask :
             {AttentionMask{Kind::full}, AttentionMask{Kind::block_causal, 48},
              AttentionMask{Kind::causal, 1, 100, 5}}) {
            const Problem p = random(8, 4, dim, {200, 1, 140}, {200, 50, 160}, mask, dtype);
            expect_same_bits(p, dtype, text(dim, dtype, mask));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashTest, PartsOfAFusedProjection) {
    // q, k and v in one tensor of rows q | k | v; out in rows with a gap that must stay unchanged.
    const int heads = 4, kv_heads = 2, dim = 80, tokens = 150, width = (heads + 2 * kv_heads) * dim;
    const Problem p = random(heads, kv_heads, dim, {tokens}, {tokens}, {}, DType::bf16);
    std::vector<float> fused;
    for (int t = 0; t < tokens; ++t) {
        const auto row = [&](const std::vector<double>& x, int count) {
            for (int i = 0; i < count * dim; ++i) {
                fused.push_back(static_cast<float>(x[Problem::at(t * count * dim + i)]));
            }
        };
        row(p.q, heads);
        row(p.k, kv_heads);
        row(p.v, kv_heads);
    }
    for (const Path path : paths(DType::bf16)) {
        memory_.reset();
        const Tensor all = upload(DType::bf16, {tokens, 1, width}, fused);
        const auto part = [&](int first, int count) {
            return HeadRows({static_cast<std::byte*>(all.data) + 2 * first * dim,
                             DType::bf16,
                             {tokens, count, dim}},
                            width);
        };
        const int gap = 16;
        const Tensor wide = poisoned(DType::bf16, {tokens, 1, heads * dim + gap});
        const Tensor lse = poisoned(DType::f32, {heads, tokens});
        forward(path, HeadRows({wide.data, DType::bf16, {tokens, heads, dim}}, heads * dim + gap),
                lse, part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads), {},
                p.mask, p.scale);
        const reference::Result want = reference::forward(p);
        const reference::Result bound = reference::error_bounds(p, want, {0x1p-22, 0x1p-8, 0x1p-8});
        const std::vector<float> out = download(wide);
        for (int t = 0; t < tokens; ++t) {
            for (int i = 0; i < heads * dim + gap; ++i) {
                const float x = out[Problem::at(t * (heads * dim + gap) + i)];
                const std::size_t at = Problem::at(t * heads * dim + i);
                if (i >= heads * dim) {
                    ASSERT_TRUE(std::isnan(x)) << "the gap is not attention's";
                } else {
                    ASSERT_LE(std::abs(x - want.out[at]), bound.out[at]) << name(path);
                }
            }
        }
    }
}

TEST_F(FlashTest, EqualSequencesNeedNoLengths) {
    const Problem p =
        random(4, 4, 128, {100, 100, 100}, {120, 120, 120}, {Kind::causal}, DType::f16);
    for (const Path path : paths(DType::f16)) {
        memory_.reset();
        Device d = device_copy(p, DType::f16);
        d.batch = {nullptr, nullptr, 3, 100, 120};
        forward(path, d, p);
        expect_close(p, d, wanted(p, DType::f16), name(path));
    }
}

TEST_F(FlashTest, TokensOfNoSequenceStayAsTheyAre) {
    const Problem p = random(2, 2, 64, {70, 30}, {70, 30}, {}, DType::bf16);
    for (const Path path : paths(DType::bf16)) {
        memory_.reset();
        Device d = device_copy(p, DType::bf16);
        d.batch.sequences = 1;
        forward(path, d, p);
        const std::vector<float> out = download(d.out);
        for (std::size_t i = 0; i < out.size(); ++i) {
            ASSERT_EQ(std::isnan(out[i]), i >= p.q_at(1, 0, 0)) << name(path) << ' ' << i;
        }
    }
}

TEST_F(FlashTest, ChoosesAPathAndCanBeCaptured) {
    const Problem p = random(4, 2, 128, {300}, {300}, {}, DType::bf16);
    const Device d = device_copy(p, DType::bf16);
    forward(Path::chosen, d, p);
    expect_close(p, d, wanted(p, DType::bf16), "chosen");
    const std::vector<float> want = download(d.out);
    stream_->fill(d.out.data, 0xff, d.out.bytes());
    stream_->synchronize();
    const Graph graph = Graph::capture(*stream_, [&] { forward(Path::chosen, d, p); });
    for (int i = 0; i < 3; ++i) {
        stream_->fill(d.out.data, 0xff, d.out.bytes());
        graph.launch(*stream_);
        ASSERT_EQ(download(d.out), want);
    }
    const OpRecord& record = ledger_.op(OpKind::attention);
    EXPECT_EQ(record.flops, 2u * 4 * (300 * 301 / 2) * 4 * 128);
}

TEST_F(FlashTest, NothingToDo) {
    const Tensor q = memory_.tensor(DType::bf16, {0, 2, 64}),
                 k = memory_.tensor(DType::bf16, {5, 2, 64});
    EXPECT_NO_THROW(flash_forward(ctx_, q, {nullptr, DType::f32, {2, 0}}, q, k, k, {}, {}, 1));
    stream_->synchronize();
}

}  // namespace
}  // namespace mr::cuda
