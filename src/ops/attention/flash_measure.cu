#include <algorithm>
#include <cmath>

#include "core/cuda/kernel.cuh"
#include "core/cuda/timer.h"
#include "ops/attention/attention_fill.cuh"
#include "ops/attention/flash_cuda.h"
#include "ops/attention/flash_measure.h"
#include "ops/attention/flash_unfused.h"
#include "ops/linear/gemm_cuda.h"

namespace mr::cuda {
namespace {

// q, k, v, out, and with a backward the gradients, filled with values between -1 and 1.
struct Tensors {
    ops::HeadRows q, k, v, out, dout, dq, dk, dv;
    DeviceArena memory;

    Tensors(const Context& ctx, const FlashShape& s, bool backward) {
        const std::int64_t tokens = std::int64_t{s.batch} * s.tokens;
        const Shape wide{tokens, s.heads, s.head_dim}, narrow{tokens, s.kv_heads, s.head_dim};
        const auto bytes = [&](const Shape& shape) {
            return DeviceArena::padded(
                dtype_bytes(s.dtype, static_cast<std::size_t>(shape.count())));
        };
        memory = DeviceArena("attention benchmark",
                             (backward ? 2 : 1) * (2 * bytes(wide) + 2 * bytes(narrow)));
        const auto make = [&](const Shape& shape) {
            const Tensor t = memory.tensor(s.dtype, shape);
            fill_between_ones(ctx, t);
            return ops::HeadRows(t);
        };
        q = make(wide);
        k = make(narrow);
        v = make(narrow);
        out = make(wide);
        if (!backward) return;
        dout = make(wide);
        dq = make(wide);
        dk = make(narrow);
        dv = make(narrow);
    }
};

// A graph of some 10 ms, and few replays of what takes long.
template <typename Body>
double seconds_of(const Stream& stream, DType dtype, double flops, Body&& body) {
    const double expected = flops / (dtype == DType::f32 ? 1e13 : 4e14);
    const int calls = static_cast<int>(std::clamp(10e-3 / expected, 1.0, 32.0));
    return seconds_per_call(
        stream, calls, [&](int) { body(); }, expected > 3e-3 ? 3 : 7);
}

}  // namespace

FlashMeasured measure_flash(const FlashShape& shape, bool backward) {
    require_device();
    Stream stream;
    Context ctx;
    ctx.cuda = &stream;
    const Tensors t(ctx, shape, backward);
    const FlashBatch batch{nullptr, nullptr, shape.batch, shape.tokens, shape.tokens};
    const std::size_t scratch = backward ? flash_backward_scratch_bytes(t.q, t.k, batch) : 0;
    const std::int64_t tokens = std::int64_t{shape.batch} * shape.tokens;
    DeviceArena extra("attention benchmark",
                      DeviceArena::padded(scratch) +
                          DeviceArena::padded(static_cast<std::size_t>(4 * tokens * shape.heads)));
    const Tensor lse = extra.tensor(DType::f32, {shape.heads, tokens});
    if (scratch > 0) ctx.scratch = {extra.array<std::byte>(scratch), scratch};
    const ops::AttentionMask mask{shape.causal ? ops::AttentionMask::Kind::causal
                                               : ops::AttentionMask::Kind::full};
    const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    FlashMeasured m;
    m.tensors = t.memory.size();
    m.extra = extra.size();
    m.forward = seconds_of(stream, shape.dtype, shape.forward_flops(), [&] {
        flash_forward(ctx, t.out, lse, t.q, t.k, t.v, batch, mask, scale);
    });
    if (backward) {
        m.backward = seconds_of(stream, shape.dtype, shape.backward_flops(), [&] {
            flash_backward(ctx, {t.dq, t.dk, t.dv}, t.dout, t.q, t.k, t.v, t.out, lse, batch, mask,
                           scale);
        });
    }
    return m;
}

FlashMeasured measure_unfused(const FlashShape& shape, bool backward) {
    require_device();
    MR_CHECK(shape.batch == 1 && shape.heads == 1 && shape.kv_heads == 1 && shape.causal,
             "the unfused version is one sequence and one head, causal");
    Stream stream;
    Context ctx;
    ctx.cuda = &stream;
    const Tensors t(ctx, shape, backward);
    const std::size_t matrices = unfused_bytes(shape.tokens, shape.head_dim, shape.dtype, backward);
    const std::size_t scratch = unfused_scratch_bytes(shape.tokens, shape.head_dim, shape.dtype);
    DeviceArena extra("attention benchmark",
                      DeviceArena::padded(matrices) + DeviceArena::padded(scratch));
    void* memory = extra.alloc(matrices);
    ctx.scratch = {extra.array<std::byte>(scratch), scratch};
    const auto flat = [&](const ops::HeadRows& x) {
        return x.tensor.data ? Tensor(x.tensor.data, shape.dtype, {shape.tokens, shape.head_dim})
                             : Tensor();
    };
    const UnfusedTensors u{flat(t.q),    flat(t.k),  flat(t.v),  flat(t.out),
                           flat(t.dout), flat(t.dq), flat(t.dk), flat(t.dv)};
    const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    FlashMeasured m;
    m.tensors = t.memory.size();
    m.extra = matrices;
    m.forward = seconds_of(stream, shape.dtype, 4 * shape.forward_flops(),
                           [&] { unfused_forward(ctx, u, memory, scale); });
    if (backward) {
        m.backward = seconds_of(stream, shape.dtype, 4 * shape.backward_flops(),
                                [&] { unfused_backward(ctx, u, memory, scale); });
    }
    return m;
}

}  // namespace mr::cuda
