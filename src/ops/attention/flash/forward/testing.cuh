// Shared by the tests of attention's forward on the GPU: every path of the device, upload and
// download, and the comparison of every element with its bound.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "ops/attention/flash/dispatch.cuh"
#include "ops/attention/flash/flash_cuda.h"
#include "ops/attention/flash/flash_testing.h"

namespace mr::cuda {

class FlashForwardTest : public FlashGpuTest {
  public:
    enum class Path { chosen, hopper, mma, plain };
    static const char* name(Path path) {
        constexpr const char* kNames[] = {"chosen", "hopper", "mma", "plain"};
        return kNames[static_cast<int>(path)];
    }

  protected:
    using Problem = ops::reference::Problem;
    using HeadRows = ops::HeadRows;
    using AttentionMask = ops::AttentionMask;

    // The paths that this device has for the type.
    static std::vector<Path> paths(DType dtype) {
        if (dtype == DType::f32) return {Path::plain};
        std::vector<Path> all{Path::plain};
        if (this_gpu().sm >= 80) all.push_back(Path::mma);
        if (this_gpu().sm == 90) all.push_back(Path::hopper);
        return all;
    }
    static Problem random(int heads, int kv_heads, int dim, const std::vector<int>& q,
                          const std::vector<int>& k, const AttentionMask& mask, DType dtype,
                          float deviation = 1) {
        return ops::reference::random_problem(heads, kv_heads, dim, q, k, mask, 11, deviation,
                                              rounding(dtype));
    }

    struct Device {
        Tensor q, k, v, out, lse;
        FlashBatch batch;
    };
    Device device_copy(const Problem& p, DType dtype) {
        const auto put = [&](const std::vector<double>& x, int tokens, int heads) {
            std::vector<float> values(x.begin(), x.end());
            return upload(dtype, {tokens, heads, p.head_dim}, values);
        };
        Device d;
        d.q = put(p.q, p.tokens_q(), p.heads);
        d.k = put(p.k, p.tokens_k(), p.kv_heads);
        d.v = put(p.v, p.tokens_k(), p.kv_heads);
        d.out = poisoned(dtype, d.q.shape);
        d.lse = poisoned(DType::f32, {p.heads, p.tokens_q()});
        d.batch = device_batch(p);
        return d;
    }
    void forward(Path path, const HeadRows& out, const Tensor& lse, const HeadRows& q,
                 const HeadRows& k, const HeadRows& v, const FlashBatch& batch,
                 const AttentionMask& mask, double scale) {
        const auto f = static_cast<float>(scale);
        if (path == Path::chosen) {
            return flash_forward(ctx_, out, lse, q, k, v, batch, mask, f);
        }
        const flash::Problem p = flash::checked_forward(ctx_, out, lse, q, k, v, batch, mask, f);
        if (path == Path::hopper) flash::forward_hopper(ctx_, p, nullptr);
        if (path == Path::mma) flash::forward_mma(ctx_, p, nullptr);
        if (path == Path::plain) flash::forward_plain(ctx_, p, nullptr);
    }
    void forward(Path path, const Device& d, const Problem& p) {
        forward(path, d.out, d.lse, d.q, d.k, d.v, d.batch, p.mask, p.scale);
    }

    // The bits of out and lse.
    std::vector<std::uint32_t> bits(const Device& d) {
        std::vector<std::uint32_t> all;
        for (const Tensor& t : {d.out, d.lse}) {
            const auto part = download(static_cast<const std::uint32_t*>(t.data), t.bytes() / 4);
            all.insert(all.end(), part.begin(), part.end());
        }
        return all;
    }
    // 100 runs have the bits of the first, all of out and lse.
    void expect_same_bits(const Problem& p, DType dtype, const std::string& what) {
        for (const Path path : paths(dtype)) {
            memory_.reset();
            const Device d = device_copy(p, dtype);
            std::vector<std::uint32_t> first;
            for (int run = 0; run < 100; ++run) {
                stream_->fill(d.out.data, 0xff, d.out.bytes());
                stream_->fill(d.lse.data, 0xff, d.lse.bytes());
                forward(path, d, p);
                if (run == 0) first = bits(d);
                ASSERT_TRUE(bits(d) == first) << what << ", " << name(path) << " run " << run;
            }
        }
    }

    static std::string where(const Problem& p, std::size_t at) {
        const auto dim = static_cast<std::size_t>(p.head_dim), heads = std::size_t(p.heads);
        return "token " + std::to_string(at / dim / heads) + " head " +
               std::to_string(at / dim % heads) + " number " + std::to_string(at % dim);
    }
    static Wanted wanted(const Problem& p, DType dtype) {
        return with_bounds(p, ops::reference::forward(p), dtype);
    }
    // Checks every element against its bound and reports the first that exceeds it.
    void expect_close(const Problem& p, const Device& d, const Wanted& want,
                      const std::string& what) {
        const std::vector<float> out = download(d.out), lse = download(d.lse);
        for (std::size_t i = 0; i < out.size(); ++i) {
            ASSERT_LE(std::abs(out[i] - want.value.out[i]), want.bound.out[i] + 0x1p-126)
                << what << ": out " << out[i] << ", is " << want.value.out[i] << ", at "
                << where(p, i);
        }
        for (std::size_t i = 0; i < lse.size(); ++i) {
            if (std::isinf(want.value.lse[i])) {
                ASSERT_EQ(lse[i], -std::numeric_limits<float>::infinity()) << what << ": lse " << i;
            } else {
                ASSERT_LE(std::abs(lse[i] - want.value.lse[i]), want.bound.lse[i])
                    << what << ": lse " << lse[i] << ", is " << want.value.lse[i] << ", at " << i;
            }
        }
    }
    void expect_all_paths(const Problem& p, DType dtype, const std::string& what) {
        const Wanted want = wanted(p, dtype);
        for (const Path path : paths(dtype)) {
            memory_.reset();
            const Device d = device_copy(p, dtype);
            forward(path, d, p);
            expect_close(p, d, want, what + ", " + name(path));
        }
        memory_.reset();
    }
};

}  // namespace mr::cuda
