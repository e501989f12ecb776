// cuBLASLt, opened at first use, so that the program also starts on machines without it.
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

inline constexpr std::size_t kWorkspace = std::size_t{32} << 20;  // limit for any algorithm
inline constexpr std::size_t kNoSums = 256;  // a workspace this small cannot hold partial sums
inline constexpr std::size_t kAlign = 16;  // alignment of x, w and bias, and of the rows of x and w

// A product without its number of tokens.
struct Key {
    std::int64_t n = 0, k = 0;
    DType in = DType::bf16, out = DType::bf16;
    bool bias = false;  // [n], of out's type
    auto operator<=>(const Key&) const = default;

    // The alignment of `out` in bytes, at every row.
    std::size_t out_align() const {
        const std::size_t row = dtype_bytes(out, static_cast<std::size_t>(n));
        return std::min(kAlign, row & (~row + 1));
    }
};

// One algorithm with its whole configuration: one kernel, one tile, one order of sums.
struct Algorithm {
    std::array<std::uint64_t, 8> opaque{};  // cublasLtMatmulAlgo_t
    std::size_t workspace = 0;
    int id = 0, tile = 0, stages = 0, cluster = 0, inner = 0, swizzle = 0, custom = 0;
    std::string str() const;
};

// "cuBLASLt 13.1.0", or why it is not used.
std::string about();
bool available();

// The algorithms that may serve the key, the library's preference for `tokens` first: only those
// that use neither split-k nor stream-k, and that accept every number of tokens (if `tokens` is
// below kManyTokens: every number up to it). May be empty. The search ends when it has found
// `enough` algorithms whose workspace is at most kNoSums.
inline constexpr std::int64_t kManyTokens = 2048;
std::vector<Algorithm> algorithms(const Key& key, int enough = 32,
                                  std::int64_t tokens = kManyTokens);

// The tile that is best for 2048 tokens leaves most multiprocessors idle at 64. Up to each of these
// token counts a key may have its own algorithm, if it gives the same bits.
inline constexpr std::array<std::int64_t, 5> kSteps{64, 128, 256, 512, 1024};

// Whether the algorithm accepts `tokens` tokens with at most kNoSums of workspace.
bool takes(const Key& key, const Algorithm& algorithm, std::int64_t tokens);

// The algorithm for `tokens` tokens; null if the key has none. The one for kManyTokens is chosen at
// the first call and defines the bits; the others come from adopt(). Callable from any thread;
// addresses stay.
const Algorithm* algorithm(const Key& key, std::int64_t tokens = kManyTokens);
// From now on this algorithm serves up to kSteps[step] tokens. The caller has checked that its bits
// are those of algorithm(key).
void adopt(const Key& key, std::size_t step, const Algorithm& algorithm);
// Returns true once per key: the caller then searches algorithms for its steps.
bool begin_search(const Key& key);

// out [tokens, n] = x [tokens, k] · w [n, k]ᵀ (+ bias) (+ c, of out's shape and type); addresses
// are aligned to kAlign and out_align().
void matmul(const Context& ctx, const Key& key, const Algorithm& algorithm, std::int64_t tokens,
            void* out, const void* x, const void* w, const void* bias, const void* c,
            std::span<std::byte> workspace);

}  // namespace mr::cuda::cublaslt
