#include "ops/optimizer/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/half.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

// In 8 sums, so that the compiler can vectorise the loop.
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

// decay = lr * weight_decay, not added to 1, which would absorb it. Plain arithmetic, element by
// element: the compiler vectorises it, and cutting the loop anywhere changes no bits.
void step_range(const Step& s, float decay, float* __restrict p, const float* __restrict grads,
                float* __restrict m, float* __restrict v, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const float g = grads[i] * s.grad_scale;
        m[i] = s.beta1 * m[i] + s.rest1 * g;
        v[i] = s.beta2 * v[i] + s.rest2 * (g * g);
        p[i] -= s.m_scale * m[i] / (std::sqrt(v[i] * s.v_scale) + s.eps) + decay * p[i];
    }
}

// Rounds elements [first, last) to bf16.
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

void block_squares(const Context& ctx, std::span<double> squares, Tensor x,
                   std::span<const std::int64_t> cuts) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(x.dtype == DType::f32 && cuts.size() == squares.size() + 1 && cuts.front() >= 0 &&
                 cuts.back() <= x.shape.count(),
             "the blocks are those of x, f32");
    const auto elements = static_cast<std::uint64_t>(cuts.back() - cuts.front());
    const LedgerEntry entry(ctx.ledger, OpKind::optimizer, elements * 4, squares.size_bytes(),
                            2 * elements);
    const auto blocks = std::ssize(squares);
    ctx.pool->parallel_for(blocks, 16, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
            const auto at = static_cast<std::size_t>(i);
            squares[at] = squares_of(x.f32() + cuts[at], cuts[at + 1] - cuts[at]);
        }
    });
}

void sum_of(const Context& ctx, Tensor to, Tensor a, Tensor b) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    const std::int64_t count = to.shape.count();
    for (const Tensor* one : {&to, &a, &b}) {
        MR_CHECK(*one && one->dtype == DType::f32 && one->shape.count() == count,
                 "what is added is f32 and of one size");
    }
    const auto elements = static_cast<std::uint64_t>(count);
    const LedgerEntry entry(ctx.ledger, OpKind::add, elements * 8, elements * 4, elements);
    ctx.pool->parallel_for(count, rows_per_piece(1),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t i = begin; i < end; ++i)
                                   to.f32()[i] = a.f32()[i] + b.f32()[i];
                           });
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
    MR_CHECK(grad_square_sum, "the step is given the gradients' sum of squares");
    MR_CHECK(with.first % 4 == 0, "draws are of four elements");
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
