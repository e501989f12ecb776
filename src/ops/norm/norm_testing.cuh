// Shared by the tests of norms on the GPU: repeated rows on the device, each compared with f64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/cuda/kernel.cuh"
#include "core/cuda/testing.h"
#include "ops/norm/norm_testing.h"

namespace mr::cuda::norms {

using ops::NormKind;

inline constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
inline constexpr NormKind kKinds[] = {NormKind::rms, NormKind::layer};
inline constexpr std::int64_t kCols[] = {1, 7, 64, 172, 255, 256, 2560, 4096, 11008};
inline constexpr float kEps = 1e-5f;
inline constexpr double kRoundoff = 0x1p-24;

// Values on the device and, equal, on the host.
struct Both {
    Tensor tensor;
    std::vector<float> values;
};

class NormTest : public GpuTest {
  protected:
    // Each call takes another part of one long list: making normal values takes most of the time.
    Both make(DType dtype, Shape shape, float deviation = 1, float mean = 0) {
        if (list_.empty()) list_ = normal((std::size_t{1} << 18) + 3);
        Both both{{}, std::vector<float>(static_cast<std::size_t>(shape.count()))};
        for (float& v : both.values) {
            v = list_[next_] * deviation + mean;
            if (++next_ == list_.size()) next_ = 0;
        }
        both.tensor = upload(dtype, shape, both.values);
        return both;
    }
    // `some` repeated on the device, `rows` rows in all.
    Tensor repeated(Tensor some, std::int64_t rows) {
        const Tensor all = poisoned(some.dtype, {rows, some.cols()});
        std::int64_t done = std::min(some.rows(), rows);
        stream_->on_device(all.data, some.data, some.slice_rows(0, done).bytes());
        while (done < rows) {  // doubled each time
            const std::int64_t more = std::min(done, rows - done);
            const Tensor to = all.slice_rows(done, more);
            stream_->on_device(to.data, all.data, to.bytes());
            done += more;
        }
        return all;
    }
    // The first row that differs from the repeated `want`; -1: none.
    std::int64_t first_other_row(Tensor got, Tensor want);
    Tensor ran(const NormPass& pass) {
        norm(ctx_, pass);
        return pass.out;
    }
    NormPass pass_of(NormKind kind, Tensor out, Tensor x, Tensor weight, Tensor bias) {
        return cuda::pass_of(kind, out, x, weight, bias, kEps);
    }
    std::vector<std::byte> bits(Tensor t) {
        return download(static_cast<const std::byte*>(t.data), t.bytes());
    }

  private:
    std::vector<float> list_;
    std::size_t next_ = 0;
};

// Every type has 2 or 4 bytes. A template, so that several files may include it.
template <int = 0>
__global__ void find_difference(const std::uint16_t* got, const std::uint16_t* want,
                                unsigned long long count, unsigned long long period,
                                unsigned long long* first) {
    wait_for_previous();
    const unsigned long long step = gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        if (got[i] != want[i % period]) atomicMin(first, i);
    }
}

inline std::int64_t NormTest::first_other_row(Tensor got, Tensor want) {
    const unsigned long long count = got.bytes() / 2;
    const unsigned long long none[] = {count};
    unsigned long long* first = upload<unsigned long long>(none);
    launch(ctx_, dim3(1024), dim3(256), 0, find_difference<>,
           static_cast<const std::uint16_t*>(got.data),
           static_cast<const std::uint16_t*>(want.data), count, want.bytes() / 2, first);
    const unsigned long long at = download(first, 1)[0];
    return at == count ? -1 : static_cast<std::int64_t>(at / (got.row_bytes() / 2));
}

inline std::string label(NormKind kind, std::int64_t rows, std::int64_t cols, DType x, DType out) {
    return std::string(kind == NormKind::rms ? "rms " : "layer ") + std::to_string(rows) + " x " +
           std::to_string(cols) + " " + dtype_name(x) + " -> " + dtype_name(out);
}

// Roundoffs of a sum over a row: a partial's chain has cols / 1024 chunks, a chunk two levels and
// the product, the tree eight levels; the mean's reciprocal and product two more.
inline double sum_roundoffs(std::int64_t cols) {
    return static_cast<double>(cols) / 1024 + 1 + 3 + 8 + 2;
}

// One row against f64. The root halves its argument's relative error; rsqrtf errs by 2 ulp (4
// roundoffs), then three more operations; and the result is rounded to its type.
inline void expect_normed(NormKind kind, const float* out, DType out_type,
                          const std::vector<double>& s, const float* weight, const float* bias,
                          const std::string& where) {
    const auto n = static_cast<double>(s.size());
    const bool layer = kind == NormKind::layer;
    double sum = 0, magnitude = 0, squares = 0;
    for (const double v : s) {
        sum += v;
        magnitude += std::abs(v);
    }
    const double mean = layer ? sum / n : 0;
    for (const double v : s) squares += (v - mean) * (v - mean);
    const double variance = squares / n + double{kEps};
    const double factor = 1 / std::sqrt(variance);
    const double chain = sum_roundoffs(static_cast<std::int64_t>(s.size()));
    // The mean's error shifts every centred value; it enters the variance only squared, since the
    // centred values sum to 0.
    const double mean_error = layer ? chain * kRoundoff * magnitude / n : 0;
    const double relative =
        (0.5 * (chain + 2) + 4 + 3) * kRoundoff + mean_error * mean_error / variance;
    const double smallest = out_type == DType::f16 ? 0x1p-25 : 0;  // half a subnormal's step
    for (std::size_t i = 0; i < s.size(); ++i) {
        const double centred = s[i] - mean;
        const double b = bias ? double{bias[i]} : 0;
        const double want = centred * factor * double{weight[i]} + b;
        const double exact_error = std::abs(factor * double{weight[i]}) *
                                       (mean_error + relative * (std::abs(centred) + mean_error) +
                                        kRoundoff * std::abs(mean)) +
                                   2 * kRoundoff * (std::abs(want) + std::abs(b));
        const double error =
            exact_error + smallest +
            (out_type == DType::f32 ? 0 : epsilon(out_type) * (std::abs(want) + exact_error));
        ASSERT_NEAR(out[i], want, error) << where << " column " << i;
    }
}

}  // namespace mr::cuda::norms
