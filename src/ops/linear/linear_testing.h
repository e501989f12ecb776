// Shared by the tests of linear_small() and linear_plain(): matrices of every type on the device,
// and the expected results.
#pragma once

#include <cmath>
#include <vector>

#include "core/cuda/testing.h"
#include "core/thread_pool.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/tile_layout.h"
#include "ops/quant/quant.h"

namespace mr::cuda {

// Types that linear_small() supports.
inline constexpr DType kSmallTypes[] = {DType::bf16, DType::f16, DType::q8_0x8, DType::q4_0x8};

struct Matrix {
    Tensor device;              // as the kernel reads it
    Tensor host;                // q8_0 or q4_0 blocks, for the CPU's product
    std::vector<float> values;  // [n, k], the values of the weights
    std::vector<std::byte> bytes;
};

inline constexpr int kMostRows = 300, kMostColumns = 11008;

class LinearGpuTest : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (!has_gpu()) return;
        if (tensor_cores() && !linear_small_takes(DType::bf16, 64)) {
            GTEST_SKIP() << "linear_small() needs sm_80";
        }
        // NaN, so that reads of unprepared scratch show.
        scratch_ = DeviceArena("scratch", linear_small_scratch_bytes(kMostRows, kMostColumns));
        stream_->fill(scratch_.data(), 0xff, scratch_.size());
        ctx_.scratch = {static_cast<std::byte*>(scratch_.data()), scratch_.size()};
    }
    DeviceArena scratch_;
    virtual bool tensor_cores() const { return true; }

    Matrix matrix(DType type, int n, int k) {
        Matrix m;
        m.values = normal(static_cast<std::size_t>(n) * k, 1 / std::sqrt(static_cast<float>(k)));
        if (!ops::is_tiled(type)) {
            m.device = upload(type, {n, k}, m.values);
            return m;
        }
        const DType plain = type == DType::q8_0x8 ? DType::q8_0 : DType::q4_0;
        m.bytes.resize(dtype_bytes(plain, m.values.size()));
        ops::quantize(plain, m.values.data(), m.bytes.data(), n * std::int64_t{k});
        ops::dequantize(plain, m.bytes.data(), m.values.data(), n * std::int64_t{k});
        m.host = {m.bytes.data(), plain, {n, k}};
        std::vector<std::byte> tiles(ops::tile_bytes(type, n, k));
        ops::pack_tiles(type, m.bytes.data(), n, k, tiles.data());
        m.device = {upload<std::byte>(std::span<const std::byte>(tiles)), type, {n, k}};
        return m;
    }

    // x · wᵀ in f64, or for quantised weights as on the CPU; and the error bound of f32 sums.
    struct Reference {
        std::vector<double> out, slack;
    };
    Reference reference(const Matrix& m, std::span<const float> x, int rows, int n, int k) {
        Reference r;
        r.out.resize(static_cast<std::size_t>(rows) * n);
        r.slack.resize(r.out.size());
        std::vector<float> cpu(r.out.size());
        if (m.host) {
            ThreadPool pool(2);
            std::vector<std::byte> scratch(ops::linear_scratch_bytes(rows, k, 2));
            Context host;
            host.pool = &pool;
            host.scratch = scratch;
            ops::linear(host, Tensor(const_cast<float*>(x.data()), DType::f32, {rows, k}),
                        {m.host, Tensor(cpu.data(), DType::f32, {rows, n}), {}, {}});
        }
        for (int t = 0; t < rows; ++t) {
            for (int i = 0; i < n; ++i) {
                double sum = 0, size = 0;
                for (int c = 0; c < k; ++c) {
                    const double product = static_cast<double>(x[t * k + c]) * m.values[i * k + c];
                    sum += product;
                    size += std::fabs(product);
                }
                const std::size_t at = static_cast<std::size_t>(t) * n + i;
                r.out[at] = m.host ? cpu[at] : sum;
                // Tensor cores add slightly less precisely than f32: k terms, half an ulp each,
                // twice.
                r.slack[at] = size * 0x1p-23 * (2 + std::sqrt(static_cast<double>(k))) + 1e-30;
            }
        }
        return r;
    }
};

}  // namespace mr::cuda
