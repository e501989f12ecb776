#include <algorithm>
#include <string>

#include "core/cuda/device.h"
#include "ops.h"
#include "ops/attention/flash/flash_cuda.h"

namespace mr::python {
namespace {

// Kernels on the CPU trust the bounds of a packed batch, so check the caller's.
void check_bounds(const char* name, std::span<const std::int32_t> cu, std::int64_t tokens) {
    const auto wrong = [&](std::size_t at, const char* problem) {
        throw Error::usage({.field = std::string(name) + "[" + std::to_string(at) + "]",
                            .value = std::to_string(cu[at]),
                            .problem = problem});
    };
    if (cu[0] != 0) wrong(0, "must be 0: cumulative lengths begin with it");
    for (std::size_t i = 1; i < cu.size(); ++i) {
        if (cu[i] < cu[i - 1]) wrong(i, "is less than the one before: cumulative lengths rise");
    }
    if (cu.back() > tokens) wrong(cu.size() - 1, "is more than there are tokens");
}

template <typename T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

struct CpuScratch {
    int head_dim;
    bool backward;
    static std::size_t bytes(int threads, const void* of) {
        const auto& s = *static_cast<const CpuScratch*>(of);
        return s.backward ? ops::flash_backward_scratch_bytes(s.head_dim, threads)
                          : ops::flash_forward_scratch_bytes(s.head_dim, threads);
    }
};

#ifdef MR_CUDA
cuda::FlashBatch device_batch(const AttentionShape& s, const AttentionPlan::Batch& batch) {
    return {at<const std::int32_t>(batch.cu_q), at<const std::int32_t>(batch.cu_k),
            static_cast<int>(s.sequences), static_cast<int>(s.max_queries),
            static_cast<int>(s.max_keys)};
}
#endif

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape) : shape_(shape) {
    AttentionShape& s = shape_;
    tokens_q_ = s.packed ? s.queries : s.sequences * s.queries;
    tokens_k_ = s.packed ? s.keys : s.sequences * s.keys;
    if (s.packed) return;
    s.max_queries = s.queries;
    s.max_keys = s.keys;
    if (s.cuda) return;
    for (std::int64_t i = 0; i <= s.sequences; ++i) {
        cu_q_.push_back(static_cast<std::int32_t>(i * s.queries));
        cu_k_.push_back(static_cast<std::int32_t>(i * s.keys));
    }
}

ops::HeadRows AttentionPlan::like_q(Address data, std::int64_t stride) const {
    const Tensor tensor(at<void>(data), shape_.dtype, {tokens_q_, shape_.heads, shape_.head_dim});
    return stride == 0 ? ops::HeadRows(tensor) : ops::HeadRows(tensor, stride);
}

ops::HeadRows AttentionPlan::like_k(Address data, std::int64_t stride) const {
    const Tensor tensor(at<void>(data), shape_.dtype,
                        {tokens_k_, shape_.kv_heads, shape_.head_dim});
    return stride == 0 ? ops::HeadRows(tensor) : ops::HeadRows(tensor, stride);
}

Tensor AttentionPlan::lse_at(Address data) const {
    return {at<void>(data), DType::f32, {shape_.heads, tokens_q_}};
}

ops::PackedBatch AttentionPlan::host_batch(const Batch& batch) const {
    if (!shape_.packed) return {cu_q_, cu_k_};
    const auto entries = static_cast<std::size_t>(shape_.sequences) + 1;
    const ops::PackedBatch made{{at<const std::int32_t>(batch.cu_q), entries},
                                {at<const std::int32_t>(batch.cu_k), entries}};
    check_bounds("cu_seqlens_q", made.cu_q, tokens_q_);
    check_bounds("cu_seqlens_k", made.cu_k, tokens_k_);
    return made;
}

void AttentionPlan::forward(Address q, Address k, Address v, Address out, Address lse, Batch batch,
                            Address stream) const {
    const AttentionShape& s = shape_;
    if (!s.cuda) {
        const CpuScratch scratch{static_cast<int>(s.head_dim), false};
        on_cpu(&CpuScratch::bytes, &scratch, [&](const Context& ctx) {
            ops::flash_forward(ctx, like_q(out), lse_at(lse), like_q(q, s.q_stride),
                               like_k(k, s.k_stride), like_k(v, s.v_stride), host_batch(batch),
                               s.mask, s.scale);
        });
        return;
    }
    on_cuda(stream, {}, [&]([[maybe_unused]] const Context& ctx) {
#ifdef MR_CUDA
        cuda::flash_forward(ctx, like_q(out), lse_at(lse), like_q(q, s.q_stride),
                            like_k(k, s.k_stride), like_k(v, s.v_stride), device_batch(s, batch),
                            s.mask, s.scale);
#endif
    });
}

std::size_t AttentionPlan::backward_scratch_bytes() const {
#ifdef MR_CUDA
    if (shape_.cuda) return cuda::flash_backward_scratch_bytes(like_q(0), device_batch(shape_, {}));
#endif
    return 0;
}

void AttentionPlan::backward(Gradients g, Address q, Address k, Address v, Address out, Address lse,
                             Batch batch, Address scratch, Address stream) const {
    const AttentionShape& s = shape_;
    const ops::FlashGradients gradients{like_q(g.dq), like_k(g.dk), like_k(g.dv)};
    if (!s.cuda) {
        const CpuScratch own{static_cast<int>(s.head_dim), true};
        on_cpu(&CpuScratch::bytes, &own, [&](const Context& ctx) {
            ops::flash_backward(ctx, gradients, like_q(g.dout), like_q(q, s.q_stride),
                                like_k(k, s.k_stride), like_k(v, s.v_stride), like_q(out),
                                lse_at(lse), host_batch(batch), s.mask, s.scale);
        });
        return;
    }
    on_cuda(stream, {at<std::byte>(scratch), backward_scratch_bytes()},
            [&]([[maybe_unused]] const Context& ctx) {
#ifdef MR_CUDA
                if (tokens_q_ == 0 || tokens_k_ == 0) {  // nothing to compute
                    for (const ops::HeadRows* one : {&gradients.dq, &gradients.dk, &gradients.dv}) {
                        if (one->tokens() > 0) {
                            ctx.cuda->fill(one->tensor.data, 0, one->tensor.bytes());
                        }
                    }
                    return;
                }
                cuda::flash_backward(ctx, gradients, like_q(g.dout), like_q(q, s.q_stride),
                                     like_k(k, s.k_stride), like_k(v, s.v_stride), like_q(out),
                                     lse_at(lse), device_batch(s, batch), s.mask, s.scale);
#endif
            });
}

}  // namespace mr::python
