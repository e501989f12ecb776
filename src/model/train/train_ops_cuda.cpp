// The operations of a training pass on the GPU: mr::cuda, activations and matrices in bf16. All of
// them run on one stream; batches arrive on another, ordered by events.
#include "model/train/train_ops.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/cuda/timeline.h"
#include "core/error.h"
#include "model/train/params.h"
#include "ops/activation/activation_backward_cuda.h"
#include "ops/attention/flash/flash_cuda.h"
#include "ops/attention/merge/merge_cuda.h"
#include "ops/attention/own_blocks/own_blocks_cuda.h"
#include "ops/embedding/embedding_backward_cuda.h"
#include "ops/embedding/embedding_cuda.h"
#include "ops/linear/linear_train_cuda.h"
#include "ops/loss/loss_backward_cuda.h"
#include "ops/norm/norm_backward_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/optimizer/adamw_cuda.h"
#include "ops/rope/rope_train_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace mr::model {
namespace {

class CudaTrainOps final : public TrainOps {
  public:
    explicit CudaTrainOps(int threads) : pool_(threads > 0 ? threads : cpu_info().cores) {
        ctx_.pool = &pool_;
        ctx_.ledger = &ledger_;
        ctx_.cuda = &stream_;
    }
    ~CudaTrainOps() override {
        // Memory is freed before the streams: nothing may still use it.
        try {
            batches_.synchronize();
            stream_.synchronize();
        } catch (const Error&) {
            // The operation that failed has thrown this error, or is throwing it.
        }
    }

    DType compute_type() const override { return DType::bf16; }
    bool on_device() const override { return true; }
    std::uint64_t memory_bytes() const override {
        // Code is loaded at its first use, and the driver keeps some memory for itself.
        constexpr std::uint64_t kReserve = std::uint64_t{512} << 20;
        const std::uint64_t free = cuda::require_device().free_bytes;
        return free > kReserve ? free - kReserve : 1;
    }
    std::uint64_t memory_taken() const override {
        const std::uint64_t free = cuda::require_device().free_bytes;
        return free < free_at_first_ ? free_at_first_ - free : 0;
    }
    ThreadPool& pool() override { return pool_; }
    void* allocate(const std::string& purpose, std::size_t bytes) override {
        void* to = arenas_.emplace_back(purpose, padded(bytes)).alloc(bytes);
        stream_.fill(to, 0, bytes);
        return to;
    }
    std::uint64_t allocated() const override {
        std::uint64_t bytes = 0;
        for (const cuda::DeviceArena& arena : arenas_) bytes += arena.size();
        return bytes;
    }
    std::size_t scratch_bytes(const ModelSpec& spec, const TrainShape& shape) const override {
        // Slots and positions.
        const auto tokens = static_cast<std::size_t>(shape.tokens());
        return padded(op_scratch(spec, shape)) +
               static_cast<std::size_t>(shape.slots) * padded(slot_bytes(shape)) +
               padded(tokens * sizeof(std::int32_t));
    }
    void prepare(const ModelSpec& spec, const TrainShape& shape) override {
        shape_ = shape;
        vocab_ = spec.vocab;
        if (spec.diffusion) mask_ = spec.diffusion->mask;
        const std::size_t scratch = op_scratch(spec, shape);
        ctx_.scratch = {static_cast<std::byte*>(allocate("scratch", scratch)), scratch};
        const auto tokens = static_cast<std::size_t>(shape.tokens());
        slots_ = std::vector<Slot>(static_cast<std::size_t>(shape.slots));
        for (Slot& slot : slots_) {
            slot.host = cuda::PinnedBuffer(slot_bytes(shape));
            slot.device = static_cast<std::int32_t*>(allocate("batches", slot_bytes(shape)));
        }
        std::vector<std::int32_t> positions;
        for (std::size_t t = 0; t < tokens; ++t) {
            positions.push_back(static_cast<std::int32_t>(t % static_cast<std::size_t>(shape.seq)));
        }
        positions_ = static_cast<std::int32_t*>(allocate("positions", tokens * 4));
        write(positions_, positions.data(), tokens * 4);
    }
    const cuda::Stream* stream() const override { return &stream_; }
    Ledger& ledger() override { return ledger_; }
    void at(int layer) override {
        ledger_.at(layer);
        ctx_.layer = layer;
    }
    void watch() override {
        constexpr std::size_t kMost = 1 << 16;  // operations; a step of 100 layers has some 3,000
        if (!timeline_) timeline_ = std::make_unique<cuda::Timeline>(kMost);
        timeline_->clear_stages();
        timeline_->reset(stream_);
        ctx_.timeline = timeline_.get();
    }
    std::vector<Stage> watched() override {
        if (!ctx_.timeline) return {};
        ctx_.timeline = nullptr;
        std::vector<Stage> stages = timeline_->read(stream_);
        for (const Stage& stage : stages) {
            OpRecord time;
            time.seconds = stage.work.seconds;
            ledger_.add(stage.kind, time);
        }
        return stages;
    }

    std::span<std::int32_t> host_slot(int slot) override {
        const Slot& s = slot_at(slot);
        s.arrived.synchronize();  // returns at once if nothing was sent yet
        return {reinterpret_cast<std::int32_t*>(s.host.data()),
                s.host.size() / sizeof(std::int32_t)};
    }
    void put(int slot) override {
        const Slot& s = slot_at(slot);
        batches_.wait(s.done);
        batches_.to_device(s.device, s.host.data(), s.host.size(), &ledger_);
        batches_.record(s.arrived);
    }
    void done(int slot) override { stream_.record(slot_at(slot).done); }
    void write(void* device, const void* host, std::size_t bytes) override {
        stream_.to_device(device, host, bytes, &ledger_);
        stream_.synchronize();
    }
    void read(void* host, const void* device, std::size_t bytes) override {
        stream_.to_host(host, device, bytes, &ledger_);
        stream_.synchronize();
    }

    void embed(Tensor x, Tensor table, Tensor positions, int slot) override {
        ops::DeviceBatch batch;
        batch.tokens = static_cast<int>(x.dim(0));
        batch.ids = parts(slot).ids.data();
        batch.positions = positions_;
        cuda::embedding(ctx_, x, table, positions, batch);
    }
    void norm(NormKind kind, float eps, Tensor out, Tensor x, Tensor weight, Tensor bias) override {
        cuda::NormPass pass;
        pass.kind = kind;
        pass.eps = eps;
        pass.x = x;
        pass.out = out;
        pass.weight = weight;
        pass.bias = bias;
        cuda::norm(ctx_, pass);
    }
    void linear(Tensor out, Tensor x, Tensor w, Tensor bias, Tensor residual,
                OpKind kind) override {
        cuda::linear_forward(ctx_, out, x, w, bias, residual, {.kind = kind, .timed = true});
    }
    void rope(const ops::HeadRows& x, Tensor cos_sin, ops::RopeStyle style,
              bool backward) override {
        cuda::rope_heads(ctx_, x, cos_sin, style, backward);
    }
    void norm_heads(const ops::HeadRows& out, const ops::HeadRows& x, Tensor weight,
                    float eps) override {
        cuda::rmsnorm_heads(ctx_, out, x, weight, eps);
    }
    void attention(const ops::HeadRows& out, Tensor lse, const ops::HeadRows& q,
                   const ops::HeadRows& k, const ops::HeadRows& v, const ops::AttentionMask& mask,
                   float scale, int length) override {
        cuda::flash_forward(ctx_, out, lse, q, k, v, batch_of(q.tokens(), length), mask, scale);
    }
    void merge_attention(const ops::HeadRows& out, Tensor lse, const ops::HeadRows& other,
                         Tensor other_lse) override {
        cuda::merge_attention(ctx_, out, lse, other, other_lse);
    }
    void add_heads(const ops::HeadRows& to, const ops::HeadRows& from) override {
        cuda::add_heads(ctx_, to, from);
    }
    bool own_blocks(const ops::HeadRows& out, Tensor lse, const ops::HeadRows& q,
                    const ops::HeadRows& k, const ops::HeadRows& v, float scale,
                    int block) override {
        if (!in_one_kernel(q.heads(), k.heads(), q.head_dim(), block, q.tokens())) return false;
        cuda::own_blocks_forward(ctx_, out, lse, q, k, v, block, scale);
        return true;
    }
    void gather_rows(Tensor out, Tensor x, int slot, std::int64_t first) override {
        cuda::gather_rows(ctx_, out, x, parts(slot).rows.data() + first);
    }
    void activation(Tensor out, Tensor in, Tensor bias, ops::Activation kind, bool gated) override {
        cuda::activation_train(ctx_, out, in, bias, kind, gated);
    }
    bool activation_adds_bias() const override { return true; }

    void loss(float* loss, Tensor logits, int slot, std::int64_t first, float scale,
              bool gradient) override {
        const SlotParts<std::int32_t> of = parts(slot);
        const std::int32_t* wanted = of.targets.data() + first;
        if (shape_.block == 0) {
            cuda::cross_entropy_backward(ctx_, loss, logits, vocab_, wanted, scale, gradient);
            return;
        }
        const void* weights = of.weights.data() + first;
        cuda::masked_cross_entropy(ctx_, loss, logits, vocab_, wanted,
                                   {static_cast<const float*>(weights), mask_},
                                   gradient ? std::optional(scale) : std::nullopt);
    }
    void scatter_rows(Tensor out, Tensor copy, Tensor x, int slot, std::int64_t first) override {
        cuda::scatter_rows(ctx_, out, copy, x, parts(slot).rows.data() + first);
    }
    void linear_input(Tensor dx, Tensor dy, Tensor w, OpKind kind) override {
        cuda::linear_backward_input(ctx_, dx, dy, w, false, {.kind = kind, .timed = true});
    }
    void linear_weight(Tensor dw, Tensor dbias, Tensor dy, Tensor x, OpKind kind) override {
        cuda::linear_backward_weight(ctx_, dw, dbias, dy, x, {.kind = kind, .timed = true});
    }
    bool norm_backward(const NormBackward& pass) override {
        return cuda::norm_backward(ctx_, {.kind = pass.kind,
                                          .eps = pass.eps,
                                          .dx = pass.dx,
                                          .copy = pass.copy,
                                          .residual = pass.residual,
                                          .dweight = pass.dweight,
                                          .dbias = pass.dbias,
                                          .dsum = pass.dsum,
                                          .dy = pass.dy,
                                          .x = pass.x,
                                          .weight = pass.weight});
    }
    void norm_heads_backward(const ops::HeadRows& dx, Tensor dweight, const ops::HeadRows& dy,
                             const ops::HeadRows& x, Tensor weight, float eps) override {
        cuda::rmsnorm_heads_backward(ctx_, dx, dweight, dy, x, weight, eps);
    }
    void attention_backward(const ops::FlashGradients& gradients, const ops::HeadRows& dout,
                            const ops::HeadRows& q, const ops::HeadRows& k, const ops::HeadRows& v,
                            const ops::HeadRows& out, Tensor lse, const ops::AttentionMask& mask,
                            float scale, int length) override {
        cuda::flash_backward(ctx_, gradients, dout, q, k, v, out, lse, batch_of(q.tokens(), length),
                             mask, scale);
    }
    bool own_blocks_backward(const ops::FlashGradients& gradients, const ops::HeadRows& dout,
                             const ops::HeadRows& q, const ops::HeadRows& k, const ops::HeadRows& v,
                             const ops::HeadRows& out, Tensor lse, float scale,
                             int block) override {
        if (!in_one_kernel(q.heads(), k.heads(), q.head_dim(), block, q.tokens())) return false;
        cuda::own_blocks_backward(ctx_, gradients, dout, q, k, v, out, lse, block, scale);
        return true;
    }
    bool activation_backward(Tensor din, Tensor dbias, Tensor dy, Tensor in, Tensor bias,
                             ops::Activation kind, bool gated) override {
        if (gated) {
            cuda::gated_activation_backward(ctx_, din, dy, in, kind);
            return false;
        }
        if (!dbias) {
            cuda::activation_backward(ctx_, din, dy, in, kind);
            return false;
        }
        cuda::activation_backward(ctx_, din, dbias, dy, in, bias, kind);
        return true;
    }
    void embed_backward(Tensor dtable, Tensor dpositions, Tensor dx, int slot) override {
        cuda::embedding_backward(ctx_, dtable, dx, parts(slot).ids.data());
        if (dpositions) cuda::positions_backward(ctx_, dpositions, dx, shape_.seq);
    }

    void zero(Tensor x) override { stream_.fill(x.data, 0, x.bytes()); }
    void copy(Tensor to, Tensor from) override {
        stream_.on_device(to.data, from.data, from.bytes());
    }
    void add_sum(double* sum, Tensor x) override { cuda::add_sum(ctx_, sum, x); }
    void sum_parts(double* sum, const double* x, std::int64_t count) override {
        cuda::sum_parts(ctx_, sum, x, count);
    }
    void block_squares(double* squares, Tensor x, const std::int64_t* cuts,
                       std::int64_t blocks) override {
        cuda::block_squares(ctx_, squares, x, cuts, blocks);
    }
    void sum_of(Tensor to, Tensor a, Tensor b) override { cuda::sum_of(ctx_, to, a, b); }
    void adamw(const ops::AdamW& with, Tensor params, Tensor copy, Tensor grads, Tensor m, Tensor v,
               std::int64_t decayed, const double* grad_square_sum) override {
        cuda::adamw(ctx_, with, params, copy, grads, m, v, decayed, grad_square_sum);
    }
    void refresh(Tensor copy, Tensor params) override { cuda::round_to_bf16(ctx_, copy, params); }

  private:
    struct Slot {
        cuda::PinnedBuffer host;         // SlotParts
        std::int32_t* device = nullptr;  // the same on the device
        cuda::Event arrived, done;
    };

    const Slot& slot_at(int slot) const { return slots_[static_cast<std::size_t>(slot)]; }
    static std::size_t slot_bytes(const TrainShape& shape) {
        return static_cast<std::size_t>(shape.slot_words()) * sizeof(std::int32_t);
    }
    // In device memory. Operations launched from here on find the slot's batch there.
    SlotParts<std::int32_t> parts(int slot) {
        const Slot& s = slot_at(slot);
        stream_.wait(s.arrived);
        return {{s.device, static_cast<std::size_t>(shape_.slot_words())}, shape_};
    }

    static cuda::FlashBatch batch_of(std::int64_t tokens, int length) {
        cuda::FlashBatch batch;
        batch.sequences = static_cast<int>(tokens / length);
        batch.max_queries = batch.max_keys = length;
        return batch;
    }

    // Blocks over their own keys: in one kernel, or as sequences of attention's kernel, which
    // counts them in 16 bits.
    static bool in_one_kernel(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                              int block, std::int64_t tokens) {
        return cuda::takes_own_blocks(heads, kv_heads, head_dim, block) &&
               (cuda::own_blocks_pay(head_dim, block) || tokens / block > 65535);
    }

    // The largest scratch of any operation: they run one after another.
    static std::size_t op_scratch(const ModelSpec& spec, const TrainShape& shape) {
        const std::int64_t tokens = shape.tokens();
        const ops::HeadRows queries(
            Tensor(nullptr, DType::bf16,
                   {shape.half(), std::int64_t{spec.heads}, std::int64_t{spec.head_dim}}));
        const auto attention = [&](int length) {
            return cuda::flash_backward_scratch_bytes(queries, batch_of(shape.half(), length));
        };
        const bool in_blocks =
            shape.block > 0 &&
            !in_one_kernel(spec.heads, spec.kv_heads, spec.head_dim, shape.block, shape.half());
        return std::max({cuda::linear_train_scratch_bytes(widest_matrix(spec)),
                         cuda::norm_backward_scratch_bytes(spec.dim),
                         cuda::rmsnorm_heads_scratch_bytes(), cuda::sum_scratch_bytes(),
                         cuda::embedding_backward_scratch_bytes(tokens, spec.dim),
                         attention(shape.seq), in_blocks ? attention(shape.block) : 0});
    }

    const std::uint64_t free_at_first_ = cuda::require_device().free_bytes;
    ThreadPool pool_;
    Ledger ledger_;
    Context ctx_;
    TrainShape shape_;
    std::int64_t vocab_ = 0;
    std::int32_t mask_ = -1;  // the mask token
    cuda::Stream stream_, batches_;
    std::unique_ptr<cuda::Timeline> timeline_;  // made at the first watch
    std::vector<cuda::DeviceArena> arenas_;
    std::vector<Slot> slots_;
    std::int32_t* positions_ = nullptr;
};

}  // namespace

std::unique_ptr<TrainOps> make_cuda_train_ops(int threads) {
    cuda::require_device();  // its error says why
    return std::make_unique<CudaTrainOps>(threads);
}

}  // namespace mr::model
