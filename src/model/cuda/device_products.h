// The products of a layer as the kernels for few tokens take them, norms and activations included:
// what the engine launches one by one, and what a step in one kernel is made of.
#pragma once

#include <cstdint>
#include <vector>

#include "model/cuda/device_buffers.h"
#include "model/cuda/device_weights.h"
#include "model/kv_cache.h"
#include "ops/linear/linear_cuda.h"
#include "ops/step/step_cuda.h"

namespace mr::model {

// Rows [first, first + rows) of a buffer whose elements are 4 bytes wide, in another type.
Tensor rows_as(Tensor buffer, DType type, std::int64_t first, std::int64_t rows, std::int64_t cols);

class DeviceProducts {
  public:
    // All three outlive it; the buffers may be taken later.
    DeviceProducts(const ModelSpec& spec, const DeviceWeights& weights,
                   const DeviceBuffers& buffers)
        : spec_(spec), layers_(spec.layer_specs()), weights_(weights), buffers_(buffers) {}

    // Of rows [first, first + rows) of the activations. qkv: q, and k and v into the cache; `batch`
    // must outlive what is returned.
    cuda::LinearIn qkv(const ops::DeviceBatch& batch, std::int64_t first, int layer,
                       const ops::PagedKv& kv) const;
    cuda::LinearIn out(std::int64_t rows, std::int64_t first, int layer) const;
    cuda::LinearIn up(std::int64_t rows, std::int64_t first, int layer) const;
    cuda::LinearIn down(std::int64_t rows, std::int64_t first, int layer) const;
    cuda::LinearIn head(Tensor x, Tensor logits) const;

    // All layers for the rows of a decode batch, and the head where its type is that of the layers.
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
    const DeviceWeights& weights_;
    const DeviceBuffers& buffers_;
};

}  // namespace mr::model
