// The parameters of a model in training: one flat buffer, so that the optimizer, the gradients'
// norm and a checkpoint are one pass over memory. Gradients and moments have the same layout.
#pragma once

#include <cstdint>
#include <vector>

#include "core/thread_pool.h"
#include "model/model.h"
#include "model/names.h"
#include "model/spec.h"
#include "model/weights.h"

namespace mr::model {

// First all matrices and tables, which have weight decay, then norms and biases, which have none.
// q, k and v of a layer follow each other without a gap, and so do their biases, and gate and up:
// each group is one matrix, [q_dim + 2 kv_dim, dim] and [2 hidden, dim]. Everything else begins at
// a multiple of kParamAlign elements; gaps are 0 and stay 0. A tied head has no entry. The rows of
// the head (or of the tied embedding) are padded to a multiple of kHeadAlign, so that its GEMMs may
// have that many rows: no gradient goes to the padding.
struct ParamLayout {
    struct Entry {
        RoleAt at;
        Shape shape;
        std::int64_t offset = 0;  // in elements
        std::int64_t whole = 0;   // the same in the layout of all layers
    };
    ModelSpec spec;
    std::vector<Entry> entries;  // by offset
    bool all = true;             // covers all layers, not one stage
    std::int64_t decayed = 0;    // elements of the first part, gaps included
    std::int64_t count = 0;      // in all, gaps included
};
inline constexpr std::int64_t kParamAlign = 64;
inline constexpr std::int64_t kHeadAlign = 64;

// The layers [begin, end) of a pipeline stage; the first stage also has the tables before the first
// layer, the last one everything after the last layer. Both have a copy of a tied table.
struct StageSpan {
    static constexpr int kAll = -1;
    int begin = 0, end = kAll;

    bool first() const { return begin == 0; }
    bool last(const ModelSpec& spec) const { return end == kAll || end == spec.layers; }
    int end_of(const ModelSpec& spec) const { return end == kAll ? spec.layers : end; }
    bool all(const ModelSpec& spec) const { return first() && last(spec); }
};

// The layout of a stage: only its entries, in the same order.
ParamLayout param_layout(const ModelSpec& spec, const StageSpan& stage = {});

// The buffer as ranks shard it: a list of ranges, each of one unit of the model. Unit 0 is the
// tables of tokens and positions, unit i + 1 is layer i, the last unit is everything after the
// layers.
struct ParamRange {
    std::int64_t begin = 0, end = 0;
    int unit = 0;
    // Its start and size in the layout of all layers. The size is larger there if a stage has a
    // tied table without the positions that follow it.
    std::int64_t whole = 0, whole_size = 0;
};
std::vector<ParamRange> param_ranges(const ParamLayout& layout);
inline int unit_count(const ModelSpec& spec) { return spec.layers + 2; }
// Ranges are cut into blocks of this many elements for the gradient's norm, and for ranks.
inline constexpr std::int64_t kParamBlock = 256;
// The starts of the blocks of all ranges, and the end of the last block.
std::vector<std::int64_t> block_cuts(const std::vector<ParamRange>& ranges);
inline std::int64_t block_count(const ParamRange& range) {
    return (range.end - range.begin + kParamBlock - 1) / kParamBlock;
}

// Views of the roles in a flat buffer [count] of `dtype`. A tied head is the embedding.
Weights param_views(const ParamLayout& layout, void* base, DType dtype);
// Views for GEMMs in 16 bits: matrices in `matrices`, a buffer [count] of `dtype`, the rest in
// `rest`, f32, whose first element is element `first` of the layout (0 or layout.decayed).
Weights param_views(const ParamLayout& layout, void* matrices, DType dtype, float* rest,
                    std::int64_t first);

// Stacked matrices: one GEMM reads each, and one GEMM adds its gradient.
Tensor qkv_matrix(const ModelSpec& spec, const LayerWeights& w);      // [q_dim + 2 kv_dim, dim]
Tensor qkv_bias(const ModelSpec& spec, const LayerWeights& w);        // [q_dim + 2 kv_dim], or none
Tensor gate_up_matrix(const ModelSpec& spec, const LayerWeights& w);  // [2 hidden, dim], or up
// The head with its padding rows.
std::int64_t head_rows(const ModelSpec& spec);
Tensor head_matrix(const ModelSpec& spec, const Weights& w);  // [head_rows(), dim]
// The most rows of any of these matrices, for planning a GEMM's scratch.
std::int64_t widest_matrix(const ModelSpec& spec);

// Initialises a parameter, in zeroed memory: matrices and tables N(0, 0.02), those that write to
// the residual stream (o, down) divided by sqrt(2 layers); norms 1, biases 0. A tensor's values
// depend only on its role, layer and the seed.
void init_param(const ParamLayout& layout, const ParamLayout::Entry& entry, float* out,
                std::uint64_t seed, ThreadPool& pool);

// Copies a parameter of a loaded model with this spec, expanded to f32. `entry` is of the layout of
// trainable_spec(), or of diffusion_spec(), which may have one more token: its rows become the mean
// of all others. Zeros would be a bad start for an embedding: the norm before the first layer
// divides by its size.
void copy_param(const ParamLayout::Entry& entry, float* out, const ModelSpec& spec,
                const Tensor& from, ThreadPool& pool);

// The spec of a model as it is trained and written: heads rotate halves (RopeStyle::half), as in
// Hugging Face files; copy_param() reorders the rows.
ModelSpec trainable_spec(ModelSpec spec);

// `spec` as a diffusion model with blocks of `block` tokens and the mask token `mask`; the
// vocabulary grows by the mask if it lies beyond it. Throws Error (usage) for unsupported models:
// it must have the shape of Llama or Qwen3, and no windows.
ModelSpec diffusion_spec(ModelSpec spec, std::int32_t mask, int block);

}  // namespace mr::model
