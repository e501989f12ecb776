#include "lab/norms/norm_error.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "core/cuda/device.h"
#include "core/error.h"
#include "core/half.h"
#include "ops/add/add.h"
#include "ops/norm/norm.h"

namespace mr::ops {
namespace {

float rounded(float value, DType type) {
    if (type == DType::f16) return f16_to_f32(f32_to_f16(value));
    if (type == DType::bf16) return bf16_to_f32(f32_to_bf16(value));
    return value;
}

// One row in f64.
void norm_row(const NormCase& of, std::int64_t row, double* want) {
    const auto cols = static_cast<std::size_t>(of.hidden);
    const std::size_t first = static_cast<std::size_t>(row) * cols;
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < cols; ++i) {
        want[i] = static_cast<double>(of.x[first + i]) + of.residual[first + i];
        mean += want[i];
    }
    mean = of.kind == NormKind::layer ? mean / static_cast<double>(cols) : 0;
    for (std::size_t i = 0; i < cols; ++i) squares += (want[i] - mean) * (want[i] - mean);
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(cols) + static_cast<double>(of.eps));
    for (std::size_t i = 0; i < cols; ++i) {
        want[i] = (want[i] - mean) * scale * of.weight[i];
        if (!of.bias.empty()) want[i] += of.bias[i];
    }
}

}  // namespace

NormCase norm_case(std::int64_t rows, std::int64_t hidden, DType type, NormKind kind) {
    NormCase out;
    out.rows = rows;
    out.hidden = hidden;
    out.kind = kind;
    std::mt19937 random(11);
    const auto fill = [&](std::vector<float>& to, std::int64_t count, float mean, float deviation,
                          DType as) {
        std::normal_distribution<float> values(mean, deviation);
        to.resize(static_cast<std::size_t>(count));
        for (float& value : to) value = rounded(values(random), as);
    };
    fill(out.x, rows * hidden, 0, 1, type);
    fill(out.residual, rows * hidden, 0, 1, type);
    fill(out.weight, hidden, 1, 0.1f, DType::f32);
    if (kind == NormKind::layer) fill(out.bias, hidden, 0, 0.1f, DType::f32);
    out.want.resize(out.x.size());
    for (std::int64_t r = 0; r < rows; ++r) norm_row(out, r, out.want.data() + r * hidden);
    return out;
}

NormError NormCase::error(std::span<const float> got) const {
    MR_CHECK(got.size() == want.size(), "there is a result for every element");
    NormError out;
    double errors = 0, results = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double apart = std::abs(static_cast<double>(got[i]) - want[i]);
        // Not std::max: a NaN must stay.
        if (!(apart <= out.largest) && !std::isnan(out.largest)) out.largest = apart;
        errors += apart * apart;
        results += want[i] * want[i];
    }
    out.relative = results > 0 ? std::sqrt(errors / results) : 0;
    return out;
}

NormError norm_error(ThreadPool& pool, const NormCase& of) {
    const Shape shape{of.rows, of.hidden};
    std::vector<float> sum(of.x.size()), got(of.x.size());
    // The ops do not write to their inputs.
    const auto tensor = [](const std::vector<float>& values, Shape as) {
        return Tensor(const_cast<float*>(values.data()), DType::f32, as);
    };
    Context ctx;
    ctx.pool = &pool;
    const Tensor x = tensor(sum, shape), result = tensor(got, shape);
    const Tensor weight = tensor(of.weight, {of.hidden});
    add(ctx, x, tensor(of.x, shape), tensor(of.residual, shape));
    if (of.kind == NormKind::rms) {
        rmsnorm(ctx, result, x, weight, of.eps);
    } else {
        layernorm(ctx, result, x, weight, tensor(of.bias, {of.hidden}), of.eps);
    }
    return of.error(got);
}

}  // namespace mr::ops

#ifndef MR_CUDA
namespace mr::cuda {

ops::NormError norm_error(const ops::NormCase&, DType, bool) {
    require_device();  // its error says why
    return {};
}

}  // namespace mr::cuda
#endif
