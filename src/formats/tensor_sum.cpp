#include "formats/tensor_sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "core/cpu.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "formats/bytes.h"

namespace mr::formats {
namespace {

constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;
constexpr std::size_t kLanes = 8, kStripe = kLanes * sizeof(std::uint64_t);
constexpr std::int64_t kPiecesAtOnce = 256;  // 64 MiB, then progress is told

std::uint64_t joined(std::uint64_t sum, std::uint64_t word) {
    return std::rotl((sum ^ word) * kFactor, 31);
}

void add_stripe(std::uint64_t* lanes, const std::byte* from) {
    std::uint64_t words[kLanes];
    std::memcpy(words, from, kStripe);
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = joined(lanes[i], words[i]);
}

std::uint64_t piece_sum(std::span<const std::byte> bytes) {
    std::uint64_t lanes[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = (i + 1) * kFactor;
    std::size_t at = 0;
    for (; at + kStripe <= bytes.size(); at += kStripe) add_stripe(lanes, bytes.data() + at);
    if (at < bytes.size()) {
        std::byte last[kStripe] = {};
        std::memcpy(last, bytes.data() + at, bytes.size() - at);
        add_stripe(lanes, last);
    }
    std::uint64_t sum = bytes.size();
    for (const std::uint64_t lane : lanes) sum = joined(sum, lane);
    return sum;
}

std::uint64_t sum_of_pieces(std::uint64_t bytes, std::span<const std::uint64_t> pieces) {
    std::uint64_t sum = bytes;
    for (const std::uint64_t piece : pieces) sum = joined(sum, piece);
    return sum;
}

// A tensor to check, and where its pieces' sums are.
struct Checked {
    const FileTensor* tensor;
    const MappedFile* file;  // null: it is read in memory
    std::size_t first = 0, pieces = 0;
};

const MappedFile* file_of(const FileTensor& tensor, std::span<const MappedFile> maps) {
    const auto* data = static_cast<const std::byte*>(tensor.view.data);
    for (const MappedFile& map : maps) {
        const std::byte* begin = map.bytes().data();
        // std::less orders pointers into different objects.
        if (!std::less<>()(data, begin) && std::less<>()(data, begin + map.bytes().size())) {
            return &map;
        }
    }
    return nullptr;
}

}  // namespace

void TensorSum::add(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_ += bytes;
    while (bytes > 0) {
        const std::size_t part = std::min(bytes, kSumPiece - rest_.size());
        rest_.insert(rest_.end(), from, from + part);
        from += part;
        bytes -= part;
        if (rest_.size() < kSumPiece) continue;
        pieces_.push_back(piece_sum(rest_));
        rest_.clear();
    }
}

std::uint64_t TensorSum::value() const {
    const std::uint64_t sum = sum_of_pieces(bytes_, pieces_);
    return rest_.empty() ? sum : joined(sum, piece_sum(rest_));
}

void check_sums(std::span<const FileTensor> tensors, std::span<const MappedFile> maps,
                const Progress& progress) {
    std::vector<Checked> all;
    std::size_t pieces = 0;
    for (const FileTensor& tensor : tensors) {
        if (!tensor.sum) continue;
        Checked one{&tensor, file_of(tensor, maps), pieces};
        one.pieces = (tensor.view.bytes() + kSumPiece - 1) / kSumPiece;
        pieces += one.pieces;
        all.push_back(one);
    }
    if (all.empty()) return;
    std::vector<std::uint64_t> sums(pieces);
    const auto count = static_cast<std::int64_t>(pieces);
    ThreadPool pool(static_cast<int>(std::clamp<std::int64_t>(count / 4, 1, cpu_info().cores)));
    std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(pool.size()));
    const auto sum_piece = [&](std::size_t number, std::vector<std::byte>& buffer) {
        const auto next = std::ranges::upper_bound(all, number, {}, &Checked::first);
        // Empty tensors have no piece, and the first number of the tensor after them.
        const Checked& one = *std::prev(next);
        const std::size_t from = (number - one.first) * kSumPiece;
        const std::size_t size = std::min(kSumPiece, one.tensor->view.bytes() - from);
        const auto* data = static_cast<const std::byte*>(one.tensor->view.data) + from;
        if (!one.file) {
            sums[number] = piece_sum({data, size});
            return;
        }
        buffer.resize(kSumPiece);
        const std::span<std::byte> piece(buffer.data(), size);
        one.file->read(static_cast<std::uint64_t>(data - one.file->bytes().data()), piece);
        sums[number] = piece_sum(piece);
    };
    for (std::int64_t done = 0; done < count; done += kPiecesAtOnce) {
        if (progress) {
            progress("checking weights", static_cast<std::uint64_t>(done),
                     static_cast<std::uint64_t>(count));
        }
        const std::int64_t part = std::min(kPiecesAtOnce, count - done);
        pool.parallel_for(part, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
            for (std::int64_t i = begin; i < end; ++i) {
                sum_piece(static_cast<std::size_t>(done + i),
                          buffers[static_cast<std::size_t>(thread)]);
            }
        });
    }
    for (const Checked& one : all) {
        const std::span<const std::uint64_t> mine(sums.data() + one.first, one.pieces);
        if (sum_of_pieces(one.tensor->view.bytes(), mine) == *one.tensor->sum) continue;
        throw Error::input(
            {.file = one.tensor->file,
             .field = fmt::format("tensor {}", printable(one.tensor->name)),
             .problem = "is not as it was written: its checksum differs",
             .remedy = "the file was damaged: take a copy of it (a program that changes tensors "
                       "must not keep the metadata \"millrace.sums\")"});
    }
}

}  // namespace mr::formats
