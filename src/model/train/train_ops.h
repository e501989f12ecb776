// The operations of a training pass (train_pass.h) on one device: the pass is written once, and
// this interface hides where tensors lie and what computes. train_ops_cpu.cpp uses mr::ops in f32;
// train_ops_cuda.cpp uses mr::cuda with activations and matrices in bf16.
//
// Types: the residual stream and its gradient are f32. Inputs of GEMMs (outputs of norms, queries,
// keys and values, attention's output, the MLP's hidden activations, and the gradients of these)
// are in compute_type(), and so are the matrices. Norms, biases, gradients of parameters, losses:
// f32. Tensors lie on the device. Only read(), write() and host_slot() wait for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/ledger.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "model/spec.h"
#include "ops/attention/flash/flash.h"
#include "ops/optimizer/adamw.h"

namespace mr::model {

// Tokens of a pass, and rows that the LM head processes at a time.
struct TrainShape {
    int sequences = 1;
    int seq = 256;
    std::int64_t head_rows = 0;  // at most this many rows of logits exist
    // Rows go through the head in multiples of this, if the pass has room for them: the number of
    // unknown tokens differs from batch to batch, and on a GPU every new number of rows is a new
    // GEMM whose algorithm must be chosen (ops/linear/train_cublaslt.cu).
    std::int64_t head_step = 0;
    // > 0: a diffusion model with blocks of this many tokens. A pass then has two halves of
    // `sequences` each, both with the positions of `seq`: the noisy half, in which masks stand for
    // some tokens, then the clean one.
    int block = 0;
    // Batches in memory at a time: the current one and the next, or those in flight through a
    // pipeline and the next.
    int slots = 2;

    std::int64_t half() const { return std::int64_t{sequences} * seq; }
    // Rows of a pass.
    std::int64_t tokens() const { return block > 0 ? 2 * half() : half(); }
    // Words of a batch slot.
    std::int64_t slot_words() const { return block > 0 ? 5 * half() : 2 * half(); }
};

// The content of a slot. For diffusion models, `rows` are the noisy rows that count, the unknown
// ones, `targets` their true tokens, and `weights` the weight of each. TrainEngine::put() gets
// their number, and fills the rest of the arrays with rows that do not count.
template <typename Word>
struct SlotParts {
    SlotParts(std::span<Word> slot, const TrainShape& shape) {
        const auto half = static_cast<std::size_t>(shape.half());
        const auto tokens = static_cast<std::size_t>(shape.tokens());
        ids = slot.first(tokens);
        targets = slot.subspan(tokens, half);
        if (shape.block == 0) return;
        rows = slot.subspan(tokens + half, half);
        weights = slot.subspan(tokens + 2 * half, half);
    }
    std::span<Word> ids;      // [tokens()]
    std::span<Word> targets;  // [half()]
    std::span<Word> rows;     // [half()], rising
    std::span<Word> weights;  // [half()], bits of f32
};

class TrainOps {
  public:
    virtual ~TrainOps() = default;

    // --- where ---------------------------------------------------------------------------------
    virtual DType compute_type() const = 0;
    virtual bool on_device() const = 0;
    // Memory for this process, in bytes; 0: unknown.
    virtual std::uint64_t memory_bytes() const = 0;
    virtual ThreadPool& pool() = 0;
    // How much less free memory the driver reports than when this object was made, including code
    // loaded since and other processes; 0: unknown. Nothing is freed before the end, so then it is
    // the peak.
    virtual std::uint64_t memory_taken() const { return 0; }
    // What allocate() takes for `bytes`, for adding up a plan.
    static constexpr std::size_t padded(std::size_t bytes) {
        return cuda::DeviceArena::padded(bytes);
    }
    // Zeroed, aligned to 256 bytes, freed with this object. Throws Error (device).
    virtual void* allocate(const std::string& purpose, std::size_t bytes) = 0;
    // Sum of all allocations so far.
    virtual std::uint64_t allocated() const = 0;
    // Memory that the operations below need besides their tensors, for this model and shape, batch
    // slots included; and its allocation. prepare() is called once, before anything else below.
    virtual std::size_t scratch_bytes(const ModelSpec& spec, const TrainShape& shape) const = 0;
    virtual void prepare(const ModelSpec& spec, const TrainShape& shape) = 0;
    // The stream of the operations, so that others can be ordered by events; null: a CPU.
    virtual const cuda::Stream* stream() const { return nullptr; }
    virtual Ledger& ledger() = 0;
    // The layer of the next operations (Ledger::at); -1: outside the layers.
    virtual void at(int layer) = 0;
    // Times every operation from here on: on a GPU each by itself, at a small cost, and not
    // otherwise. watched() ends it and returns the operations in order; their times are then in the
    // ledger, too.
    virtual void watch() = 0;
    virtual std::vector<Stage> watched() = 0;

    // --- data ----------------------------------------------------------------------------------
    // shape.slots batch slots, so that the next batch can arrive while this one computes. SlotParts
    // describes the content, sequence after sequence; a target < 0 does not count. Without a
    // pipeline:
    static constexpr int kSlots = 2;
    // Host memory that put() copies from: [slot_words()]. Pinned if that helps. Waits until an
    // earlier put() from there has ended, so that it may be overwritten.
    virtual std::span<std::int32_t> host_slot(int slot) = 0;
    // Starts sending host_slot(slot), beside the computation, and returns. The batch is overwritten
    // only after the operations before done(slot) have read it, and operations called after put()
    // see the new one.
    virtual void put(int slot) = 0;
    // No operation uses the slot from here on, until the next put(). Called at the end of a pass.
    virtual void done(int slot) = 0;

    // Other copies; both wait. The ledger counts the bytes.
    virtual void write(void* device, const void* host, std::size_t bytes) = 0;
    virtual void read(void* host, const void* device, std::size_t bytes) = 0;

    // --- forward -------------------------------------------------------------------------------
    // x[t] = table[ids[t]] + positions[t % seq]. x f32 [tokens, dim]; tables in compute_type();
    // positions may be none.
    virtual void embed(Tensor x, Tensor table, Tensor positions, int slot) = 0;
    // out in compute_type(), x f32; bias may be none.
    virtual void norm(NormKind kind, float eps, Tensor out, Tensor x, Tensor weight,
                      Tensor bias) = 0;
    // out = x · wᵀ (+ bias) (+ residual). x, w in compute_type(). out is in compute_type(), or f32
    // with a residual f32, which may be out itself.
    virtual void linear(Tensor out, Tensor x, Tensor w, Tensor bias, Tensor residual,
                        OpKind kind = OpKind::linear) = 0;
    // Rotates every head by cos_sin f32 [tokens, rotary/2, 2], in place; `backward` rotates the
    // other way.
    virtual void rope(const ops::HeadRows& x, Tensor cos_sin, ops::RopeStyle style,
                      bool backward) = 0;
    // out = rmsnorm of every head. weight f32 [head_dim].
    virtual void norm_heads(const ops::HeadRows& out, const ops::HeadRows& x, Tensor weight,
                            float eps) = 0;
    // Over sequences of `length` tokens (the shape's seq or block), one after another. lse f32
    // [heads, tokens].
    virtual void attention(const ops::HeadRows& out, Tensor lse, const ops::HeadRows& q,
                           const ops::HeadRows& k, const ops::HeadRows& v,
                           const ops::AttentionMask& mask, float scale, int length) = 0;
    // Merges attention over two sets of keys, and the gradients of what both read (merge.h).
    virtual void merge_attention(const ops::HeadRows& out, Tensor lse, const ops::HeadRows& other,
                                 Tensor other_lse) = 0;
    virtual void add_heads(const ops::HeadRows& to, const ops::HeadRows& from) = 0;
    // Attention of every block of `block` rows over its own keys, merged into out and lse of the
    // same rows over other keys, in one operation. False: not supported for these heads and blocks,
    // and nothing was done; use attention() and merge_attention().
    virtual bool own_blocks(const ops::HeadRows& /*out*/, Tensor /*lse*/,
                            const ops::HeadRows& /*q*/, const ops::HeadRows& /*k*/,
                            const ops::HeadRows& /*v*/, float /*scale*/, int /*block*/) {
        return false;
    }
    // out[i] = x[rows[first + i]], f32; `rows` are the slot's.
    virtual void gather_rows(Tensor out, Tensor x, int slot, std::int64_t first) = 0;
    // out [tokens, hidden] = act(in), or act(in[:, :hidden]) * in[:, hidden:] if `gated`. `bias` is
    // added to `in` first if activation_adds_bias(), else none.
    virtual void activation(Tensor out, Tensor in, Tensor bias, ops::Activation kind,
                            bool gated) = 0;
    // Whether the GEMM before an ungated activation leaves its bias to the activation.
    virtual bool activation_adds_bias() const { return false; }

    // --- backward ------------------------------------------------------------------------------
    // loss[t] of rows [first, first + logits.rows()) of the slot's targets; with `gradient` the
    // logits (compute_type()) become scale * (softmax - onehot). loss f32 [rows]. Rows of logits
    // may be longer than the vocabulary, here and as `out` of linear() and `dy` of linear_input()
    // and linear_weight(): the rest takes no part, and its gradient is 0. For diffusion models the
    // slot's weights apply (ops::masked_cross_entropy).
    virtual void loss(float* loss, Tensor logits, int slot, std::int64_t first, float scale,
                      bool gradient) = 0;
    // out[rows[first + i]] = x[i], f32, and in `copy` (compute_type(), may be none) as well.
    virtual void scatter_rows(Tensor out, Tensor copy, Tensor x, int slot, std::int64_t first) = 0;
    // dx = dy · w. All in compute_type().
    virtual void linear_input(Tensor dx, Tensor dy, Tensor w, OpKind kind = OpKind::linear) = 0;
    // dw += dyᵀ · x, dbias += sums of dy (may be none). dw, dbias f32.
    virtual void linear_weight(Tensor dw, Tensor dbias, Tensor dy, Tensor x,
                               OpKind kind = OpKind::linear) = 0;
    // dx = residual + the norm's gradient; dx, residual, x f32; dy in compute_type(). residual may
    // be none (0), or dx itself. `copy`: dx in compute_type() as well, where that is not f32; may
    // be none. dweight, dbias +=; any may be none. dsum += the sums of dx over tokens, the gradient
    // of a bias that was added to the residual stream; true: this was done, or there is no dsum;
    // false: it is left to linear_weight().
    struct NormBackward {
        NormKind kind = NormKind::rms;
        float eps = 1e-5f;
        Tensor dx, copy, residual;
        Tensor dweight, dbias, dsum;
        Tensor dy, x, weight;
    };
    virtual bool norm_backward(const NormBackward& pass) = 0;
    // dx from dy (dx may be dy); dweight +=.
    virtual void norm_heads_backward(const ops::HeadRows& dx, Tensor dweight,
                                     const ops::HeadRows& dy, const ops::HeadRows& x, Tensor weight,
                                     float eps) = 0;
    virtual void attention_backward(const ops::FlashGradients& gradients, const ops::HeadRows& dout,
                                    const ops::HeadRows& q, const ops::HeadRows& k,
                                    const ops::HeadRows& v, const ops::HeadRows& out, Tensor lse,
                                    const ops::AttentionMask& mask, float scale, int length) = 0;
    // The backward of own_blocks(), likewise, from the merged out and lse: dk and dv are written,
    // dq is added to.
    virtual bool own_blocks_backward(const ops::FlashGradients& /*gradients*/,
                                     const ops::HeadRows& /*dout*/, const ops::HeadRows& /*q*/,
                                     const ops::HeadRows& /*k*/, const ops::HeadRows& /*v*/,
                                     const ops::HeadRows& /*out*/, Tensor /*lse*/, float /*scale*/,
                                     int /*block*/) {
        return false;
    }
    // din from dy [tokens, hidden]; din may be `in`; `bias` as in activation(). True: the sums of
    // din over tokens were added to dbias; false: this is left to linear_weight(). dbias may be
    // none.
    virtual bool activation_backward(Tensor din, Tensor dbias, Tensor dy, Tensor in, Tensor bias,
                                     ops::Activation kind, bool gated) = 0;
    // dtable[ids[t]] += dx[t], dpositions[t % seq] += dx[t] (may be none). All f32.
    virtual void embed_backward(Tensor dtable, Tensor dpositions, Tensor dx, int slot) = 0;

    // --- optimizer -----------------------------------------------------------------------------
    virtual void zero(Tensor x) = 0;
    // *sum += the sum of x f32 [n], in f64 and a fixed order. `sum` lies on the device.
    virtual void add_sum(double* sum, Tensor x) = 0;
    // *sum = x[0] + ... + x[count - 1], in an order that depends only on the count. All operands
    // lie on the device, here and below.
    virtual void sum_parts(double* sum, const double* x, std::int64_t count) = 0;
    // ops::block_squares(): cuts [blocks + 1].
    virtual void block_squares(double* squares, Tensor x, const std::int64_t* cuts,
                               std::int64_t blocks) = 0;
    // to = from, of the same type and size.
    virtual void copy(Tensor to, Tensor from) = 0;
    // to = a + b, f32; `to` may be a or b.
    virtual void sum_of(Tensor to, Tensor a, Tensor b) = 0;
    // ops::adamw(), which also writes `copy`, the parameters in compute_type() (none if that is
    // f32), and zeroes `grads` in the same pass. If *grad_square_sum is not finite, only the
    // gradients change: they are zeroed. With bf16 masters and a compute_type() other than f32, the
    // first `decayed` parameters are those of `copy`, and `params` has only the others.
    virtual void adamw(const ops::AdamW& with, Tensor params, Tensor copy, Tensor grads, Tensor m,
                       Tensor v, std::int64_t decayed, const double* grad_square_sum) = 0;
    // copy = params in compute_type(), after loading. No effect if that is f32.
    virtual void refresh(Tensor copy, Tensor params) = 0;
};

// Throws Error (usage) if attention's backward has no kernel for the model's heads: it takes
// multiples of 8, on the GPU only some of them.
void require_trainable_heads(const ModelSpec& spec, bool cuda);

std::unique_ptr<TrainOps> make_cpu_train_ops(int threads);  // 0: all cores
// Throws Error (device) if there is no GPU, or the program was built without CUDA.
std::unique_ptr<TrainOps> make_cuda_train_ops(int threads);

}  // namespace mr::model
