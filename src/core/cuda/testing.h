// For tests on the GPU: skipping without a GPU,
// upload and download, and reference values.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "core/cuda/device.h"
#include "core/cuda/timeline.h"
#include "core/half.h"
#include "core/tensor.h"

namespace mr::cuda {

// Set in the environment: a test that finds no GPU then fails instead of skipping.
inline bool gpu_is_required() {
    const char* value = std::getenv("MILLRACE_REQUIRE_GPU");
    return value && std::string_view(value) == "1";
}

}  // namespace mr::cuda

// In SetUp() of every test that needs the GPU.
#define MR_NEED_GPU()                                                                        \
    if (!::mr::cuda::device()) {                                                             \
        if (::mr::cuda::gpu_is_required()) {                                                 \
            FAIL() << "MILLRACE_REQUIRE_GPU=1, and no GPU: " << ::mr::cuda::why_no_device(); \
        }                                                                                    \
        GTEST_SKIP() << "no GPU: " << ::mr::cuda::why_no_device();                           \
    }                                                                                        \
    static_assert(true)

namespace mr::cuda {

class GpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        MR_NEED_GPU();
        stream_ = std::make_unique<Stream>();
        ctx_.cuda = stream_.get();
        ctx_.ledger = &ledger_;
        memory_ = DeviceArena("test", std::size_t{2} << 30);
    }
    // For a derived SetUp(): false if the test was skipped or has failed.
    static bool has_gpu() { return !IsSkipped() && !HasFatalFailure(); }
    void TearDown() override {
        if (stream_) stream_->synchronize();  // reports a kernel's fault in its own test
    }

    // Device memory filled with NaN, so that an output that was not written shows.
    Tensor poisoned(DType dtype, Shape shape) {
        const Tensor t = memory_.tensor(dtype, shape);
        stream_->fill(t.data, 0xff, t.bytes());
        return t;
    }
    template <typename T>
    T* upload(std::span<const T> values) {
        T* to = memory_.array<T>(values.size());
        stream_->to_device(to, values.data(), values.size_bytes(), nullptr);
        stream_->synchronize();
        return to;
    }
    // Uploads f32 values rounded to `dtype`; `values` become the rounded ones.
    Tensor upload(DType dtype, Shape shape, std::vector<float>& values) {
        const Tensor t = memory_.tensor(dtype, shape);
        std::vector<std::byte> bytes(t.bytes());
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (dtype == DType::f32) {
                std::memcpy(bytes.data() + 4 * i, &values[i], 4);
            } else {
                const std::uint16_t half =
                    dtype == DType::bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
                std::memcpy(bytes.data() + 2 * i, &half, 2);
                values[i] = dtype == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
            }
        }
        stream_->to_device(t.data, bytes.data(), bytes.size(), nullptr);
        stream_->synchronize();
        return t;
    }
    std::vector<float> download(Tensor t) {
        std::vector<std::byte> bytes(t.bytes());
        stream_->to_host(bytes.data(), t.data, bytes.size(), nullptr);
        stream_->synchronize();
        std::vector<float> values(static_cast<std::size_t>(t.shape.count()));
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (t.dtype == DType::f32) {
                std::memcpy(&values[i], bytes.data() + 4 * i, 4);
            } else {
                std::uint16_t half = 0;
                std::memcpy(&half, bytes.data() + 2 * i, 2);
                values[i] = t.dtype == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
            }
        }
        return values;
    }
    template <typename T>
    std::vector<T> download(const T* from, std::size_t count) {
        std::vector<T> values(count);
        stream_->to_host(values.data(), from, count * sizeof(T), nullptr);
        stream_->synchronize();
        return values;
    }
    std::vector<float> normal(std::size_t count, float deviation = 1.0f) {
        std::normal_distribution<float> dist(0, deviation);
        std::vector<float> values(count);
        for (float& v : values) v = dist(random_);
        return values;
    }

    std::mt19937 random_{7};
    std::unique_ptr<Stream> stream_;
    Ledger ledger_;
    DeviceArena memory_;
    Context ctx_;
};

// Relative rounding error: half the distance between neighbours near 1.
inline double epsilon(DType dtype) {
    return dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}

}  // namespace mr::cuda
