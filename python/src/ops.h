// Operations on memory that belongs to Python: they take pointers and keep none.
// Shapes, types and devices are checked in Python (millrace/_ops_*.py) before a
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/flash/flash.h"
#include "ops/norm/kind.h"

namespace mr::python {

// Addresses from Python: data_ptr() of a tensor, or a stream; 0 is none.
using Address = std::uintptr_t;

// Runs an operation on the CPU with the shared threads and scratch; one operation at a time. A
// forked process has none of its parent's threads and makes its own.
void on_cpu(std::size_t scratch_bytes(int threads, const void* of), const void* of,
            const std::function<void(const Context&)>& body);
// Sets the number of threads from the next operation on; 0: all cores of the process.
void set_ops_threads(int threads);

// Calls body with a context on the caller's stream. Error (device) in a build without CUDA.
void on_cuda(Address stream, std::span<std::byte> scratch,
             const std::function<void(const Context&)>& body);

// Attention of one shape, with one mask. Calls of one plan may run concurrently.
struct AttentionShape {
    DType dtype = DType::f32;
    bool cuda = false;
    // Equal sequences: `sequences` of `queries` and `keys`. Packed: that many in all, in sequences
    // of at most max_queries and max_keys, whose bounds are arguments of a call.
    bool packed = false;
    std::int64_t sequences = 1, queries = 0, keys = 0, max_queries = 0, max_keys = 0;
    std::int64_t heads = 1, kv_heads = 1, head_dim = 0;
    std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements from token to token
    ops::AttentionMask mask;
    float scale = 1;
};
class AttentionPlan {
  public:
    explicit AttentionPlan(const AttentionShape& shape);

    // `cu_q`, `cu_k`: int32 [sequences + 1] of a packed batch, in the tensors' memory.
    struct Batch {
        Address cu_q = 0, cu_k = 0;
    };
    void forward(Address q, Address k, Address v, Address out, Address lse, Batch batch,
                 Address stream) const;
    // Scratch besides the tensors: 0 on the CPU, which has its own.
    std::size_t backward_scratch_bytes() const;
    struct Gradients {
        Address dout, dq, dk, dv;
    };
    void backward(Gradients gradients, Address q, Address k, Address v, Address out, Address lse,
                  Batch batch, Address scratch, Address stream) const;

  private:
    ops::HeadRows like_q(Address data, std::int64_t stride = 0) const;
    ops::HeadRows like_k(Address data, std::int64_t stride = 0) const;
    Tensor lse_at(Address data) const;
    ops::PackedBatch host_batch(const Batch& batch) const;

    AttentionShape shape_;
    std::int64_t tokens_q_ = 0, tokens_k_ = 0;
    std::vector<std::int32_t> cu_q_, cu_k_;  // for equal sequences, on the CPU
};

// s = x + residual; out = norm(s) * weight + bias. sum and bias may be 0; sum only on the GPU.
struct NormCall {
    bool cuda = false;
    ops::NormKind kind = ops::NormKind::layer;
    std::int64_t rows = 0, cols = 0;
    float eps = 1e-5f;
    DType x_type = DType::f32, residual_type = DType::f32, weight_type = DType::f32;
};
// `weight`, `bias`: f32, or on the GPU x's type if norm_takes_weights().
bool norm_takes_weights(DType type, std::int64_t rows, std::int64_t cols);
void norm_residual(const NormCall& call, Address x, Address residual, Address weight, Address bias,
                   Address out, Address sum, Address stream);
// f32; on the GPU dy has any type, and dx, ds and s have call.x_type or f32. dx = gradient of s,
// plus `ds` if given; dweight, dbias (or 0) are added to.
void norm_residual_backward(const NormCall& call, DType dy_type, Address dy, Address ds, Address s,
                            Address weight, Address dx, Address dweight, Address dbias,
                            Address scratch, Address stream);
std::size_t norm_backward_scratch(std::int64_t cols);  // only for the GPU

// Draws one token per row of logits f32 [rows, vocab]. The numbers apply to all rows; a row's draw
// is Philox at (seed + row, position, step).
struct SampleCall {
    bool cuda = false;
    std::int64_t rows = 0, vocab = 0;
    float temperature = 1, top_p = 1, min_p = 0;
    std::int32_t top_k = 0;
    std::uint64_t seed = 0;
    std::int64_t position = 0;
    // int64 [rows] in the logits' memory, instead of the two numbers; or 0.
    Address seeds = 0, positions = 0;
};
// ids i32 [rows], probability and confidence f32 [rows]; state: sample_state_bytes() on the GPU.
void sample_rows(const SampleCall& call, Address logits, Address ids, Address probability,
                 Address confidence, Address state, Address stream);
std::size_t sample_state_bytes(std::int64_t rows);

}  // namespace mr::python
