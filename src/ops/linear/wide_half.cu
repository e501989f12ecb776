// linear_small() for more than a few tokens with f16 or bf16 weights: every weight is read once for
// up to 256 of them, and every result has the bits that small_linear.cu gives it.
//
//   inputs (norm, order: a kernel of its own) | fill the ring with weights | wait for the previous
//   kernel | weights and inputs through the tensor cores | finish
//
// A block has two warps that bring things in by TMA, one the weights and one the inputs, each
// through a ring of its own, granule by granule, and two groups of four warps that multiply. A
// group has up to four tiles of 16 rows, the first operand of wgmma, which comes from registers: a
// lane loads 16 bytes of its row, as in small_linear.cuh. The second operand are the tokens, in
// shared memory. There the columns of each 32 lie in another order: 16 neighbours are those that
// one instruction of small_linear.cuh takes.
//
// A result is a chain of 8 sums, one for each eighth of the granules ("part"). As many as registers
// allow are made at once, so that neighbouring columns are read together; then they are added to
// the sum of the parts before them.
//
// Two blocks are a cluster, in which what both need is read once: the inputs, where they have
// different rows, or the weights, where they have different tokens.
#include <algorithm>
#include <type_traits>

#include "core/cuda/cluster.cuh"
#include "core/cuda/tensor_map.h"
#include "core/cuda/tma.cuh"
#include "core/cuda/wgmma.cuh"
#include "ops/linear/mid_linear.cuh"
#include "ops/linear/small_finish.cuh"
#include "ops/linear/small_input.cuh"

namespace mr::cuda::small {
namespace {

constexpr int kPreparedRows = 256;  // tokens whose inputs are prepared at once
constexpr int kUnit = 4;            // tiles of a group of warps
constexpr int kGranule = 64;        // columns
constexpr int kTileBytes = kTileRows * 128;
constexpr int kMostWeights = 48, kMostInputs = 16;  // stages of the rings
constexpr int kMultipliers = 256;                   // threads
constexpr int kWideThreads = kMultipliers + 128;
constexpr int kRoom = 222 * 1024;  // shared memory; beside it a block that prepares inputs fits

enum class Share { nothing, inputs, weights };

// N: tokens of a block, a multiple of 32 (or 16); share: what the two blocks of a cluster both
// need.
template <int kTokensMost_, Share kShare_>
struct WideShape {
    static constexpr int kTokensMost = kTokensMost_;
    static constexpr Share kShare = kShare_;
    static constexpr int kCluster = kShare == Share::nothing ? 1 : 2;
    // Two groups with different rows: how many parts are held at once.
    static constexpr int kParts = kTokensMost <= 32   ? 8
                                  : kTokensMost <= 64 ? 4
                                  : kTokensMost <= 96 ? 2
                                                      : 1;
    // Few rows: both groups have the same, and share their tokens (many) or their parts.
    static constexpr bool kHalveTokens = kTokensMost > 64;
    static constexpr int kFewParts = kHalveTokens ? 4 : 8;
    static constexpr int kInputBytes = kTokensMost * 128;  // a granule
    static constexpr int kInputBox = kShare == Share::inputs ? kTokensMost / 2 : kTokensMost;

    static constexpr int kStageStride = 20;                    // floats from token to token
    static constexpr int kStageBytes = 16 * kStageStride * 4;  // of a warp
    static constexpr int kBarriers = 2 * (kMostWeights + kMostInputs) * 8;
    static constexpr int kExchange = kHalveTokens ? 0 : kTokensMost * 256;
    static constexpr int kFixed = 1024 + kBarriers + kTokensMost * 8 + 8 * kStageBytes + kExchange;
};

// What a launch has chosen.
struct WidePlan {
    int pass_tiles;       // of a cluster, in one pass over the inputs
    int slot_tiles;       // of a block, at most
    int weights, inputs;  // stages
};

// Addresses in shared memory.
template <typename S>
struct WideLayout {
    unsigned weights, inputs, barriers, where, stage, exchange;
    __device__ WideLayout(unsigned base, const WidePlan& plan) {
        weights = (base + 1023) / 1024 * 1024;
        inputs = weights + plan.weights * plan.slot_tiles * kTileBytes;
        barriers = inputs + plan.inputs * S::kInputBytes;
        where = barriers + S::kBarriers;
        stage = where + S::kTokensMost * 8;
        exchange = stage + 8 * S::kStageBytes;
    }
    __device__ unsigned weights_full(int i) const { return barriers + 8 * i; }
    __device__ unsigned weights_empty(int i) const { return barriers + 8 * (kMostWeights + i); }
    __device__ unsigned inputs_full(int i) const { return barriers + 8 * (2 * kMostWeights + i); }
    __device__ unsigned inputs_empty(int i) const {
        return barriers + 8 * (2 * kMostWeights + kMostInputs + i);
    }
};

// The tiles of a block in a pass of its cluster.
template <typename S>
struct WidePass {
    int first, tiles;
    bool few;  // no more than one group of warps takes; of both blocks
    __device__ WidePass(const WidePlan& plan, int begin, int end, int rank) {
        const int all = min(plan.pass_tiles, end - begin);
        if constexpr (S::kShare == Share::inputs) {
            const int half = (all + 1) / 2;
            first = begin + rank * half;
            tiles = rank == 0 ? half : all - half;
            few = half <= kUnit;
        } else {
            first = begin;
            tiles = all;
            few = all <= kUnit;
        }
    }
};

// The granules in the order in which they are multiplied: of every pass, of every few parts.
template <typename S>
struct Walk {
    const WidePlan& plan;
    int pass, end, rank, granules;
    int parts = 0, part = 0, base = 0, in = 0;
    WidePass<S> here;

    __device__ Walk(const WidePlan& plan_, int begin, int end_, int rank_, int granules_)
        : plan(plan_),
          pass(begin),
          end(end_),
          rank(rank_),
          granules(granules_),
          here(plan_, begin, end_, rank_) {
        parts = here.few ? S::kFewParts : S::kParts;
    }
    __device__ bool valid() const { return pass < end; }
    __device__ int granule() const { return base + part + in; }
    __device__ void next() {
        ++in;
        if (in < parts && granule() < granules) return;
        in = 0;
        base += kWarps;
        if (base + part < granules) return;
        base = 0;
        part += parts;
        if (part < min(kWarps, granules)) return;
        part = 0;
        pass += plan.pass_tiles;
        here = WidePass<S>(plan, pass, end, rank);
        parts = here.few ? S::kFewParts : S::kParts;
    }
};

// A place in a ring, and how often it has come round.
struct Place {
    int slot = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next(int stages) {
        if (++slot == stages) {
            slot = 0;
            parity ^= 1;
        }
    }
};

template <typename S>
__device__ __forceinline__ void bring_weights(const Params& p, const WidePlan& plan,
                                              const WideLayout<S>& shared, Walk<S> walk,
                                              const CUtensorMap& map, int lane) {
    const int rows = p.finish == Finish::gate ? kTileRows / 2 : kTileRows;  // of a plane, a tile
    Place at;
    for (; walk.valid(); walk.next(), at.next(plan.weights)) {
        barrier_wait(shared.weights_empty(at.slot), at.parity ^ 1);
        const unsigned full = shared.weights_full(at.slot);
        if (lane == 0) barrier_expect(full, walk.here.tiles * kTileBytes);
        if (lane < walk.here.tiles) {
            const unsigned to = shared.weights + (at.slot * plan.slot_tiles + lane) * kTileBytes;
            const int row = (walk.here.first + lane) * rows;
            if constexpr (S::kShare == Share::weights) {
                if (lane % 2 == walk.rank) {
                    copy_box_to(3, to, map, walk.granule() * kGranule, row, 0, full);
                }
            } else {
                copy_box(to, map, walk.granule() * kGranule, row, 0, full);
            }
        }
        __syncwarp();  // no lane still waits for what others have seen
    }
}

template <typename S>
__device__ __forceinline__ void bring_inputs(const WidePlan& plan, const WideLayout<S>& shared,
                                             Walk<S> walk, const CUtensorMap& map) {
    Place at;
    for (; walk.valid(); walk.next(), at.next(plan.inputs)) {
        barrier_wait(shared.inputs_empty(at.slot), at.parity ^ 1);
        const unsigned full = shared.inputs_full(at.slot);
        const unsigned to = shared.inputs + at.slot * S::kInputBytes;
        const int column = walk.granule() * kGranule;
        barrier_expect(full, S::kInputBytes);
        if constexpr (S::kShare == Share::inputs) {
            const int token = walk.rank * S::kInputBox;
            copy_box_to(3, to + token * 128, map, column, 0, token, full);
        } else if constexpr (S::kShare == Share::weights) {
            copy_box(to, map, column, 0, walk.rank * S::kTokensMost, full);
        } else {
            copy_box(to, map, column, 0, 0, full);
        }
    }
}

// The copy engine swizzles: 16 bytes `c` of row r (128 bytes) lie at c ^ r % 8. Row g of the tensor
// cores' 8 is row row_of(g) of the tile's half, so that the two whose bytes are read at once lie in
// different banks.
__device__ __forceinline__ int row_of(int g) { return g >> 1 | (g & 1) << 2; }

// A group's way through the rings. Weights of the next granule are loaded into registers while the
// products of this one run.
template <typename T, typename S>
struct Multiplier {
    using Registers = std::uint32_t[4][4];  // the weights of a granule

    const WideLayout<S>& shared;
    const WidePlan& plan;
    int lane;
    unsigned mine;                          // of this lane in a tile's weights
    unsigned tile = 0;                      // bytes before this warp's tile in a slot
    unsigned tokens = 0;                    // bytes before this group's tokens in a slot
    Place weights, inputs;                  // the next to be loaded
    int weights_used = 0, inputs_used = 0;  // slots that will be released next

    __device__ Multiplier(const WideLayout<S>& shared_, const WidePlan& plan_, int lane_)
        : shared(shared_), plan(plan_), lane(lane_) {
        const int g = row_of(lane / 4);
        mine = g * 128 + (lane % 4 ^ g) * 16;
    }
    __device__ __forceinline__ void wait() {
        barrier_wait(shared.weights_full(weights.slot), weights.parity);
        barrier_wait(shared.inputs_full(inputs.slot), inputs.parity);
    }
    __device__ __forceinline__ void advance() {
        weights.next(plan.weights);
        inputs.next(plan.inputs);
    }
    // A warp arrives once at each of them.
    __device__ __forceinline__ void release() {
        const unsigned w = shared.weights_empty(weights_used);
        const unsigned x = shared.inputs_empty(inputs_used);
        if constexpr (S::kShare == Share::weights) {
            if (lane < 2) barrier_arrive_at(w, lane);
        } else {
            if (lane == 0) barrier_arrive(w);
        }
        if constexpr (S::kShare == Share::inputs) {
            if (lane < 2) barrier_arrive_at(x, lane);
        } else {
            if (lane == 0) barrier_arrive(x);
        }
        if (++weights_used == plan.weights) weights_used = 0;
        if (++inputs_used == plan.inputs) inputs_used = 0;
    }
    __device__ __forceinline__ void load(Registers& a) {
        wait();
        const unsigned from =
            shared.weights + weights.slot * plan.slot_tiles * kTileBytes + tile + mine;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint4 u = load16(from ^ j * 64), l = load16((from ^ j * 64) + 1024);
            a[2 * j][0] = u.x, a[2 * j][1] = l.x, a[2 * j][2] = u.y, a[2 * j][3] = l.y;
            a[2 * j + 1][0] = u.z, a[2 * j + 1][1] = l.z;
            a[2 * j + 1][2] = u.w, a[2 * j + 1][3] = l.w;
        }
        advance();
    }
    template <int kCount>
    __device__ __forceinline__ void begin(float (&sum)[kCount], const Registers& a) {
        const std::uint64_t b =
            rows_descriptor(shared.inputs + inputs_used * S::kInputBytes + tokens);
        multiply_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply<T>(sum, a[i], further(b, 32 * i), 1);
        multiply_commit();
    }
    __device__ __forceinline__ void end() {
        multiply_wait<0>();
        release();
    }
    // The next `count` granules: acc[0] += the first, acc[1] += the second, ... and so on in turn.
    template <int kParts, int kCount>
    __device__ __forceinline__ void run(float (&acc)[kParts][kCount], int count) {
        constexpr int kSteps = std::max(kParts, 2);
        Registers a[2];
        if (count > 0) load(a[0]);
        int i = 0;
#pragma unroll 1
        for (; i + kSteps <= count; i += kSteps) {
#pragma unroll
            for (int j = 0; j < kSteps; ++j) {
                begin(acc[j % kParts], a[j % 2]);
                if (j + 1 < kSteps || i + kSteps < count) load(a[(j + 1) % 2]);
                end();
            }
        }
#pragma unroll
        for (int j = 0; j + 1 < kSteps; ++j) {
            if (i + j >= count) break;
            begin(acc[j % kParts], a[j % 2]);
            if (i + j + 1 < count) load(a[(j + 1) % 2]);
            end();
        }
#pragma unroll
        for (int j = 0; j < kParts; ++j) keep_order(acc[j]);
    }
    // `count` granules that are not this group's.
    __device__ __forceinline__ void skip(int count) {
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            wait();
            advance();
            __syncwarp();  // no lane still waits for what others have seen
            release();
        }
    }
};

template <int kParts, int kCount>
__device__ __forceinline__ void clear(float (&acc)[kParts][kCount]) {
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) acc[j][i] = 0;
    }
}
// sum = (first ? acc[0] : sum + acc[0]) + acc[1] + ...
template <int kParts, int kCount>
__device__ __forceinline__ void chain(float (&sum)[kCount], const float (&acc)[kParts][kCount],
                                      bool first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        sum[i] = first ? acc[0][i] : sum[i] + acc[0][i];
#pragma unroll
        for (int j = 1; j < kParts; ++j) sum[i] += acc[j][i];
    }
}

// All parts, kParts at a time.
template <int kParts, typename T, typename S, int kCount>
__device__ __forceinline__ void sum_parts(Multiplier<T, S>& m, float (&sum)[kCount], int granules) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = 0;
#pragma unroll 1
    for (int part = 0; part < kWarps; part += kParts) {
        float acc[kParts][kCount];
        clear(acc);
        // Granules part, part + 1, ..., part + kParts - 1 of every 8.
        m.run(acc, granules / kWarps * kParts + min(max(granules % kWarps - part, 0), kParts));
        chain(sum, acc, part == 0);
    }
}

// The four parts of this group, of all 8.
template <typename T, typename S, int kCount>
__device__ __forceinline__ void sum_half(Multiplier<T, S>& m, float (&acc)[4][kCount], int group,
                                         int granules) {
    clear(acc);
#pragma unroll 1
    for (int left = granules; left > 0; left -= kWarps) {
        const int first = min(left, 4), second = min(left, kWarps) - first;
        if (group == 1) m.skip(first);
        m.run(acc, group == 0 ? first : second);
        if (group == 0) m.skip(second);
    }
}

// The results of one tile and 16 tokens from `first` on, from stage [16 tokens][kStride], by a
// warp. where: of the first of them.
template <typename T, int kStride>
__device__ __forceinline__ void finish_stage(const Params& p, const int2* where, const float* stage,
                                             int tile, int first, int lane) {
    if (p.finish == Finish::qkv) {
        const int row = tile * kTileRows + 2 * (lane % 8);
        if (row >= p.n) return;
        float2 v[4], turn[4];
        int2 place[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = lane / 8 + 4 * i;
            v[i] = *reinterpret_cast<const float2*>(stage + token * kStride + 2 * (lane % 8));
            place[i] = first + token < p.rows ? where[token] : int2{};
            turn[i] = float2{};
            if (is_turned(p, row)) turn[i] = turn_of(p, row, place[i].x);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = first + lane / 8 + 4 * i;
            if (token >= p.rows) break;
            finish_pair<T>(p, place[i], row, token, v[i].x, v[i].y, turn[i]);
        }
    } else if (p.finish == Finish::gate) {
        const int row = tile * (kTileRows / 2) + lane % 8;
        if (row >= p.out_cols) return;
        float gate[4], up[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* at = stage + (lane / 8 + 4 * i) * kStride + lane % 8;
            gate[i] = at[0];
            up[i] = at[8];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = first + lane / 8 + 4 * i;
            if (token < p.rows) finish_gate<T>(p, row, token, gate[i], up[i]);
        }
    } else {
        const int row = tile * kTileRows + lane % 16;
        if (row >= p.n) return;
        float v[8], before[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int token = first + lane / 16 + 2 * i;
            v[i] = stage[(lane / 16 + 2 * i) * kStride + lane % 16];
            before[i] = 0;
            if (p.finish == Finish::add && token < p.rows) {
                before[i] = static_cast<const float*>(
                    p.out)[static_cast<std::int64_t>(token) * p.out_cols + row];
            }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int token = first + lane / 16 + 2 * i;
            if (token >= p.rows) break;
            finish_one<T>(p, row, token, v[i], [&](const float*) { return before[i]; });
        }
    }
}

// The sums of a warp's tile, of the tokens from `first` on, as the tensor cores have them.
template <typename T, typename S, int kCount>
__device__ __forceinline__ void finish_warp(const Params& p, const WideLayout<S>& shared,
                                            std::byte* base, const float (&sum)[kCount], int tile,
                                            int first, int local, int lane) {
    constexpr int kStride = S::kStageStride;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    // As pointers, from the addresses: the same offsets.
    const unsigned start = shared_address(base);
    auto* stage =
        reinterpret_cast<float*>(base + (shared.stage - start)) + warp * (S::kStageBytes / 4);
    const auto* where = reinterpret_cast<const int2*>(base + (shared.where - start)) + local;
    float* to = stage + lane % 4 * 2 * kStride + row_of(lane / 4);
#pragma unroll 1
    for (int c = 0; c < kCount / 8; ++c) {
        if (first + 16 * c >= p.rows) break;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kCount / 8; ++i) {
            if (i != c) continue;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float* v = sum + 8 * i + 4 * n;
                float* at = to + n * 8 * kStride;
                at[0] = v[0];
                at[kStride] = v[1];
                at[8] = v[2];
                at[kStride + 8] = v[3];
            }
        }
        __syncwarp();
        finish_stage<T, kStride>(p, where + 16 * c, stage, tile, first + 16 * c, lane);
    }
}

__device__ __forceinline__ void multipliers_meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory");
}

template <typename T, typename S>
__device__ __forceinline__ void multiply_all(const Params& p, const WidePlan& plan,
                                             const WideLayout<S>& shared, std::byte* base,
                                             int begin, int end, int rank, int granules) {
    constexpr int kTokensMost = S::kTokensMost;
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int first_token = S::kShare == Share::weights ? rank * kTokensMost : 0;
    if (p.finish == Finish::qkv) {
        auto* where = reinterpret_cast<int2*>(base + (shared.where - shared_address(base)));
        const int token = first_token + static_cast<int>(threadIdx.x);
        if (static_cast<int>(threadIdx.x) < kTokensMost && token < p.rows) {
            where[threadIdx.x] = place_of(p, token);
        }
        multipliers_meet();
    }
    Multiplier<T, S> m(shared, plan, lane);
#pragma unroll 1
    for (int pass = begin; pass < end; pass += plan.pass_tiles) {
        const WidePass<S> here(plan, pass, end, rank);
        // A warp without a tile multiplies what lies there.
        const auto take_tile = [&](int tile) {
            m.tile = min(tile, plan.slot_tiles - 1) * kTileBytes;
        };
        if (!here.few) {
            const int half = (here.tiles + 1) / 2;
            const int tile = group * half + warp;
            const int count = group == 0 ? half : here.tiles - half;
            take_tile(tile);
            m.tokens = 0;
            float sum[kTokensMost / 2];
            sum_parts<S::kParts>(m, sum, granules);
            if (warp < count) {
                finish_warp<T>(p, shared, base, sum, here.first + tile, first_token, 0, lane);
            }
            continue;
        }
        take_tile(warp);
        if constexpr (S::kHalveTokens) {
            const int local = group * (kTokensMost / 2);
            m.tokens = local * 128;
            float sum[kTokensMost / 4];
            sum_parts<S::kFewParts>(m, sum, granules);
            if (warp < here.tiles) {
                finish_warp<T>(p, shared, base, sum, here.first + warp, first_token + local, local,
                               lane);
            }
        } else {
            m.tokens = 0;
            float acc[4][kTokensMost / 2];
            sum_half(m, acc, group, granules);
            // The first group's four parts are added up and handed to the second.
            float* exchange =
                reinterpret_cast<float*>(base + (shared.exchange - shared_address(base))) +
                threadIdx.x % 128;
            if (group == 0) {
#pragma unroll
                for (int i = 0; i < kTokensMost / 2; ++i) {
                    exchange[i * 128] = ((acc[0][i] + acc[1][i]) + acc[2][i]) + acc[3][i];
                }
            }
            multipliers_meet();
            if (group == 1) {
#pragma unroll
                for (int i = 0; i < kTokensMost / 2; ++i) {
                    acc[0][i] =
                        (((exchange[i * 128] + acc[0][i]) + acc[1][i]) + acc[2][i]) + acc[3][i];
                }
            }
            multipliers_meet();
            if (group == 1 && warp < here.tiles) {
                finish_warp<T>(p, shared, base, acc[0], here.first + warp, first_token, 0, lane);
            }
        }
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_kernel(const __grid_constant__ Params p, const __grid_constant__ WidePlan plan,
                const __grid_constant__ CUtensorMap weights,
                const __grid_constant__ CUtensorMap inputs) {
    let_next_start();
    extern __shared__ __align__(1024) std::byte memory[];
    const WideLayout<S> shared(shared_address(memory), plan);
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kCluster = S::kCluster;
    const int rank = static_cast<int>(blockIdx.x) % kCluster;
    const int cluster = static_cast<int>(blockIdx.x) / kCluster;
    const int clusters = static_cast<int>(gridDim.x) / kCluster;
    // Whole units where tokens are shared out: what is not whole costs as much.
    constexpr int kAtOnce = S::kShare == Share::weights ? kUnit : 1;
    const int units = (p.tiles + kAtOnce - 1) / kAtOnce;
    const int begin = static_cast<int>(std::int64_t{units} * cluster / clusters) * kAtOnce;
    const int end =
        min(static_cast<int>(std::int64_t{units} * (cluster + 1) / clusters) * kAtOnce, p.tiles);
    const int granules = static_cast<int>((p.k + kGranule - 1) / kGranule);

    constexpr int kWeightsWarp = kMultipliers / 32;
    if (warp == kWeightsWarp && lane == 0) {
        prefetch_map(weights);
        prefetch_map(inputs);
        constexpr int kWarpsHere = kMultipliers / 32;
        for (int i = 0; i < plan.weights; ++i) {
            barrier_init(shared.weights_full(i), 1);
            barrier_init(shared.weights_empty(i),
                         S::kShare == Share::weights ? 2 * kWarpsHere : kWarpsHere);
        }
        for (int i = 0; i < plan.inputs; ++i) {
            barrier_init(shared.inputs_full(i), 1);
            barrier_init(shared.inputs_empty(i),
                         S::kShare == Share::inputs ? 2 * kWarpsHere : kWarpsHere);
        }
        barriers_ready();
    }
    __syncthreads();
    if constexpr (kCluster > 1) cluster_arrive();
    if (warp >= kWeightsWarp) {
        give_registers<24>();
        if (warp == kWeightsWarp) {
            // Its own weights wait for nobody.
            if constexpr (S::kShare == Share::weights) cluster_wait();
            const Walk<S> walk(plan, begin, end, rank, granules);
            bring_weights<S>(p, plan, shared, walk, weights, lane);
            if constexpr (S::kShare == Share::inputs) cluster_wait();
        } else {
            if constexpr (kCluster > 1) cluster_wait();
            wait_for_previous();
            if (warp == kWeightsWarp + 1 && lane == 0) {
                const Walk<S> walk(plan, begin, end, rank, granules);
                bring_inputs<S>(plan, shared, walk, inputs);
            }
        }
    } else {
        take_registers<240>();
        if constexpr (kCluster > 1) cluster_wait();
        wait_for_previous();
        stamp_begin(p.stamp);
        multiply_all<T, S>(p, plan, shared, memory, begin, end, rank, granules);
        stamp_end(p.stamp);
    }
    // Nobody leaves while the other block's copies and arrivals are on their way here.
    if constexpr (kCluster > 1) cluster_barrier();
}

// Where a token's input goes: rows, columns in the order above.
struct WideRow {
    std::byte* row;
    // Four columns from c on (c % 4 == 0).
    __device__ __forceinline__ void put(int c, uint2 four) const {
        const int in = c % 32;
        std::byte* at = row + (c - in + in % 8 / 4 * 16 + in / 8 * 2) * 2;
        *reinterpret_cast<unsigned*>(at) = four.x;
        *reinterpret_cast<unsigned*>(at + 16) = four.y;
    }
};

// The inputs of all tokens, normed or as they are: a block a token.
template <typename T>
__global__ void __launch_bounds__(kInputThreads)
    wide_input_kernel(const Params p, std::byte* to, int stride) {
    using W = HalfWeights<T>;
    let_next_start();
    HeldNorm<W> held;
    if (HeldNorm<W>::possible(p)) held.load(p);
    wait_for_previous();
    const StageClock clock(p.stamp);
    __shared__ float shared[kRowShared<kInputThreads>];
    const int row = static_cast<int>(blockIdx.x);
    load_row<W, T>(p, held, row, WideRow{to + static_cast<std::int64_t>(row) * stride}, stride / 2,
                   shared);
}

template <typename T, typename S>
void start(const Context& ctx, const Params& p) {
    const int multiprocessors = this_gpu().multiprocessors;
    constexpr bool kTokens = S::kShare == Share::weights;
    constexpr int kMostTiles = (kTokens ? 2 : 2 * S::kCluster) * kUnit;  // of a cluster's pass
    const int units = kTokens ? (p.tiles + kUnit - 1) / kUnit : p.tiles;
    const int wanted = S::kShare == Share::inputs ? (units + 1) / 2 : units;
    const int clusters = std::min(multiprocessors / S::kCluster, wanted);
    const int most = (units + clusters - 1) / clusters * (kTokens ? kUnit : 1);  // of a cluster
    WidePlan plan{};
    // Few tokens: passes of equal size, which use the ring best. Many: as few groups as possible.
    const int passes = (most + kMostTiles - 1) / kMostTiles;
    plan.pass_tiles = S::kHalveTokens ? kMostTiles : (most + passes - 1) / passes;
    const int pass_most = std::min(plan.pass_tiles, most);
    plan.slot_tiles = S::kShare == Share::inputs ? (pass_most + 1) / 2 : pass_most;
    const int room = kRoom - S::kFixed, slot = plan.slot_tiles * kTileBytes;
    // Inputs for about as long as the memory takes to answer.
    plan.inputs = std::clamp(34 / plan.slot_tiles, 4, kMostInputs);
    plan.inputs = std::clamp(std::min(plan.inputs, room * 5 / 8 / S::kInputBytes), 2, kMostInputs);
    plan.weights = std::clamp((room - plan.inputs * S::kInputBytes) / slot, 2, kMostWeights);
    const std::size_t bytes = S::kFixed + static_cast<std::size_t>(plan.inputs) * S::kInputBytes +
                              static_cast<std::size_t>(plan.weights) * slot;
    MR_CHECK(bytes <= kRoom, "the rings fit into shared memory");

    const DType type = std::is_same_v<T, bf16> ? DType::bf16 : DType::f16;
    const bool gate = p.finish == Finish::gate;
    const CUtensorMap weights =
        gate ? plane_rows_map(p.w, type, 2, p.out_cols, p.k, 2, kTileRows / 2)
             : plane_rows_map(p.w, type, 1, p.n, p.k, 1, kTileRows);
    const CUtensorMap inputs =
        head_rows_map(p.x, type, p.rows, 1, p.x_stride / 2, p.x_stride / 2, S::kInputBox);
    allow_shared(wide_kernel<T, S>, kRoom);
    launch_clusters(ctx, static_cast<unsigned>(clusters), S::kCluster, dim3(kWideThreads), bytes,
                    wide_kernel<T, S>, p, plan, weights, inputs);
}

}  // namespace

template <typename T>
void run_wide(const Context& ctx, const Params& all) {
    MR_CHECK(ctx.scratch.size() >= mid_scratch_bytes(all.rows, all.k),
             "the scratch has linear_small_scratch_bytes()");
    for (int first = 0; first < all.rows; first += kPreparedRows) {
        Params p = pass_of(all, first, std::min(kPreparedRows, all.rows - first));
        p.x_stride = static_cast<int>((p.k + kGranule - 1) / kGranule * kGranule * 2);
        if (wide_way < 10) {
            launch(ctx, dim3(static_cast<unsigned>(p.rows)), dim3(kInputThreads), 0,
                   wide_input_kernel<T>, p, ctx.scratch.data(), p.x_stride);
        }
        p.x = ctx.scratch.data();
        const int way = wide_way % 10;
        if (way == 0) {
            if (p.rows <= 16) {
                start<T, WideShape<16, Share::inputs>>(ctx, p);
            } else if (p.rows <= 32) {
                start<T, WideShape<32, Share::inputs>>(ctx, p);
            } else if (p.rows <= 64) {
                start<T, WideShape<64, Share::inputs>>(ctx, p);
            } else if (p.rows <= 96) {
                start<T, WideShape<96, Share::inputs>>(ctx, p);
            } else if (p.rows <= 128) {
                start<T, WideShape<128, Share::inputs>>(ctx, p);
            } else if (p.rows <= 192) {
                start<T, WideShape<96, Share::weights>>(ctx, p);
            } else {
                start<T, WideShape<128, Share::weights>>(ctx, p);
            }
        } else if (way == 1) {  // without clusters
            if (p.rows <= 16) {
                start<T, WideShape<16, Share::nothing>>(ctx, p);
            } else if (p.rows <= 32) {
                start<T, WideShape<32, Share::nothing>>(ctx, p);
            } else if (p.rows <= 64) {
                start<T, WideShape<64, Share::nothing>>(ctx, p);
            } else if (p.rows <= 128) {
                start<T, WideShape<128, Share::nothing>>(ctx, p);
            } else {
                start<T, WideShape<128, Share::weights>>(ctx, p);
            }
        } else {  // tokens shared out
            if (p.rows <= 32) {
                start<T, WideShape<16, Share::weights>>(ctx, p);
            } else if (p.rows <= 64) {
                start<T, WideShape<32, Share::weights>>(ctx, p);
            } else if (p.rows <= 128) {
                start<T, WideShape<64, Share::weights>>(ctx, p);
            } else {
                start<T, WideShape<128, Share::weights>>(ctx, p);
            }
        }
    }
}
template void run_wide<bf16>(const Context&, const Params&);
template void run_wide<__half>(const Context&, const Params&);

}  // namespace mr::cuda::small
