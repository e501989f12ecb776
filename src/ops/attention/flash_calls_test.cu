// Calls of attention's forward that are large, follow one another, or run beside one another: what
// a kernel that hands out its tiles by a counter could get wrong.
#include <array>

#include "ops/attention/flash_forward_testing.cuh"

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
    for (const auto& [dim, kind] : {std::pair{64, Kind::causal},
                                    {80, Kind::full},
                                    {128, Kind::causal},
                                    {128, Kind::full},
                                    {256, Kind::causal}}) {
        const Problem p = many(dim, {kind}, DType::bf16);
        const Wanted want = wanted(p, DType::bf16);
        for (const Path path : paths(DType::bf16)) {
            memory_.reset();
            const Device d = device_copy(p, DType::bf16);
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
    // Some tiles of queries a sequence, and as many sequences as make several rounds of all blocks.
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
