// How far norm(x + residual) is from the same in f64.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "ops/norm/kind.h"

namespace mr::ops {

// Rows [batch, tokens], as a model's activations have them.
struct NormErrorShape {
    std::int64_t batch = 1, tokens = 1;
    std::int64_t rows() const { return batch * tokens; }
};
// Those at which fused kernels of this kind were judged before (docs/cuda-engine.md).
inline constexpr std::array<NormErrorShape, 4> kNormErrorShapes{
    {{2, 128}, {1, 1}, {4, 256}, {1, 2048}}};

struct NormError {
    double largest = 0;   // of an element, absolute
    double relative = 0;  // root of the squared errors over that of the squared results
};

// Values that are the same in every run, rounded to a type, and what f64 makes of them.
struct NormCase {
    std::int64_t rows = 0, hidden = 0;
    NormKind kind = NormKind::layer;
    float eps = 1e-5f;
    std::vector<float> x, residual;   // [rows, hidden]
    std::vector<float> weight, bias;  // [hidden] f32; rms: no bias
    std::vector<double> want;         // [rows, hidden]
    NormError error(std::span<const float> got) const;
};
NormCase norm_case(std::int64_t rows, std::int64_t hidden, DType type, NormKind kind);

// The CPU's ops, which work on f32.
NormError norm_error(ThreadPool& pool, const NormCase& of);

}  // namespace mr::ops

namespace mr::cuda {

// The GPU's kernel, x, residual and result in `type`, the case's own. Error (device) where there is
// none.
ops::NormError norm_error(const ops::NormCase& of, DType type, bool many_rows = true);

}  // namespace mr::cuda
