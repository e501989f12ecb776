// Checksums of tensors, for files that this program writes. They find damage on a disk or on the
// way, not forgery: any change inside of 8 aligned bytes is found, any other but one in 2^64.
//
// A tensor's bytes are summed in pieces of 256 KiB, so that threads can share them. In a piece,
// words of 8 bytes (little-endian; zeros fill up the last 64 bytes) go to 8 lanes in turn:
//   lane[i] = (i + 1) * K;  lane[i] = rotl((lane[i] ^ word) * K, 31)
// and sums are joined by the same step: the piece's from its length and its lanes, the tensor's
// from its length and its pieces. Every step is a bijection of either argument. 64-bit products are
// fast on all processors: this takes 10 to 16 GB/s per core without special instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/progress.h"
#include "formats/tensor_file.h"

namespace mr::formats {

inline constexpr std::size_t kSumPiece = std::size_t{256} << 10;

// Sums bytes that come in parts of any length.
class TensorSum {
  public:
    TensorSum() { rest_.reserve(kSumPiece); }
    void add(const void* data, std::size_t bytes);
    std::uint64_t value() const;

  private:
    std::vector<std::uint64_t> pieces_;
    std::vector<std::byte> rest_;
    std::uint64_t bytes_ = 0;
};

// Reads every tensor that has a sum, with all cores: where it is in memory, or from the files of
// `maps` that it points into. The first is for bytes that are used there later, whose pages are
// then mapped already. The second takes no memory, and a file that has become shorter is an Error.
// Throws Error (input) that names the first tensor whose bytes have another sum. Tensors without
// one are not read.
void check_sums(std::span<const FileTensor> tensors, std::span<const MappedFile> maps = {},
                const Progress& progress = {});

}  // namespace mr::formats
