// The GEMMs of a layer as input for the kernels for few tokens, norms and activations included. The
// engine launches them one by one, or builds a step in one kernel from them.
#pragma once

#include <cstdint>
#include <vector>

#include "model/cuda/device_buffers.h"
#include "model/cuda/device_weights.h"
#include "model/kv_cache.h"
#include "ops/linear/linear_cuda.h"
#include "ops/step/step_cuda.h"

namespace mr::model {

// Rows [first, first + rows) of a buffer with 4 bytes per element, viewed as another type.
Tensor rows_as(Tensor buffer, DType type, std::int64_t first, std::int64_t rows, std::int64_t cols);

class DeviceProducts {
  public:
    // All three must outlive the object; the buffers may be allocated later.
    DeviceProducts(const ModelSpec& spec, const EngineOptions& options,
                   const DeviceWeights& weights, const DeviceBuffers& buffers)
        : spec_(spec),
          layers_(spec.layer_specs()),
          views_(sink_views(spec, options)),
          by_row_(static_cast<bool>(options.stream)),
          weights_(weights),
          buffers_(buffers) {}

    const SinkViews& views() const { return views_; }
    // The rotations of rows [first, first + rows): a table by position, or by row (rope_by_row());
    // and the rows for queries of sinks in a view.
    bool rope_by_row() const { return by_row_; }
    Tensor rope(std::int64_t first, std::int64_t rows) const;
    Tensor rope_sinks(int view, std::int64_t first, std::int64_t rows) const;
    // Queries for the sinks of a layer, shaped as q; none where sequences have no sinks.
    Tensor q_sinks(int layer, std::int64_t first, std::int64_t rows) const;

    // For rows [first, first + rows) of the activations. qkv: q, and k and v into the cache;
    // `batch` must outlive the result.
    cuda::LinearIn qkv(const ops::DeviceBatch& batch, std::int64_t first, int layer,
                       const ops::PagedKv& kv) const;
    // The same before bias, norms of q and k and rotation; the caller sets the output.
    cuda::LinearIn qkv_sums(std::int64_t rows, std::int64_t first, int layer) const;
    cuda::LinearIn out(std::int64_t rows, std::int64_t first, int layer) const;
    cuda::LinearIn up(std::int64_t rows, std::int64_t first, int layer) const;
    cuda::LinearIn down(std::int64_t rows, std::int64_t first, int layer) const;
    cuda::LinearIn head(Tensor x, Tensor logits) const;
    cuda::LinearIn head(Tensor x, const cuda::RecordsOut& records, Tensor logits) const;

    // All layers for the rows of a decode batch, and the head if its type is that of the layers.
    cuda::StepModel step(const ops::DeviceBatch& batch, KvCache& cache, Tensor logits) const;

  private:
    const LayerWeights& layer(int i) const {
        return weights_.weights.layers[static_cast<std::size_t>(i)];
    }
    const LayerSpec& layer_spec(int i) const { return layers_[static_cast<std::size_t>(i)]; }
    static cuda::NormIn norm(const LayerSpec& of, Tensor weight, Tensor bias) {
        return {weight, bias, of.norm, of.norm_eps};
    }
    const ModelSpec& spec_;
    const std::vector<LayerSpec> layers_;
    const SinkViews views_;
    const bool by_row_;
    const DeviceWeights& weights_;
    const DeviceBuffers& buffers_;
};

}  // namespace mr::model
