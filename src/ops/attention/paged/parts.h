// How decode cuts the keys into parts, and which kernel takes them. All constexpr: kernels call it
// on the device, tests on the host.
#pragma once

#include <cstdint>

namespace mr::cuda::attn {

inline constexpr int kStepKeys = 64;  // keys that a block scores at once, in all kernels

// The keys are cut into parts at places that depend on nothing: parts of one step where a sequence
// begins, because short sequences need every block; parts of four steps further on, where there are
// blocks enough and every part costs a partial result that is written and read again.
inline constexpr int kShortParts = 32;
inline constexpr int kShortKeys = kShortParts * kStepKeys;
inline constexpr int kLongPart = 4 * kStepKeys;

constexpr int part_of(int key) {
    return key < kShortKeys ? key / kStepKeys : kShortParts + (key - kShortKeys) / kLongPart;
}
constexpr int part_begin(int part) {
    return part < kShortParts ? part * kStepKeys : kShortKeys + (part - kShortParts) * kLongPart;
}
constexpr int parts_of(int keys) { return keys > 0 ? part_of(keys - 1) + 1 : 0; }

// Who works on what: a block on a part of one tile and head (decode.cu), a warp on a part
// (many.cu), or a team of four warps on a stretch of all parts (stream.cu).
enum class DecodeKernel { blocks, warps, teams };

// Tiles of rows of all sequences, whose keys are at most max_keys: what a graph was captured for.
struct DecodeWork {
    std::int64_t tiles;
    int kv_heads, group, max_keys, head_dim;
};

// The fastest over all that max_keys may stand for, by what was measured (docs/attention.md): with
// less than three steps for a multiprocessor there is nothing to share out; parts of 64 keys with
// one row of each go well to a warp each, as long as there are not so many that memory alone
// counts; parts of 256 keys want a team.
constexpr DecodeKernel decode_kernel(const DecodeWork& work, int multiprocessors) {
    const std::int64_t steps =
        work.tiles * work.kv_heads * ((work.max_keys + kStepKeys - 1) / kStepKeys);
    if (steps < std::int64_t{3} * multiprocessors) return DecodeKernel::blocks;
    if (work.max_keys > kShortKeys) return DecodeKernel::teams;
    const bool wide = work.head_dim == 128;
    const std::int64_t most = work.max_keys > kShortKeys / 2 ? 64 : 256;
    const bool much = work.group > 1 || steps > most * multiprocessors;
    return wide && much ? DecodeKernel::teams : DecodeKernel::warps;
}

}  // namespace mr::cuda::attn
