// The operations of a training pass on the CPU: mr::ops, all in f32.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/arena.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/memory.h"
#include "model/train/params.h"
#include "model/train/train_ops.h"
#include "ops/activation/activation.h"
#include "ops/activation/activation_backward.h"
#include "ops/attention/merge/merge.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding/embedding_backward.h"
#include "ops/linear/linear_backward.h"
#include "ops/loss/loss_backward.h"
#include "ops/norm/norm.h"
#include "ops/norm/norm_backward.h"
#include "ops/rope/rope_train.h"
#include "ops/rows/rows.h"

namespace mr::model {
namespace {

class CpuTrainOps final : public TrainOps {
  public:
    explicit CpuTrainOps(int threads) : pool_(threads > 0 ? threads : cpu_info().cores) {
        ctx_.pool = &pool_;
        ctx_.ledger = &ledger_;
    }

    DType compute_type() const override { return DType::f32; }
    bool on_device() const override { return false; }
    std::uint64_t memory_bytes() const override { return available_memory_bytes(); }
    ThreadPool& pool() override { return pool_; }
    void* allocate(const std::string& purpose, std::size_t bytes) override {
        allocated_ += padded(bytes);
        return arenas_.emplace_back(purpose, bytes).alloc(bytes);  // pages, so aligned and zero
    }
    std::uint64_t allocated() const override { return allocated_; }
    std::size_t scratch_bytes(const ModelSpec& spec, const TrainShape& shape) const override {
        return padded(op_scratch(spec, shape)) +
               static_cast<std::size_t>(shape.slots) * padded(slot_bytes(shape));
    }
    void prepare(const ModelSpec& spec, const TrainShape& shape) override {
        shape_ = shape;
        const std::size_t scratch = op_scratch(spec, shape);
        ctx_.scratch = {static_cast<std::byte*>(allocate("scratch", scratch)), scratch};
        slots_.resize(static_cast<std::size_t>(shape.slots));
        for (std::span<std::int32_t>& slot : slots_) {
            slot = {static_cast<std::int32_t*>(allocate("batches", slot_bytes(shape))),
                    static_cast<std::size_t>(shape.slot_words())};
        }
        if (spec.diffusion) mask_ = spec.diffusion->mask;
        for (int i = 0; i <= shape.sequences; ++i) cu_.push_back(i * shape.seq);
        for (std::int32_t t = 0; shape.block > 0 && t <= shape.half(); t += shape.block) {
            cu_blocks_.push_back(t);
        }
        for (std::int64_t t = 0; t < shape.tokens(); ++t) {
            positions_.push_back(static_cast<std::int32_t>(t % shape.seq));
        }
    }
    Ledger& ledger() override { return ledger_; }
    void at(int layer) override { ledger_.at(layer); }
    void watch() override {
        log_ = {};
        ledger_.watch(&log_);
    }
    std::vector<Stage> watched() override {
        ledger_.watch(nullptr);
        return std::move(log_.stages);
    }

    std::span<std::int32_t> host_slot(int slot) override {
        return slots_[static_cast<std::size_t>(slot)];
    }
    void put(int) override {}
    void done(int) override {}
    void write(void* device, const void* host, std::size_t bytes) override {
        std::memcpy(device, host, bytes);
    }
    void read(void* host, const void* device, std::size_t bytes) override {
        std::memcpy(host, device, bytes);
    }

    void embed(Tensor x, Tensor table, Tensor positions, int slot) override {
        ops::embedding(ctx_, x, table, parts(slot).ids);
        if (positions) ops::embedding(ctx_, x, positions, positions_, true);
    }
    void norm(NormKind kind, float eps, Tensor out, Tensor x, Tensor weight, Tensor bias) override {
        if (kind == NormKind::rms) {
            ops::rmsnorm(ctx_, out, x, weight, eps);
        } else {
            ops::layernorm(ctx_, out, x, weight, bias, eps);
        }
    }
    void linear(Tensor out, Tensor x, Tensor w, Tensor bias, Tensor residual,
                OpKind kind) override {
        ops::linear_train(ctx_, out, x, w, bias, residual, kind);
    }
    void rope(const ops::HeadRows& x, Tensor cos_sin, ops::RopeStyle style,
              bool backward) override {
        ops::rope_heads(ctx_, x, cos_sin, style, backward);
    }
    void norm_heads(const ops::HeadRows& out, const ops::HeadRows& x, Tensor weight,
                    float eps) override {
        ops::rmsnorm_heads(ctx_, out, x, weight, eps);
    }
    void attention(const ops::HeadRows& out, Tensor lse, const ops::HeadRows& q,
                   const ops::HeadRows& k, const ops::HeadRows& v, const ops::AttentionMask& mask,
                   float scale, int length) override {
        ops::flash_forward(ctx_, out, lse, q, k, v, batch_of(length), mask, scale);
    }
    void merge_attention(const ops::HeadRows& out, Tensor lse, const ops::HeadRows& other,
                         Tensor other_lse) override {
        ops::merge_attention(ctx_, out, lse, other, other_lse);
    }
    void add_heads(const ops::HeadRows& to, const ops::HeadRows& from) override {
        ops::add_heads(ctx_, to, from);
    }
    void gather_rows(Tensor out, Tensor x, int slot, std::int64_t first) override {
        ops::gather_rows(ctx_, out, x, parts(slot).rows.data() + first);
    }
    void activation(Tensor out, Tensor in, Tensor, ops::Activation kind, bool gated) override {
        if (gated) {
            ops::gated_activation(ctx_, out, in, kind);
        } else {
            ops::activation(ctx_, out, in, kind);
        }
    }

    void loss(float* loss, Tensor logits, int slot, std::int64_t first, float scale,
              bool gradient) override {
        const std::int32_t* wanted = parts(slot).targets.data() + first;
        if (shape_.block > 0) {
            const void* weights = parts(slot).weights.data() + first;
            ops::masked_cross_entropy(ctx_, loss, logits, wanted,
                                      {static_cast<const float*>(weights), mask_},
                                      gradient ? std::optional(scale) : std::nullopt);
        } else if (gradient) {
            ops::cross_entropy_backward(ctx_, loss, logits, wanted, scale);
        } else {
            ops::cross_entropy_losses(ctx_, loss, logits, wanted);
        }
    }
    void scatter_rows(Tensor out, Tensor, Tensor x, int slot, std::int64_t first) override {
        ops::scatter_rows(ctx_, out, x, parts(slot).rows.data() + first);
    }
    void linear_input(Tensor dx, Tensor dy, Tensor w, OpKind kind) override {
        ops::linear_backward_input(ctx_, dx, dy, w, false, kind);
    }
    void linear_weight(Tensor dw, Tensor dbias, Tensor dy, Tensor x, OpKind kind) override {
        ops::linear_backward_weight(ctx_, dw, dbias, dy, x, kind);
    }
    bool norm_backward(const NormBackward& pass) override {
        ops::norm_backward(ctx_, {.kind = pass.kind,
                                  .eps = pass.eps,
                                  .dx = pass.dx,
                                  .residual = pass.residual,
                                  .dweight = pass.dweight,
                                  .dbias = pass.dbias,
                                  .dy = pass.dy,
                                  .x = pass.x,
                                  .weight = pass.weight});
        return !pass.dsum;
    }
    void norm_heads_backward(const ops::HeadRows& dx, Tensor dweight, const ops::HeadRows& dy,
                             const ops::HeadRows& x, Tensor weight, float eps) override {
        ops::rmsnorm_heads_backward(ctx_, dx, dweight, dy, x, weight, eps);
    }
    void attention_backward(const ops::FlashGradients& gradients, const ops::HeadRows& dout,
                            const ops::HeadRows& q, const ops::HeadRows& k, const ops::HeadRows& v,
                            const ops::HeadRows& out, Tensor lse, const ops::AttentionMask& mask,
                            float scale, int length) override {
        ops::flash_backward(ctx_, gradients, dout, q, k, v, out, lse, batch_of(length), mask,
                            scale);
    }
    bool activation_backward(Tensor din, Tensor, Tensor dy, Tensor in, Tensor, ops::Activation kind,
                             bool gated) override {
        if (gated) {
            ops::gated_activation_backward(ctx_, din, dy, in, kind);
        } else {
            ops::activation_backward(ctx_, din, dy, in, kind);
        }
        return false;
    }
    void embed_backward(Tensor dtable, Tensor dpositions, Tensor dx, int slot) override {
        ops::embedding_backward(ctx_, dtable, dx, parts(slot).ids);
        if (dpositions) ops::embedding_backward(ctx_, dpositions, dx, positions_);
    }

    void zero(Tensor x) override {
        auto* data = static_cast<std::byte*>(x.data);
        pool_.parallel_for(static_cast<std::int64_t>(x.bytes()), 1 << 18,
                           [&](std::int64_t begin, std::int64_t end, int) {
                               std::memset(data + begin, 0, static_cast<std::size_t>(end - begin));
                           });
    }
    void copy(Tensor to, Tensor from) override {
        auto* out = static_cast<std::byte*>(to.data);
        const auto* in = static_cast<const std::byte*>(from.data);
        pool_.parallel_for(static_cast<std::int64_t>(from.bytes()), 1 << 18,
                           [&](std::int64_t begin, std::int64_t end, int) {
                               std::memcpy(out + begin, in + begin,
                                           static_cast<std::size_t>(end - begin));
                           });
    }
    void add_sum(double* sum, Tensor x) override {
        double total = 0;
        for (std::int64_t i = 0; i < x.shape.count(); ++i) {
            total += static_cast<double>(static_cast<const float*>(x.data)[i]);
        }
        *sum += total;
    }
    void sum_parts(double* sum, const double* x, std::int64_t count) override {
        double total = 0;
        for (std::int64_t i = 0; i < count; ++i) total += x[i];
        *sum = total;
    }
    void block_squares(double* squares, Tensor x, const std::int64_t* cuts,
                       std::int64_t blocks) override {
        const auto n = static_cast<std::size_t>(blocks);
        ops::block_squares(ctx_, {squares, n}, x, {cuts, n + 1});
    }
    void sum_of(Tensor to, Tensor a, Tensor b) override { ops::sum_of(ctx_, to, a, b); }
    void adamw(const ops::AdamW& with, Tensor params, Tensor, Tensor grads, Tensor m, Tensor v,
               std::int64_t decayed, const double* grad_square_sum) override {
        ops::adamw(ctx_, with, params, grads, m, v, decayed, grad_square_sum);
        zero(grads);
    }
    void refresh(Tensor, Tensor) override {}

  private:
    static std::size_t slot_bytes(const TrainShape& shape) {
        return Arena::padded(static_cast<std::size_t>(shape.slot_words()) * sizeof(std::int32_t));
    }
    std::size_t op_scratch(const ModelSpec& spec, const TrainShape& shape) const {
        const int threads = pool_.size();
        const std::int64_t tokens = shape.tokens();
        const std::int64_t width = std::max(
            {spec.dim, (spec.gated ? 2 : 1) * spec.hidden, spec.q_dim() + 2 * spec.kv_dim()});
        return Arena::padded(std::max(
            {ops::linear_backward_scratch_bytes(tokens, width, width, threads),
             ops::linear_backward_scratch_bytes(shape.head_rows, spec.vocab, spec.dim, threads),
             ops::norm_backward_scratch_bytes(tokens, std::max(spec.dim, spec.head_dim), threads),
             ops::flash_forward_scratch_bytes(spec.head_dim, threads),
             ops::flash_backward_scratch_bytes(spec.head_dim, threads)}));
    }
    SlotParts<const std::int32_t> parts(int slot) const {
        return {slots_[static_cast<std::size_t>(slot)], shape_};
    }
    ops::PackedBatch batch_of(int length) const {
        if (length == shape_.seq) return {cu_, cu_};
        MR_CHECK(length == shape_.block, "sequences have the length of the shape's, or its blocks");
        return {cu_blocks_, cu_blocks_};
    }

    ThreadPool pool_;
    Ledger ledger_;
    StageLog log_;  // while watched
    Context ctx_;
    TrainShape shape_;
    std::vector<Arena> arenas_;
    std::uint64_t allocated_ = 0;
    std::vector<std::span<std::int32_t>> slots_;
    std::vector<std::int32_t> cu_;         // [sequences + 1]
    std::vector<std::int32_t> cu_blocks_;  // [blocks of a half + 1]
    std::int32_t mask_ = -1;               // the mask token
    std::vector<std::int32_t> positions_;  // [tokens]
};

}  // namespace

std::unique_ptr<TrainOps> make_cpu_train_ops(int threads) {
    return std::make_unique<CpuTrainOps>(threads);
}

}  // namespace mr::model
