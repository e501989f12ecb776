// The host's side of loading to a device: rows of weights, in the device's order, into a buffer, as
// fast as all threads can.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"
#include "model/cuda/device_layout.h"

namespace mr::model {

class WeightReader {
  public:
    // What lies in a mapped file is read from the file (nothing is mapped in, so there are no page
    // faults and nothing to give back) or copied out of the map; what lies in memory is copied.
    enum class Through { file, map };
    explicit WeightReader(const Weights& weights, Through through = Through::file);

    // Rows [first, first + rows) of the device's order, one after the other, to `to`. Throws Error
    // (input) where the file cannot be read or has become shorter.
    void read(ThreadPool& pool, const Tensor& tensor, const RowOrder& order, std::int64_t first,
              std::int64_t rows, std::byte* to) const;

  private:
    const MappedFile* file_of(const Tensor& tensor) const;

    const Weights& weights_;
    Through through_;
};

}  // namespace mr::model
