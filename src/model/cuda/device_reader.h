// The host's side of loading to a device: all threads read rows of weights, in the device's order,
// into a buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"
#include "model/cuda/device_layout.h"

namespace mr::model {

class WeightReader {
  public:
    // Tensors of a mapped file are read from the file (no page faults, and nothing to unmap) or
    // copied out of the map. Tensors in memory are copied.
    enum class Through { file, map };
    explicit WeightReader(const Weights& weights, Through through = Through::file);

    // Reads rows [first, first + rows) in the device's order, one after another, to `to`. Throws
    // Error (input) if the file cannot be read or has become shorter.
    void read(ThreadPool& pool, const Tensor& tensor, const RowOrder& order, std::int64_t first,
              std::int64_t rows, std::byte* to) const;

  private:
    const MappedFile* file_of(const Tensor& tensor) const;

    const Weights& weights_;
    Through through_;
};

}  // namespace mr::model
