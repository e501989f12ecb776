// The error of norm(x + residual) against f64.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "ops/norm/kind.h"

namespace mr::ops {

// Rows [batch, tokens], the shape of a model's activations.
struct NormErrorShape {
    std::int64_t batch = 1, tokens = 1;
    std::int64_t rows() const { return batch * tokens; }
};
// The shapes used before to judge fused kernels of this kind (docs/cuda-engine.md).
inline constexpr std::array<NormErrorShape, 4> kNormErrorShapes{
    {{2, 128}, {1, 1}, {4, 256}, {1, 2048}}};

struct NormError {
    double largest = 0;   // of an element, absolute
    double relative = 0;  // root of the squared errors over that of the squared results
};

// The same values in every run, rounded to a type, and their f64 result.
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

// For the CPU's ops, which are f32.
NormError norm_error(ThreadPool& pool, const NormCase& of);

}  // namespace mr::ops

namespace mr::cuda {

// For the GPU's kernel, with x, residual and result in `type`, that of the case. Error (device) if
// there is no GPU.
ops::NormError norm_error(const ops::NormCase& of, DType type, bool many_rows = true);

}  // namespace mr::cuda
