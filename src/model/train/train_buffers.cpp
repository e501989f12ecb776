#include "model/train/train_buffers.h"

#include <algorithm>

#include "core/error.h"
#include "ops/rope/rope.h"

namespace mr::model {
namespace {

std::size_t padded_bytes(DType dtype, const Shape& shape) {
    const std::size_t bytes = dtype_bytes(dtype, static_cast<std::size_t>(shape.count()));
    return TrainOps::padded(bytes);
}

enum class Part { kept, work, head, mlp, attention };

}  // namespace

std::string train_takes(const LayerSpec& layer, const LayerSpec& common) {
    // A structured binding of every member: a new member must be handled before this compiles.
    // Masks, scales, norms and activations are those of the layer, forward and backward.
    const auto& [mask, rope, scale, softcap, norm, norm_eps, qk_norm, activation, gated] = layer;
    if (softcap != 0) return "a softcap of scores";
    // All layers share one table of positions, and buffers and joined matrices of one shape.
    if (rope != common.rope) return "rotary positions that differ by layer";
    if (qk_norm != common.qk_norm) return "norms of q and k in some layers only";
    if (gated != common.gated) return "MLPs with and without a gate in one model";
    return {};
}

const char* recompute_name(Recompute recompute) {
    switch (recompute) {
        case Recompute::none:
            return "none";
        case Recompute::light:
            return "light";
        case Recompute::full:
            return "full";
    }
    return "";
}

std::optional<Recompute> recompute_of(std::string_view name) {
    for (const Recompute r : {Recompute::none, Recompute::light, Recompute::full}) {
        if (name == recompute_name(r)) return r;
    }
    return std::nullopt;
}

std::int64_t default_head_rows(const ModelSpec& spec, std::int64_t tokens, DType compute) {
    // A GPU wants few large GEMMs; a CPU wants its data in cache. 576 MiB are 5,504 rows of GPT-2:
    // their gradient has 129 tiles of 128 x 256, which keeps all but three of an H200's 132
    // multiprocessors busy at once.
    const std::int64_t bytes = std::int64_t{compute == DType::f32 ? 16 : 576} << 20;
    const auto row = static_cast<std::int64_t>(dtype_bytes(compute, 1)) * spec.vocab;
    const std::int64_t most = std::max<std::int64_t>(bytes / row / 64 * 64, 64);
    // As few pieces as needed, all of one size: a small last one would be slow.
    const std::int64_t pieces = (tokens + most - 1) / most;
    const std::int64_t rows = (tokens + pieces - 1) / pieces;
    return std::min((rows + 63) / 64 * 64, tokens);
}

// GEMMs in 16 bits prefer multiples of 128 bytes. Columns beyond the vocabulary take no part in the
// loss and have no gradient, nor have the head's rows that make them.
static std::int64_t logit_columns(const ModelSpec& spec, DType compute) {
    return compute == DType::f32 ? spec.vocab : head_rows(spec);
}

template <typename Take>
void TrainPass::for_each_buffer(const ModelSpec& spec, const TrainShape& shape, Recompute recompute,
                                DType compute, const PassStage& stage, Buffers& b, Take&& take) {
    const std::int64_t tokens = shape.tokens();
    const std::int64_t head_rows = shape.head_rows;
    const std::int64_t dim = spec.dim, q = spec.q_dim(), kv = spec.kv_dim(), hidden = spec.hidden;
    const bool parallel = spec.residual == Residual::parallel;
    const bool last = stage.layers.last(spec), piped = !stage.layers.all(spec);
    const auto passes = static_cast<std::size_t>(stage.on_their_way);
    b.passes.assign(passes, {});
    b.inputs.resize(passes + (stage.layers.first() ? 0 : 1));
    b.outputs.resize(last ? passes : 2);
    b.gradients.resize(piped ? 2 : 1);
    Layer shared;
    const auto of_layer = [&](Layer& l, std::int64_t rows, bool inputs, bool middle, bool cheap) {
        if (inputs) take(l.x, DType::f32, Shape{tokens, dim}, Part::kept);
        if (middle) {
            take(l.qkv, compute, Shape{tokens, q + 2 * kv}, Part::kept);
            if (spec.qk_norm) take(l.qk, compute, Shape{tokens, q + kv}, Part::kept);
            take(l.attn, compute, Shape{rows, q}, Part::kept);
            take(l.lse, DType::f32, Shape{spec.heads, rows}, Part::kept);
            if (!parallel) take(l.x1, DType::f32, Shape{rows, dim}, Part::kept);
            take(l.gu, compute, Shape{rows, (spec.gated ? 2 : 1) * hidden}, Part::kept);
        }
        if (cheap) {
            take(l.h1, compute, Shape{tokens, dim}, Part::kept);
            take(l.h2, compute, Shape{rows, dim}, Part::kept);
            take(l.a, compute, Shape{rows, hidden}, Part::kept);
        }
    };
    const bool keep_middle = recompute != Recompute::full;
    const bool keep_cheap = recompute == Recompute::none;
    of_layer(shared, tokens, false, !keep_middle, !keep_cheap);
    for (Tensor& x : b.inputs) take(x, DType::f32, Shape{tokens, dim}, Part::kept);
    for (std::vector<Layer>& layers : b.passes) {
        for (int i = stage.layers.begin; i < stage.layers.end_of(spec); ++i) {
            Layer& layer = layers.emplace_back(shared);
            layer.rows = i + 1 == spec.layers ? shape.half() : tokens;
            of_layer(layer, layer.rows, i > stage.layers.begin, keep_middle, keep_cheap);
        }
    }
    for (Tensor& x : b.outputs) {
        take(x, DType::f32, Shape{last ? shape.half() : tokens, dim}, Part::kept);
    }
    if (spec.rope.rotary > 0) {
        take(b.cos_sin, DType::f32, Shape{tokens, spec.rope.rotary / 2, 2}, Part::work);
    }
    take(b.losses, DType::f32, Shape{shape.half()}, Part::work);
    for (Tensor& x : b.gradients) take(x, DType::f32, Shape{tokens, dim}, Part::work);
    b.dx = b.dxc = b.gradients.front();
    if (compute != DType::f32) take(b.dxc, compute, Shape{tokens, dim}, Part::work);
    take(b.dh, compute, Shape{tokens, dim}, Part::work);
    if (parallel) take(b.dh2, compute, Shape{tokens, dim}, Part::work);
    if (last) {
        take(b.hf, compute, Shape{head_rows, dim}, Part::head);
        take(b.dhf, compute, Shape{head_rows, dim}, Part::head);
        take(b.logits, compute, Shape{head_rows, logit_columns(spec, compute)}, Part::head);
    }
    if (last && shape.block > 0) {
        take(b.xm, DType::f32, Shape{head_rows, dim}, Part::head);
        take(b.dxm, DType::f32, Shape{head_rows, dim}, Part::head);
    }
    take(b.da, compute, Shape{tokens, hidden}, Part::mlp);
    take(b.dattn, compute, Shape{tokens, q}, Part::attention);
    take(b.dqkv, compute, Shape{tokens, q + 2 * kv}, Part::attention);
    if (shape.block > 0) {
        take(b.part, compute, Shape{shape.half(), q + 2 * kv}, Part::attention);
        take(b.own_lse, DType::f32, Shape{spec.heads, shape.half()}, Part::attention);
    }
}

MemoryPlan TrainPass::plan(const ModelSpec& spec, const TrainShape& shape, Recompute recompute,
                           DType compute, const PassStage& stage) {
    std::size_t bytes[5] = {};
    Buffers unused;
    for_each_buffer(spec, shape, recompute, compute, stage, unused,
                    [&](Tensor&, DType dtype, Shape dims, Part part) {
                        bytes[static_cast<int>(part)] += padded_bytes(dtype, dims);
                    });
    MemoryPlan plan;
    plan.add("activations", bytes[0]);
    plan.add("workspace", bytes[1] + std::max({bytes[2], bytes[3], bytes[4]}));
    return plan;
}

TrainPass::TrainPass(const ParamLayout& layout, const TrainShape& shape, Recompute recompute,
                     TrainOps& ops, const PassStage& stage)
    : spec_(layout.spec),
      shape_(shape),
      recompute_(recompute),
      stage_(stage),
      ops_(ops),
      b_(std::make_unique<Buffers>()) {
    const MemoryPlan memory = plan(spec_, shape_, recompute_, ops_.compute_type(), stage_);
    std::byte* next[5];
    next[0] = static_cast<std::byte*>(ops_.allocate("activations", memory.items()[0].bytes));
    next[1] = static_cast<std::byte*>(ops_.allocate("workspace", memory.items()[1].bytes));
    bool split = false;
    for_each_buffer(spec_, shape_, recompute_, ops_.compute_type(), stage_, *b_,
                    [&](Tensor& tensor, DType dtype, Shape dims, Part part) {
                        if (part >= Part::head && !split) {  // after what they do not share
                            next[2] = next[3] = next[4] = next[1];
                            split = true;
                        }
                        std::byte*& at = next[static_cast<int>(part)];
                        tensor = Tensor(at, dtype, dims);
                        at += padded_bytes(dtype, dims);
                    });
    for (std::vector<Layer>& layers : b_->passes) {
        int number = stage_.layers.begin;
        for (Layer& layer : layers) {
            layer.of = spec_.layer(number++);
            // This layer may use only the first rows of the buffers that all layers share.
            for (Tensor* part : {&layer.attn, &layer.x1, &layer.h2, &layer.gu, &layer.a}) {
                if (*part) *part = part->slice_rows(0, layer.rows);
            }
            layer.lse = Tensor(layer.lse.data, DType::f32, {std::int64_t{spec_.heads}, layer.rows});
        }
    }
    if (b_->cos_sin) make_rope_table();
}

TrainPass::~TrainPass() = default;

Tensor TrainPass::losses() const { return b_->losses; }

std::vector<TrainPass::Layer>& TrainPass::layers_of(int number) {
    return b_->passes[static_cast<std::size_t>(number) % b_->passes.size()];
}
Tensor TrainPass::input(int number) const {
    return b_->inputs[static_cast<std::size_t>(number) % b_->inputs.size()];
}
Tensor TrainPass::output(int number) const {
    return b_->outputs[static_cast<std::size_t>(number) % b_->outputs.size()];
}
Tensor TrainPass::gradient(int number) const {
    return b_->gradients[static_cast<std::size_t>(number) % b_->gradients.size()];
}

void TrainPass::make_rope_table() {
    const RopeFrequencies rope = rope_frequencies(spec_.rope);
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < shape_.tokens(); ++t) {
        positions.push_back(static_cast<std::int32_t>(t % shape_.seq));
    }
    std::vector<float> host(static_cast<std::size_t>(b_->cos_sin.shape.count()));
    Context ctx;
    ctx.pool = &ops_.pool();
    ops::rope_table(ctx, Tensor(host.data(), DType::f32, b_->cos_sin.shape), positions,
                    rope.inv_freq, rope.magnitude);
    ops_.write(b_->cos_sin.data, host.data(), b_->cos_sin.bytes());
}

}  // namespace mr::model
