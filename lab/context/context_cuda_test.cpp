// Published streaming on the GPU (lab/context): its kernels compared with the host's loops, and
// its NLL with the ring's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "core/thread_pool.h"
#include "decode/measure.h"
#include "gpu/engines.h"
#include "lab/context/upkeep.h"
#include "lab/context/ways.h"
#include "support.h"

namespace mr::context {
namespace {

class GpuContextUpkeep : public cuda::GpuTest {
  protected:
    // Pages in host memory with random contents, unordered, and more of them than are used.
    struct Pages {
        std::vector<std::vector<std::byte>> memory;
        Cache cache;
    };
    Pages make(DType type, int layers, int heads, int dim, int rotary, std::int64_t capacity) {
        constexpr std::int64_t kPages = 9;
        Pages out;
        out.cache.capacity = capacity;
        out.cache.pages = {5, 0, 7, 2, 8};
        const Shape shape{kPages, heads, ops::kPageTokens, dim};
        for (int i = 0; i < layers; ++i) {
            ops::PagedKv kv;
            for (Tensor* part : {&kv.keys, &kv.values}) {
                std::vector<float> values = normal(static_cast<std::size_t>(shape.count()));
                const Tensor rounded = upload(type, shape, values);
                out.memory.push_back(bytes_of(rounded));
                *part = {out.memory.back().data(), type, shape};
            }
            out.cache.layers.push_back(kv);
        }
        model::ModelSpec spec;
        spec.layers = layers;
        spec.rope.rotary = rotary;
        add_turns(out.cache, spec, true);
        return out;
    }
    std::vector<std::byte> bytes_of(const Tensor& t) {
        return download(static_cast<const std::byte*>(t.data), t.bytes());
    }
    // The same pages on the device.
    Cache on_device(const Pages& pages) {
        Cache cache = pages.cache;
        for (ops::PagedKv& kv : cache.layers) {
            for (Tensor* part : {&kv.keys, &kv.values}) {
                part->data = upload(std::span<const std::byte>(
                    static_cast<const std::byte*>(part->data), part->bytes()));
            }
        }
        return cache;
    }
    void expect_same(const Pages& host, const Cache& device, const std::string& after) {
        for (std::size_t i = 0; i < device.layers.size(); ++i) {
            EXPECT_TRUE(bytes_of(device.layers[i].keys) == host.memory[2 * i])
                << after << ": keys of layer " << i;
            EXPECT_TRUE(bytes_of(device.layers[i].values) == host.memory[2 * i + 1])
                << after << ": values of layer " << i;
        }
    }
};

TEST_F(GpuContextUpkeep, HasTheBitsOfTheHost) {
    ThreadPool pool(2);
    Context host_ctx;
    host_ctx.pool = &pool;
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
        // Heads of one vector and of more than a tile has threads for; partial rotation, and
        // rotation that ends inside a vector.
        for (const auto& [dim, rotary] :
             {std::pair{8, 8}, {80, 20}, {64, 64}, {128, 128}, {256, 34}, {64, 0}}) {
            const std::string what = std::string(dtype_name(type)) + ", " + std::to_string(dim) +
                                     " of which " + std::to_string(rotary) + " turn";
            memory_.reset();
            Pages pages = make(type, 3, 2, dim, rotary, 150);
            const Cache there = on_device(pages);
            const std::unique_ptr<Upkeep> host = make_host_upkeep(host_ctx, pages.cache);
            const std::unique_ptr<Upkeep> device = make_device_upkeep(ctx_, there);
            const auto both = [&](const std::string& after, auto&& call) {
                EXPECT_EQ(call(*host), call(*device));
                expect_same(pages, there, what + ", " + after);
            };
            both("taken", [](Upkeep& of) { return of.take(0, 149) + of.take(149, 150); });
            both("rotated", [](Upkeep& of) { return of.rotate(150); });
            both("one evicted", [](Upkeep& of) { return of.evict(4, 1, 150); });
            both("rotated again", [](Upkeep& of) { return of.rotate(149); });
            both("many evicted", [](Upkeep& of) { return of.evict(0, 40, 149); });
            both("rotated at last", [](Upkeep& of) { return of.rotate(109); });
            both("the last evicted", [](Upkeep& of) { return of.evict(101, 8, 109); });
            both("all evicted", [](Upkeep& of) { return of.evict(0, 101, 101); });
        }
    }
}

class GpuContext : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    static Options options_for(const model::Model& model) {
        Options options;
        options.stream = {4, 92};
        options.prunes = {3, 16};
        options.ids = decode::made_up_ids(300, model.spec.vocab);
        options.timed = 20;
        options.sample = 5;
        options.score = true;
        options.engine.cuda = true;
        return options;
    }
};

TEST_F(GpuContext, PublishedIsTheRing) {
    for (const char* family : {"gpt-neox", "llama2"}) {
        SCOPED_TRACE(family);
        const test::OnDevice on = test::load_on_device(test::reference(family));
        const Options options = options_for(*on.model);
        std::vector<double> published, ring;
        {
            const auto engine = on.engine(plain_options(options));
            published = score_published(*engine, options.stream, 1, options.ids);
        }
        const auto engine = on.engine(ring_options(options));
        ring = score_ring(*engine, options.stream, options.ids);
        ASSERT_EQ(published.size(), ring.size());
        // Weights are f32; sums are in other orders.
        double most = 0, sum = 0;
        for (std::size_t i = 0; i < ring.size(); ++i) {
            most = std::max(most, std::fabs(published[i] - ring[i]));
            sum += published[i] - ring[i];
        }
        EXPECT_LT(most, 1e-2);
        EXPECT_LT(std::fabs(sum) / static_cast<double>(ring.size()), 1e-3);
    }
}

TEST_F(GpuContext, ComparesAllWays) {
    const test::OnDevice on = test::load_on_device("random:stories-42m:bf16");
    const Options options = options_for(*on.model);
    const std::vector<Way> ways = compare(on.model, on.weights, options);
    ASSERT_EQ(ways.size(), 5u);
    for (const Way& way : ways) {
        SCOPED_TRACE(way.name);
        EXPECT_GT(way.forward, 0);
        EXPECT_GT(way.wall, 0);
        ASSERT_TRUE(way.sample_nll);
        EXPECT_NEAR(*way.sample_nll, *ways.back().sample_nll, 1);
    }
    EXPECT_NEAR(*ways[1].nll, *ways.back().nll, 0.02);
    EXPECT_GT(ways[1].upkeep, 0);
    EXPECT_GT(ways[1].bytes, ways[2].bytes);
    EXPECT_GT(ways[2].bytes, ways[3].bytes);
    EXPECT_EQ(ways.back().bytes, 0);
}

}  // namespace
}  // namespace mr::context
