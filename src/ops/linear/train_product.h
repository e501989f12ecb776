// One product of training, and who computes it.
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
    // Transposed, a lies as [sum, rows] and b as [cols, sum]. Strides are the elements from one row
    // to the next.
    bool a_transposed = false, b_transposed = false;
    std::int64_t a_stride = 0, b_stride = 0, out_stride = 0;
};

inline constexpr std::size_t kTrainWorkspace = std::size_t{32} << 20;

// By cuBLASLt; false where it does not take the product, and nothing was done. Only algorithms
// whose partial sums, if any, meet in the workspace and are added there in one order. `which`: of
// the library's favourites, the first one best; false where there are not so many. kTimed: that of
// them which is fastest here among those with the bits of the first, so that the choice, which may
// be another one next time, changes nothing. For that the first call of a shape computes it again
// and again and waits. Where the product adds to its own output, or has less than a million
// elements, the first one is taken.
inline constexpr int kTrainCandidates = 16;
inline constexpr int kTimed = -1;
bool library_product(const Context& ctx, const TrainProduct& product,
                     std::span<std::byte> workspace, int which = 0);
// What the library calls the favourite `which`, and a number that all bits of the output go into
// (it waits for it): for whoever measures.
std::string library_product_name(const TrainProduct& product, int which);
unsigned long long product_digest(const Context& ctx, const TrainProduct& product,
                                  std::span<std::byte> workspace);
// By a plain kernel: any shape, any GPU.
void own_product(const Context& ctx, const TrainProduct& product, Stamp* stamp);

}  // namespace mr::cuda
