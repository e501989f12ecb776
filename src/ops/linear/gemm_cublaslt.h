// cuBLASLt, opened when it is first needed, so that the program starts on machines without it.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda::cublaslt {

inline constexpr std::size_t kWorkspace = std::size_t{32} << 20;  // the most for an algorithm
inline constexpr std::size_t kAlign = 16;  // bytes of x, w and bias; rows of x and w are whole ones

// A product for any number of tokens.
struct Key {
    std::int64_t n = 0, k = 0;
    DType in = DType::bf16, out = DType::bf16;
    bool bias = false;  // [n], of out's type
    // NOLINTNEXTLINE(modernize-use-nullptr): there is no 0 in it
    auto operator<=>(const Key&) const = default;

    // The alignment of `out` in bytes, at every row.
    std::size_t out_align() const {
        const std::size_t row = dtype_bytes(out, static_cast<std::size_t>(n));
        return std::min(kAlign, row & (~row + 1));
    }
};

// One algorithm with its whole configuration: the same kernel for every number of tokens.
struct Algorithm {
    std::array<std::uint64_t, 8> opaque{};  // cublasLtMatmulAlgo_t
    std::size_t workspace = 0;
    int id = 0, tile = 0, stages = 0, cluster = 0, inner = 0, swizzle = 0, custom = 0;
    std::string str() const;
};

// "cuBLASLt 13.1.0", or why it is not used.
std::string about();
bool available();

// The algorithms that may serve the key, the library's favourite for 2048 tokens first: only those
// that neither split k nor stream over it, and that take every number of tokens. May be empty. The
// search ends when it has found `enough` that need no workspace.
std::vector<Algorithm> algorithms(const Key& key, int enough = 32);
// The algorithm for the key; null where there is none. Chosen once per key; callable from any
// thread.
const Algorithm* algorithm(const Key& key);

// out [tokens, n] = x [tokens, k] · w [n, k]ᵀ (+ bias) (+ c, as `out`); addresses
// aligned as kAlign and out_align() say.
void matmul(const Context& ctx, const Key& key, const Algorithm& algorithm, std::int64_t tokens,
            void* out, const void* x, const void* w, const void* bias, const void* c,
            std::span<std::byte> workspace);

}  // namespace mr::cuda::cublaslt
