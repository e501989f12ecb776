#include "core/tensor.h"

#include <fmt/format.h>

namespace mr {

Shape::Shape(std::initializer_list<std::int64_t> list) {
    MR_CHECK(list.size() <= kMaxRank, "a shape has at most four dimensions");
    for (std::int64_t dim : list) dims[static_cast<std::size_t>(rank++)] = dim;
}

std::int64_t Shape::count() const {
    std::int64_t product = rank ? 1 : 0;
    for (int i = 0; i < rank; ++i) product *= (*this)[i];
    return product;
}

std::string Shape::str() const {
    std::string out = "[";
    for (int i = 0; i < rank; ++i) out += fmt::format("{}{}", i ? ", " : "", (*this)[i]);
    return out + "]";
}

}  // namespace mr
