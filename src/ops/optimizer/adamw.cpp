#include "ops/optimizer/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/half.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

constexpr std::int64_t kSquarePart = 16384;

std::int64_t square_parts(std::int64_t count) { return (count + kSquarePart - 1) / kSquarePart; }

// In 8 sums, so that the loop can be vectorised as it stands.
double squares_of(const float* x, std::int64_t n) {
    double sums[8] = {};
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; ++j) sums[j] += double{x[i + j]} * double{x[i + j]};
    }
    for (; i < n; ++i) sums[0] += double{x[i]} * double{x[i]};
    double total = 0;
    for (double one : sums) total += one;
    return total;
}

// The step's constants as the loop uses them.
struct Step {
    float beta1, rest1, beta2, rest2, eps, grad_scale;
    float m_scale;  // lr / (1 - beta1^step)
    float v_scale;  // 1 / (1 - beta2^step)
};

// decay = lr * weight_decay, apart from 1, which would swallow it. Plain arithmetic, element by
// element: the compiler vectorises it, and where the loop is cut changes no bits.
void step_range(const Step& s, float decay, float* __restrict p, const float* __restrict grads,
                float* __restrict m, float* __restrict v, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const float g = grads[i] * s.grad_scale;
        m[i] = s.beta1 * m[i] + s.rest1 * g;
        v[i] = s.beta2 * v[i] + s.rest2 * (g * g);
        p[i] -= s.m_scale * m[i] / (std::sqrt(v[i] * s.v_scale) + s.eps) + decay * p[i];
    }
}

// Elements [first, last) as bf16 can hold them.
void round_range(const AdamW& with, float* p, std::int64_t first, std::int64_t last) {
    for (std::int64_t four = first / 4; four * 4 < last; ++four) {
        const std::array<std::uint32_t, 4> draws = with.draws(four);
        const std::int64_t begin = std::max(first, four * 4), end = std::min(last, four * 4 + 4);
        for (std::int64_t i = begin; i < end; ++i) {
            p[i] = bf16_to_f32(stochastic_bf16(p[i], draws[static_cast<std::size_t>(i % 4)]));
        }
    }
}

}  // namespace

std::size_t square_sum_scratch_bytes(std::int64_t count) {
    return static_cast<std::size_t>(square_parts(count)) * sizeof(double) + alignof(double);
}

void square_sum(const Context& ctx, double* sum, Tensor x) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    const std::int64_t count = x.shape.count();
    MR_CHECK(sum && x.dtype == DType::f32 && (x || count == 0), "x is f32");
    MR_CHECK(ctx.scratch.size() >= square_sum_scratch_bytes(count),
             "ctx.scratch has square_sum_scratch_bytes()");
    const LedgerEntry entry(ctx.ledger, OpKind::optimizer, x.bytes(), sizeof(double),
                            2 * static_cast<std::uint64_t>(count));
    const auto address = reinterpret_cast<std::uintptr_t>(ctx.scratch.data());
    auto* parts = reinterpret_cast<double*>((address + alignof(double) - 1) / alignof(double) *
                                            alignof(double));
    ctx.pool->parallel_for(square_parts(count), 1, [&](std::int64_t i, std::int64_t, int) {
        const std::int64_t begin = i * kSquarePart;
        parts[i] = squares_of(x.f32() + begin, std::min(kSquarePart, count - begin));
    });
    double total = 0;
    for (std::int64_t i = 0; i < square_parts(count); ++i) total += parts[i];
    *sum = total;
}

void adamw(const Context& ctx, const AdamW& with, Tensor params, Tensor grads, Tensor m, Tensor v,
           std::int64_t decayed, const double* grad_square_sum) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    const std::int64_t count = params.shape.count();
    for (const Tensor* one : {&params, &grads, &m, &v}) {
        MR_CHECK(*one && one->dtype == DType::f32 && one->shape.count() == count,
                 "parameters, gradients and moments are f32 and of one size");
    }
    MR_CHECK(decayed >= 0 && decayed <= count, "the decayed parameters are the first ones");
    MR_CHECK(with.step >= 1, "steps count from 1");
    MR_CHECK(grad_square_sum, "the step is given the gradients' square_sum()");
    const auto elements = static_cast<std::uint64_t>(count);
    const LedgerEntry entry(ctx.ledger, OpKind::optimizer, elements * 16, elements * 12,
                            elements * 14);
    const double norm = std::sqrt(*grad_square_sum);
    if (!std::isfinite(norm)) return;

    const auto power = static_cast<double>(with.step);
    Step s{};
    s.beta1 = with.beta1;
    s.rest1 = static_cast<float>(1 - double{with.beta1});
    s.beta2 = with.beta2;
    s.rest2 = static_cast<float>(1 - double{with.beta2});
    s.eps = with.eps;
    s.grad_scale = with.clip > 0 && norm > double{with.clip}
                       ? static_cast<float>(double{with.clip} / norm)
                       : 1.0f;
    s.m_scale = static_cast<float>(double{with.lr} / (1 - std::pow(double{with.beta1}, power)));
    s.v_scale = static_cast<float>(1 / (1 - std::pow(double{with.beta2}, power)));
    const auto decay = static_cast<float>(double{with.lr} * double{with.weight_decay});
    ctx.pool->parallel_for(
        count, rows_per_piece(4), [&](std::int64_t begin, std::int64_t end, int) {
            const auto run = [&](std::int64_t first, std::int64_t last, float factor) {
                if (first >= last) return;
                step_range(s, factor, params.f32() + first, grads.f32() + first, m.f32() + first,
                           v.f32() + first, last - first);
            };
            run(begin, std::min(end, decayed), decay);
            if (with.bf16_masters) round_range(with, params.f32(), begin, std::min(end, decayed));
            run(std::max(begin, decayed), end, 0.0f);
        });
}

}  // namespace mr::ops
