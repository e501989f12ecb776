// One product of training, by cuBLASLt or by a kernel of our own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/context.h"
#include "core/cuda/timeline.h"
#include "core/tensor.h"

namespace mr::cuda {

// out [rows, cols] = a · b (+ bias) (+ c): a [rows, sum] and b [sum, cols] in bf16, f32 sums.
struct TrainProduct {
    std::int64_t rows = 0, cols = 0, sum = 0;
    const void* a = nullptr;
    const void* b = nullptr;
    void* out = nullptr;
    const void* c = nullptr;     // as out, or null; may be out
    const void* bias = nullptr;  // [cols] of out's type, or null
    DType out_type = DType::bf16;
    // If transposed, a is stored as [sum, rows] and b as [cols, sum]. Strides are elements from one
    // row to the next.
    bool a_transposed = false, b_transposed = false;
    std::int64_t a_stride = 0, b_stride = 0, out_stride = 0;
};

inline constexpr std::size_t kTrainWorkspace = std::size_t{32} << 20;

// Computes the product by cuBLASLt; returns false and does nothing if the library does
// not support it. Only algorithms are used that have no partial sums, or add them in
// the workspace in one order. `which` is the number of an algorithm in the library's
// order of preference; false if there are not that many. With kTimed it is the fastest
// on this device among those with the bits of the first, so that the choice, which may
// differ from run to run, does not change the results. To find it, the first call of a
// shape computes the product several times and waits. If the product adds to its own
// output, or has less than a million elements, the first algorithm is used.
inline constexpr int kTrainCandidates = 16;
inline constexpr int kTimed = -1;
bool library_product(const Context& ctx, const TrainProduct& product,
                     std::span<std::byte> workspace, int which = 0);
// For measurements: the library's name for algorithm `which`, and a digest of all bits of the
// output (it waits for the output).
std::string library_product_name(const TrainProduct& product, int which);
unsigned long long product_digest(const Context& ctx, const TrainProduct& product,
                                  std::span<std::byte> workspace);
// Computes the product by a plain kernel: any shape, any GPU.
void own_product(const Context& ctx, const TrainProduct& product, Stamp* stamp);

}  // namespace mr::cuda
