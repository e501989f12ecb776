#include "model/cuda/device_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/error.h"

namespace mr::model {
namespace {

// Large enough to hide the cost of a system call, small enough that all threads end together.
constexpr std::int64_t kPieceBytes = 256 << 10;

}  // namespace

WeightReader::WeightReader(const Weights& weights, Through through)
    : weights_(weights), through_(through) {
    if (through_ != Through::file) return;
    for (const MappedFile& file : weights.files) {  // only a hint: the system may ignore it
        ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
    }
}

const MappedFile* WeightReader::file_of(const Tensor& tensor) const {
    if (through_ != Through::file) return nullptr;
    const auto* data = static_cast<const std::byte*>(tensor.data);
    for (const MappedFile& file : weights_.files) {
        const std::byte* begin = file.bytes().data();
        const std::byte* end = begin + file.bytes().size();
        // std::less orders pointers into different objects.
        if (!std::less<>()(data, begin) && !std::less<>()(end, data + tensor.bytes())) return &file;
    }
    return nullptr;
}

void WeightReader::read(ThreadPool& pool, const Tensor& tensor, const RowOrder& order,
                        std::int64_t first, std::int64_t rows, std::byte* to) const {
    MR_CHECK(tensor.data != nullptr, "the weights are on the host");
    const MappedFile* file = file_of(tensor);
    const auto* data = static_cast<const std::byte*>(tensor.data);
    const auto row_bytes = static_cast<std::int64_t>(tensor.row_bytes());
    const auto copy = [&](std::int64_t to_byte, std::int64_t from_byte, std::int64_t bytes) {
        const std::byte* from = data + from_byte;
        if (file) {
            file->read(static_cast<std::uint64_t>(from - file->bytes().data()),
                       {to + to_byte, static_cast<std::size_t>(bytes)});
        } else {
            std::memcpy(to + to_byte, from, static_cast<std::size_t>(bytes));
        }
    };
    if (order.plain()) {
        const std::int64_t bytes = rows * row_bytes;
        const std::int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
        pool.parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end, int) {
            const std::int64_t from = begin * kPieceBytes;
            copy(from, first * row_bytes + from, std::min(bytes, end * kPieceBytes) - from);
        });
        return;
    }
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a row has weights
    const std::int64_t grain = std::max<std::int64_t>(1, kPieceBytes / row_bytes);
    pool.parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t r = begin; r < end; ++r) {
            copy(r * row_bytes, order.source(first + r) * row_bytes, row_bytes);
        }
    });
}

}  // namespace mr::model
