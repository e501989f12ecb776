// A view of a contiguous row-major array: pointer, type, shape. It owns nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace mr {

struct Shape {
    static constexpr int kMaxRank = 4;

    Shape() = default;
    Shape(std::initializer_list<std::int64_t> list);

    std::int64_t operator[](int i) const { return dims[static_cast<std::size_t>(i)]; }
    std::int64_t count() const;
    bool operator==(const Shape&) const = default;
    std::string str() const;  // "[32000, 4096]"

    int rank = 0;
    std::array<std::int64_t, kMaxRank> dims{};  // outermost first; unused ones are 0
};

struct Tensor {
    Tensor() = default;
    Tensor(void* data_, DType dtype_, Shape shape_) : data(data_), dtype(dtype_), shape(shape_) {}

    explicit operator bool() const { return data != nullptr; }
    std::int64_t dim(int i) const { return shape[i]; }
    std::int64_t cols() const { return shape.rank ? shape[shape.rank - 1] : 0; }
    std::int64_t rows() const { return cols() ? shape.count() / cols() : 0; }
    std::size_t row_bytes() const { return dtype_bytes(dtype, static_cast<std::size_t>(cols())); }
    std::size_t bytes() const {
        return dtype_bytes(dtype, static_cast<std::size_t>(shape.count()));
    }

    // The first element of row `row`, for unquantised types.
    template <typename T>
    T* row(std::int64_t r) const {
        return reinterpret_cast<T*>(static_cast<std::byte*>(data) +
                                    static_cast<std::size_t>(r) * row_bytes());
    }
    float* f32(std::int64_t r = 0) const {
        MR_CHECK(dtype == DType::f32, "the tensor is f32");
        return row<float>(r);
    }
    // Rows [first, first + count), as a tensor of rank 2.
    Tensor slice_rows(std::int64_t first, std::int64_t count) const {
        MR_CHECK(first >= 0 && count >= 0 && first + count <= rows(), "the slice lies inside");
        return {row<std::byte>(first), dtype, {count, cols()}};
    }

    void* data = nullptr;
    DType dtype = DType::f32;
    Shape shape;
};

}  // namespace mr
