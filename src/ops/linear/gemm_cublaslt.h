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
inline constexpr std::size_t kNoSums = 256;  // a workspace of so many bytes holds no partial sums
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

// The algorithms that may serve the key, the library's favourite for `tokens` first: only those
// that neither split k nor stream over it, and that take every number of tokens (where `tokens` is
// below kManyTokens: every number up to it). May be empty. The search ends when it has found
// `enough` whose workspace is at most kNoSums.
inline constexpr std::int64_t kManyTokens = 2048;
std::vector<Algorithm> algorithms(const Key& key, int enough = 32,
                                  std::int64_t tokens = kManyTokens);

// The tile that is best for 2048 tokens leaves most multiprocessors idle at 64. Up to each of these
// numbers of tokens a key may have an algorithm of its own, if it gives the same bits.
inline constexpr std::array<std::int64_t, 5> kSteps{64, 128, 256, 512, 1024};

// Whether the algorithm takes so many tokens with at most kNoSums of workspace.
bool takes(const Key& key, const Algorithm& algorithm, std::int64_t tokens);

// The algorithm for so many tokens; null where there is none for the key. The one for kManyTokens
// is chosen at the first call and defines the bits; the others are those that adopt() was given.
// Callable from any thread; addresses stay.
const Algorithm* algorithm(const Key& key, std::int64_t tokens = kManyTokens);
// From now on this one serves up to kSteps[step] tokens. The caller has shown that its bits are
// those of algorithm(key).
void adopt(const Key& key, std::size_t step, const Algorithm& algorithm);
// Whether the steps of the key were not yet looked at. Says so once.
bool begin_search(const Key& key);

// out [tokens, n] = x [tokens, k] · w [n, k]ᵀ (+ bias) (+ c, as `out`); addresses
// aligned as kAlign and out_align() say.
void matmul(const Context& ctx, const Key& key, const Algorithm& algorithm, std::int64_t tokens,
            void* out, const void* x, const void* w, const void* bias, const void* c,
            std::span<std::byte> workspace);

}  // namespace mr::cuda::cublaslt
