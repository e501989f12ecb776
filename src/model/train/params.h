// The parameters of a model that is trained: one flat buffer, so that the optimizer, the gradients'
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
// q, k and v of a layer lie one after the other without a gap, and so do their biases, and gate and
// up: each is one matrix [q_dim + 2 kv_dim, dim] and [2 hidden, dim]. Everything else begins at a
// multiple of kParamAlign elements; the gaps are 0 and stay 0. A tied head has no place of its own.
// Behind the rows of the head (or of the embedding that is the head) there is room for a multiple
// of kHeadAlign of them, so that its products may be of that many: no gradient goes there.
struct ParamLayout {
    struct Entry {
        RoleAt at;
        Shape shape;
        std::int64_t offset = 0;  // in elements
        std::int64_t whole = 0;   // ... in the layout of all layers
    };
    ModelSpec spec;
    std::vector<Entry> entries;  // by offset
    bool all = true;             // of all layers, not of a stage
    std::int64_t decayed = 0;    // elements of the first part, gaps included
    std::int64_t count = 0;      // of all, gaps included
};
inline constexpr std::int64_t kParamAlign = 64;
inline constexpr std::int64_t kHeadAlign = 64;

// The layers [begin, end) that a stage of a pipeline has, with the tables before the first layer
// and what is behind the last one at the ends. Of a tied table each end has a copy.
struct StageSpan {
    static constexpr int kAll = -1;
    int begin = 0, end = kAll;

    bool first() const { return begin == 0; }
    bool last(const ModelSpec& spec) const { return end == kAll || end == spec.layers; }
    int end_of(const ModelSpec& spec) const { return end == kAll ? spec.layers : end; }
    bool all(const ModelSpec& spec) const { return first() && last(spec); }
};

// Of a stage: its entries alone, in the same order.
ParamLayout param_layout(const ModelSpec& spec, const StageSpan& stage = {});

// The buffer as ranks share it: range after range, each of one unit of the model. Unit 0 has the
// tables of tokens and positions, unit i + 1 layer i, the last one what is behind the layers.
struct ParamRange {
    std::int64_t begin = 0, end = 0;
    int unit = 0;
    // Where it begins in the layout of all layers, and how many elements it has there: more, where
    // a stage has a tied table without the positions behind it.
    std::int64_t whole = 0, whole_size = 0;
};
std::vector<ParamRange> param_ranges(const ParamLayout& layout);
inline int unit_count(const ModelSpec& spec) { return spec.layers + 2; }
// Ranges are cut into blocks of so many elements for the gradient's norm, and for ranks.
inline constexpr std::int64_t kParamBlock = 256;
// Where the blocks of all ranges begin, and the end of the last.
std::vector<std::int64_t> block_cuts(const std::vector<ParamRange>& ranges);
inline std::int64_t block_count(const ParamRange& range) {
    return (range.end - range.begin + kParamBlock - 1) / kParamBlock;
}

// The roles inside of a flat buffer [count] of `dtype`. A tied head is the embedding.
Weights param_views(const ParamLayout& layout, void* base, DType dtype);
// Matrices inside of `matrices`, a buffer [count] of `dtype`, the rest inside of `rest`, f32, which
// begins with element `first` (0 or layout.decayed): what products in 16 bits read.
Weights param_views(const ParamLayout& layout, void* matrices, DType dtype, float* rest,
                    std::int64_t first);

// Stacked: what one product reads, and where one product adds its gradient.
Tensor qkv_matrix(const ModelSpec& spec, const LayerWeights& w);      // [q_dim + 2 kv_dim, dim]
Tensor qkv_bias(const ModelSpec& spec, const LayerWeights& w);        // [q_dim + 2 kv_dim], or none
Tensor gate_up_matrix(const ModelSpec& spec, const LayerWeights& w);  // [2 hidden, dim], or up
// The head with the rows behind it.
std::int64_t head_rows(const ModelSpec& spec);
Tensor head_matrix(const ModelSpec& spec, const Weights& w);  // [head_rows(), dim]
// The most rows that any of these matrices has: what a product's scratch is planned for.
std::int64_t widest_matrix(const ModelSpec& spec);

// New parameters: matrices and tables N(0, 0.02), those that end in the residual stream (o, down)
// divided by sqrt(2 layers); norms 1, biases 0. A tensor's values depend on its role, layer and the
// seed alone.
void init_params(const ParamLayout& layout, float* params, std::uint64_t seed, ThreadPool& pool);
// One tensor of them, into memory that is 0.
void init_param(const ParamLayout& layout, const ParamLayout::Entry& entry, float* out,
                std::uint64_t seed, ThreadPool& pool);

// Those of a model that was loaded, expanded to f32. `layout` is that of trainable_spec(), or of
// diffusion_spec(): a token more, whose rows are the mean of all others. Zeros would be no
// beginning for an embedding: the norm before the first layer divides by its size.
void copy_params(const ParamLayout& layout, float* params, const Model& model, ThreadPool& pool);
// One tensor of them, of a model with this spec.
void copy_param(const ParamLayout::Entry& entry, float* out, const ModelSpec& spec,
                const Tensor& from, ThreadPool& pool);

// The spec of a model as it will be trained and written: heads turn halves (RopeStyle::half), which
// is what Hugging Face files mean; copy_params() puts the rows in that order.
ModelSpec trainable_spec(ModelSpec spec);

// `spec` as a model that fills in blocks of `block` tokens, in which `mask` stands for unknown
// ones; the vocabulary grows by the mask where it lies behind. Throws Error (usage) for a model
// that none of these can be made of: they have the shape of Llama or Qwen3, and no windows.
ModelSpec diffusion_spec(ModelSpec spec, std::int32_t mask, int block);

}  // namespace mr::model
