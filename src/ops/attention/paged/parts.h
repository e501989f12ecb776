// How decode cuts the keys into parts, and which kernel processes them. All constexpr: kernels call
// it on the device, tests on the host.
#pragma once

#include <cstdint>

namespace mr::cuda::attn {

inline constexpr int kStepKeys = 64;  // keys that a block scores at once, in all kernels

// The keys of every sequence are cut into parts at the same positions: parts of one step at the
// beginning, because short sequences need every block; later parts of four steps, where there are
// enough blocks and every part costs a partial result that is written and read again.
inline constexpr int kShortParts = 32;
inline constexpr int kShortKeys = kShortParts * kStepKeys;
inline constexpr int kLongPart = 4 * kStepKeys;

// `shorts`: the number of parts of one step, before the longer ones. A call with sinks or streams
// has only short ones (kAllShort).
inline constexpr int kAllShort = 1 << 24;
constexpr int part_of(int key, int shorts = kShortParts) {
    return key < shorts * kStepKeys ? key / kStepKeys
                                    : shorts + (key - shorts * kStepKeys) / kLongPart;
}
constexpr int part_begin(int part, int shorts = kShortParts) {
    return part < shorts ? part * kStepKeys : shorts * kStepKeys + (part - shorts) * kLongPart;
}
constexpr int parts_of(int keys, int shorts = kShortParts) {
    return keys > 0 ? part_of(keys - 1, shorts) + 1 : 0;
}

// A tile of rows with sinks renumbers its keys (a "view"), so that the numbers do not grow with the
// position: sinks from 0 on, in parts of their own, then its window. The window moves by multiples
// of four parts, because partial results are added part p beside part p + 4 (combine()): so
// renumbering changes no bits of its rows.
inline constexpr int kViewStep = 4 * kStepKeys;
// The earliest number at which the window of a tile begins.
constexpr int view_lead(int sinks) { return (sinks + kViewStep - 1) / kViewStep * kViewStep; }
// For a window that starts at key `lo`: the key at which its parts begin, minus that key's number.
constexpr int view_shift(int sinks, int lo) {
    return lo / kViewStep * kViewStep - view_lead(sinks);
}
// The most numbers that a tile of `rows` neighbouring rows needs.
constexpr int view_keys(int sinks, int window, int rows) {
    return view_lead(sinks) + kViewStep - 1 + window + rows - 1;
}

// The unit of work of each kernel: a block has a part of one tile and head (decode.cu), a warp has
// a part (many.cu), a team of four warps has a stretch of all parts (stream.cu), or a block has up
// to 8 tiles of a sequence and head, with all their parts (several.cu).
enum class DecodeKernel { blocks, warps, teams, sequences };

// The work that a graph was captured for: tiles of rows of all sequences, which have at most
// max_keys keys.
struct DecodeWork {
    std::int64_t tiles;
    int kv_heads, group, max_keys, head_dim;
    int row_tiles = 1;   // per sequence
    bool views = false;  // there may be sinks or streams
};

// The fastest kernel over all lengths up to max_keys, as measured (docs/attention.md). Tiles of one
// sequence share its keys, if that leaves enough blocks. With less than three steps per
// multiprocessor there is nothing to balance. Parts of 64 keys with one row each suit a warp, as
// long as there are not so many that memory bandwidth alone counts. Parts of 256 keys need a team.
constexpr DecodeKernel decode_kernel(const DecodeWork& work, int multiprocessors) {
    const std::int64_t steps =
        work.tiles * work.kv_heads * ((work.max_keys + kStepKeys - 1) / kStepKeys);
    if (work.row_tiles > 1 && work.group <= 8 && work.max_keys <= kShortKeys && !work.views &&
        work.tiles / work.row_tiles * work.kv_heads >= multiprocessors) {
        return DecodeKernel::sequences;
    }
    if (steps < std::int64_t{3} * multiprocessors) return DecodeKernel::blocks;
    if (work.max_keys > kShortKeys) return DecodeKernel::teams;
    const bool wide = work.head_dim == 128;
    const std::int64_t most = work.max_keys > kShortKeys / 2 ? 64 : 256;
    const bool much = work.group > 1 || steps > most * multiprocessors;
    return wide && much ? DecodeKernel::teams : DecodeKernel::warps;
}

}  // namespace mr::cuda::attn
