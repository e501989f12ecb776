// The common result of all readers: named tensors that point into a mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"
#include "core/tensor.h"

namespace mr::formats {

struct FileTensor {
    std::string name;
    Tensor view;  // data points into the map: read-only, possibly unaligned; shape outermost first
    std::string file;                    // for error messages
    std::uint64_t offset = 0;            // of the data in that file
    std::optional<std::uint64_t> sum{};  // that the data should have (tensor_sum.h)
};

}  // namespace mr::formats
