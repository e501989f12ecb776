// Forward calls that are large, follow one another, or run concurrently: cases where handing out
// tiles by a counter could go wrong.
#include <array>
#include <chrono>
#include <thread>
#include <tuple>

#include "ops/attention/flash/forward/testing.cuh"

namespace mr::cuda {
namespace {

using ops::AttentionMask;
using Kind = AttentionMask::Kind;
using ops::reference::Problem;

class FlashCallsTest : public FlashForwardTest {
  protected:
    void poison(const Device& d) {
        stream_->fill(d.out.data, 0xff, d.out.bytes());
        stream_->fill(d.lse.data, 0xff, d.lse.bytes());
    }
    struct Bits {
        std::vector<float> out, lse;
        bool operator==(const Bits&) const = default;
    };
    Bits bits(const Device& d) { return {download(d.out), download(d.lse)}; }

    // Many short sequences of all lengths: at least four tiles of queries for every multiprocessor.
    static Problem many(int dim, const AttentionMask& mask, DType dtype) {
        const int sequences = 4 * this_gpu().multiprocessors / kHeads + 1;
        std::vector<int> queries, keys;
        for (int i = 0; i < sequences; ++i) {
            queries.push_back(i % 11 == 10 ? 0 : 1 + i * 37 % 70);
            keys.push_back(1 + i * 53 % 150);
        }
        queries[0] = 300;  // three tiles of 128
        return random(kHeads, 2, dim, queries, keys, mask, dtype);
    }
    static constexpr int kHeads = 4;
};

TEST_F(FlashCallsTest, MoreTilesThanBlocks) {
    for (const auto& [dim, kind, dtype] : {std::tuple{64, Kind::causal, DType::bf16},
                                           {64, Kind::full, DType::f16},
                                           {80, Kind::full, DType::bf16},
                                           {128, Kind::causal, DType::bf16},
                                           {128, Kind::causal, DType::f16},
                                           {128, Kind::full, DType::bf16},
                                           {256, Kind::causal, DType::bf16}}) {
        const Problem p = many(dim, {kind}, dtype);
        const Wanted want = wanted(p, dtype);
        for (const Path path : paths(dtype)) {
            memory_.reset();
            const Device d = device_copy(p, dtype);
            forward(path, d, p);
            const std::string what = "head_dim " + std::to_string(dim) + ", " + name(path);
            expect_close(p, d, want, what);
            const Bits first = bits(d);
            for (int i = 0; i < 5; ++i) {
                poison(d);
                forward(path, d, p);
                ASSERT_TRUE(bits(d) == first) << what << ", again " << i;
            }
        }
    }
}

TEST_F(FlashCallsTest, EverySequenceOfManyHasTheBitsOfOne) {
    // Some tiles of queries per sequence, and as many sequences as make several rounds of all
    // blocks.
    for (const int dim : {64, 96, 128}) {
        const int n = 420, copies = this_gpu().multiprocessors / 4;
        const Problem one = random(4, 4, dim, {n}, {n}, {Kind::causal}, DType::bf16);
        const Wanted close = wanted(one, DType::bf16);
        Problem all = one;
        for (int i = 1; i < copies; ++i) {
            all.cu_q.push_back(all.cu_q.back() + n);
            all.q.insert(all.q.end(), one.q.begin(), one.q.end());
            all.k.insert(all.k.end(), one.k.begin(), one.k.end());
            all.v.insert(all.v.end(), one.v.begin(), one.v.end());
        }
        all.cu_k = all.cu_q;
        for (const Path path : paths(DType::bf16)) {
            memory_.reset();
            const Device alone = device_copy(one, DType::bf16);
            forward(path, alone, one);
            expect_close(one, alone, close, name(path));
            const Device d = device_copy(all, DType::bf16);
            forward(path, d, all);
            const Bits want = bits(alone), got = bits(d);
            for (std::size_t i = 0; i < got.out.size(); ++i) {
                ASSERT_EQ(got.out[i], want.out[i % want.out.size()])
                    << name(path) << ", " << where(all, i);
            }
            for (int h = 0; h < 4; ++h) {
                for (int i = 0; i < copies * n; ++i) {
                    ASSERT_EQ(got.lse[Problem::at(h * copies * n + i)],
                              want.lse[Problem::at(h * n + i % n)])
                        << name(path) << ", head " << h << " token " << i;
                }
            }
        }
    }
}

TEST_F(FlashCallsTest, AGraphOfSeveralCalls) {
    // Calls of several shapes, each more than once, replayed with other calls in between.
    const std::array problems{many(64, {Kind::causal}, DType::bf16),
                              many(128, {Kind::full}, DType::bf16),
                              many(128, {Kind::causal, 1, 40, 3}, DType::bf16)};
    std::vector<Device> devices;
    std::vector<Bits> want;
    for (const Problem& p : problems) {
        devices.push_back(device_copy(p, DType::bf16));
        forward(Path::chosen, devices.back(), p);
        want.push_back(bits(devices.back()));
    }
    const auto all = [&] {
        for (int i = 0; i < 3; ++i) {
            for (std::size_t j = 0; j < problems.size(); ++j) {
                forward(Path::chosen, devices[j], problems[j]);
            }
        }
    };
    const Graph graph = Graph::capture(*stream_, all);
    EXPECT_EQ(graph.nodes(), 9u);
    for (int run = 0; run < 20; ++run) {
        for (const Device& d : devices) poison(d);
        graph.launch(*stream_);
        if (run % 3 == 1) graph.launch(*stream_);
        for (std::size_t j = 0; j < problems.size(); ++j) {
            ASSERT_TRUE(bits(devices[j]) == want[j]) << "run " << run << ", call " << j;
        }
        if (run % 2 == 0) all();
    }
}

// Equal sequences are processed in another order than those whose lengths only the device knows.
TEST_F(FlashCallsTest, EqualSequencesHaveTheBitsOfGivenLengths) {
    for (const auto& [queries, keys, heads, kv_heads, copies] : {std::tuple{1024, 1024, 4, 4, 9},
                                                                 {1025, 1100, 6, 2, 1},
                                                                 {1153, 1024, 2, 1, 3},
                                                                 {1400, 1151, 3, 3, 7}}) {
        for (const DType dtype : {DType::bf16, DType::f16}) {
            const int tokens_q = copies * queries, tokens_k = copies * keys, dim = 128;
            memory_.reset();
            const auto filled = [&](int tokens, int count, unsigned seed) {
                std::vector<float> x(Problem::at(tokens) * Problem::at(count * dim));
                for (float& value : x) {
                    seed = seed * 1664525u + 1013904223u;
                    value = static_cast<float>(seed >> 8) * 0x1p-22f - 2;
                }
                return upload(dtype, {tokens, count, dim}, x);
            };
            Device d;
            d.q = filled(tokens_q, heads, 1);
            d.k = filled(tokens_k, kv_heads, 2);
            d.v = filled(tokens_k, kv_heads, 3);
            std::vector<int> cu_q, cu_k;
            for (int i = 0; i <= copies; ++i) {
                cu_q.push_back(i * queries);
                cu_k.push_back(i * keys);
            }
            d.out = poisoned(dtype, d.q.shape);
            d.lse = poisoned(DType::f32, {heads, tokens_q});
            const FlashBatch equal{nullptr, nullptr, copies, queries, keys};
            const FlashBatch given{upload<std::int32_t>(cu_q), upload<std::int32_t>(cu_k), copies,
                                   queries, keys};
            const auto call = [&](const FlashBatch& batch) {
                poison(d);
                flash_forward(ctx_, d.out, d.lse, d.q, d.k, d.v, batch, {Kind::full}, 0.1f);
                return bits(d);
            };
            const Bits want = call(given);
            for (int i = 0; i < 5; ++i) {
                ASSERT_TRUE(call(equal) == want) << queries << " x " << keys << ", run " << i;
            }
        }
    }
}

// A call in a graph keeps a counter of its own for as long as the graph can run.
TEST_F(FlashCallsTest, GraphsGiveTheirCountersBack) {
    if (this_gpu().sm != 90) GTEST_SKIP() << "the kernel with counters is sm_90's";
    const Problem p = many(64, {Kind::causal}, DType::bf16);
    const Device d = device_copy(p, DType::bf16);
    forward(Path::hopper, d, p);
    const Bits want = bits(d);
    const int before = flash::spare_counters();
    for (int run = 0; run < 3; ++run) {
        poison(d);
        {
            const Graph graph = Graph::capture(*stream_, [&] {
                forward(Path::hopper, d, p);
                forward(Path::hopper, d, p);
            });
            EXPECT_EQ(flash::spare_counters(), before - 2);
            graph.launch(*stream_);
            ASSERT_TRUE(bits(d) == want) << "run " << run;
        }
        stream_->synchronize();
        // The driver returns it from a thread of its own.
        for (int i = 0; i < 1000 && flash::spare_counters() < before; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        ASSERT_EQ(flash::spare_counters(), before) << "run " << run;
    }
}

TEST_F(FlashCallsTest, TwoStreamsAtOnce) {
    const std::array problems{many(64, {Kind::full}, DType::bf16),
                              many(128, {Kind::causal}, DType::bf16)};
    std::vector<Device> devices;
    std::vector<Bits> want;
    for (const Problem& p : problems) {
        devices.push_back(device_copy(p, DType::bf16));
        forward(Path::chosen, devices.back(), p);
        want.push_back(bits(devices.back()));
    }
    std::array<Stream, 2> streams;
    for (int run = 0; run < 20; ++run) {
        for (const Device& d : devices) poison(d);
        stream_->synchronize();
        for (int i = 0; i < 10; ++i) {
            for (std::size_t j = 0; j < 2; ++j) {
                Context ctx = ctx_;
                ctx.cuda = &streams[j];
                const Device& d = devices[j];
                flash_forward(ctx, d.out, d.lse, d.q, d.k, d.v, d.batch, problems[j].mask,
                              static_cast<float>(problems[j].scale));
            }
        }
        for (const Stream& stream : streams) stream.synchronize();
        for (std::size_t j = 0; j < 2; ++j) {
            ASSERT_TRUE(bits(devices[j]) == want[j]) << "run " << run << ", stream " << j;
        }
    }
}

}  // namespace
}  // namespace mr::cuda
