// Norms of many rows: what it should take to run at the speed of memory.
// - The weights and biases (f32: more bytes a row than the f16 row itself) are kept in shared
//   memory for all rows of a block. Through L1, which the rows flow through too, they come from L2
//   again for every row.
// - 16 bytes a load, past L1, a whole row in the registers of its warps: of f16 rows of 2560, two
//   warps each, ten rows with their residuals (100 KB) are on their way to a multiprocessor.
// - No barrier but a row's own: the warps drift apart, and some load while others compute.
#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "core/cuda/copy.cuh"
#include "core/cuda/vec4.cuh"
#include "ops/norm/norm_many.cuh"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda {
namespace {

constexpr int kBlock = 128;  // threads

// How a group of kThreads threads holds a row: kColumns columns each, loaded and stored kWide at a
// time: vector thread + kThreads * k.
template <int kGroupThreads, int kColumns, typename X, typename R, typename Out>
struct Layout {
    static constexpr bool kResidual = !std::is_void_v<R>;
    using Residual = std::conditional_t<kResidual, R, X>;
    static constexpr int kThreads = kGroupThreads;
    // 16 bytes where all is f16 or bf16, else four elements.
    static constexpr int kWide =
        sizeof(X) == 2 && sizeof(Residual) == 2 && sizeof(Out) == 2 ? 8 : 4;
    static constexpr int kEach = kWide / kRowChunk;  // chunks a vector
    static constexpr int kVectors = kColumns / kWide;
    static constexpr int kChunks = kColumns / kRowChunk;
    using Row = float[kChunks][kRowChunk];
    template <typename T>
    static constexpr int kWords = kWide* static_cast<int>(sizeof(T)) / 4;
    // Blocks on a multiprocessor: as many as the registers of a row in flight allow.
    static constexpr int kBlocks = kColumns > 40 || kWide == 4 ? 3 : kThreads > 64 ? 4 : 5;
    // Vectors of a row that are this thread's: k = 0 ... mine - 1.
    static __device__ __forceinline__ int mine(int cols, int thread) {
        return (cols / kWide - thread + kThreads - 1) / kThreads;
    }
};

// A vector as it lies in memory, and as f32.
template <typename T, int kEach>
__device__ __forceinline__ void unpack(const std::uint32_t* words, float (*v)[4]) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int i = 0; i < 4; ++i) v[e][i] = __uint_as_float(words[4 * e + i]);
        } else {
            unpack4(Raw4<T>{make_uint2(words[2 * e], words[2 * e + 1])}, v[e]);
        }
    }
}
template <typename T, int kEach>
__device__ __forceinline__ void store(T* to, const Raw4<T> (&chunks)[kEach], bool streaming) {
    if constexpr (kEach == 2) {
        const uint4 all =
            make_uint4(chunks[0].bits.x, chunks[0].bits.y, chunks[1].bits.x, chunks[1].bits.y);
        if (streaming) {
            __stcs(reinterpret_cast<uint4*>(to), all);
        } else {
            *reinterpret_cast<uint4*>(to) = all;
        }
    } else {
        *reinterpret_cast<Raw4<T>*>(to) = chunks[0];
    }
}

// Per-column arrays in shared memory, one after another: weight, bias, weight2, bias2, those that
// there are. The chunks of a vector lie apart, so that neighbouring threads read neighbouring 16
// bytes: chunk e of vector v is float4 e * vectors + v.
template <int kEach>
__device__ __forceinline__ void bring_weights(float4* to, const NormArgs& a) {
    const int vectors = a.cols / (kRowChunk * kEach);
    for (const float* from : {a.weight, a.bias, a.weight2, a.bias2}) {
        if (!from) continue;
        for (int i = static_cast<int>(threadIdx.x); i < vectors * kEach;
             i += static_cast<int>(blockDim.x)) {
            copy16(shared_address(to + i % kEach * vectors + i / kEach), from + kRowChunk * i);
        }
        to += vectors * kEach;
    }
    commit_copies();
}

// s = x + residual, kept where that is asked for; words(k, x, r) gives vector k of both.
template <typename L, typename X, typename R, typename Words>
__device__ __forceinline__ void take_row(typename L::Row& s, const NormArgs& a, std::size_t first,
                                         int thread, int mine, Words&& words) {
    constexpr int kEach = L::kEach;
    using Residual = typename L::Residual;
    // All loads are on their way before the first value is looked at.
    std::uint32_t x[L::kVectors][L::template kWords<X>];
    std::uint32_t r[L::kVectors][L::template kWords<Residual>];
#pragma unroll
    for (int k = 0; k < L::kVectors; ++k) words(k, x[k], r[k]);
#pragma unroll
    for (int k = 0; k < L::kVectors; ++k) {
        unpack<X, kEach>(x[k], s + k * kEach);
        if constexpr (L::kResidual) {
            float more[kEach][4];
            unpack<R, kEach>(r[k], more);
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s[k * kEach + e][i] = __fadd_rn(s[k * kEach + e][i], more[e][i]);
                }
            }
        }
    }
    if constexpr (L::kResidual) {
        if (!a.sum) return;
        R* sum = static_cast<R*>(a.sum) + first;
#pragma unroll
        for (int k = 0; k < L::kVectors; ++k) {
            const int column = (thread + L::kThreads * k) * L::kWide;
            Raw4<R> rounded[kEach];
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
                rounded[e] = pack4(s[k * kEach + e], R{});
                unpack4(rounded[e], s[k * kEach + e]);
            }
            if (k < mine) store<R, kEach>(sum + column, rounded, false);
        }
    }
}

// out = norm(s) * w + b, w and b in shared memory; no biases: none.
template <typename L, typename Out>
__device__ __forceinline__ void put_row(Out* out, const typename L::Row& s, const RowStats& stats,
                                        const float4* w, const float4* b, int cols, int thread,
                                        int mine, bool streaming) {
    constexpr int kEach = L::kEach;
    const int vectors = cols / L::kWide;
#pragma unroll
    for (int k = 0; k < L::kVectors; ++k) {
        const int v = thread + L::kThreads * k;
        if (k >= mine) break;
        Raw4<Out> chunks[kEach];
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const float(&from)[4] = s[k * kEach + e];
            const float4 weight = w[e * vectors + v];
            const float4 bias = b ? b[e * vectors + v] : make_float4(0, 0, 0, 0);
            const float y[4] = {
                normed(from[0], stats, weight.x, bias.x), normed(from[1], stats, weight.y, bias.y),
                normed(from[2], stats, weight.z, bias.z), normed(from[3], stats, weight.w, bias.w)};
            chunks[e] = pack4(y, Out{});
        }
        store<Out, kEach>(out + v * L::kWide, chunks, streaming);
    }
}

template <typename L, typename Out>
__device__ __forceinline__ void put_both(const typename L::Row& s, const RowStats& stats,
                                         const NormArgs& a, const float4* weights,
                                         std::size_t first, int thread, int mine, bool streaming) {
    const int step = a.cols / kRowChunk;
    const float4* b = a.bias ? weights + step : nullptr;
    put_row<L>(static_cast<Out*>(a.out) + first, s, stats, weights, b, a.cols, thread, mine,
               streaming);
    if (!a.out2) return;
    const float4* w2 = weights + (a.bias ? 2 : 1) * step;
    put_row<L>(static_cast<Out*>(a.out2) + first, s, stats, w2, a.bias2 ? w2 + step : nullptr,
               a.cols, thread, mine, streaming);
}

// A block takes as many rows at a time as it has groups, then those a whole grid further on.
template <int kThreads, int kColumns, bool kStreaming, typename X, typename R, typename Out>
__global__ void __launch_bounds__(kBlock, (Layout<kThreads, kColumns, X, R, Out>::kBlocks))
    norm_many(const NormArgs a) {
    using L = Layout<kThreads, kColumns, X, R, Out>;
    constexpr int kGroups = kBlock / kThreads;
    constexpr int kSpace = kRowShared<kThreads, L::kEach>;
    extern __shared__ float4 weights[];
    __shared__ float space[kSpace > 0 ? kGroups * kSpace : 1];
    const int group = static_cast<int>(threadIdx.x) / kThreads;
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    bring_weights<L::kEach>(weights, a);
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();

    // One sum a row (rms) takes turns between the two halves of the space, as two sums (layer) do:
    // whoever writes to a half has passed a barrier since others read from it.
    int turn = 0;
    bool first_row = true;
    const int step = static_cast<int>(gridDim.x) * kGroups;
    for (int base = static_cast<int>(blockIdx.x) * kGroups; base < a.rows; base += step) {
        const int row = base + group;
        // The last groups may have no row, but keep step.
        const int mine = row < a.rows ? L::mine(a.cols, thread) : 0;
        const auto first = static_cast<std::size_t>(row) * static_cast<std::size_t>(a.cols);
        const X* x = static_cast<const X*>(a.x) + first;
        const auto* residual = static_cast<const typename L::Residual*>(a.residual);
        float s[L::kChunks][kRowChunk];
        take_row<L, X, R>(s, a, first, thread, mine, [&](int k, auto& to_x, auto& to_r) {
            const int column = (thread + kThreads * k) * L::kWide;
            load_words<L::template kWords<X>>(to_x, x + column, k < mine);
            if constexpr (L::kResidual) {
                load_words<L::template kWords<R>>(to_r, residual + first + column, k < mine);
            }
        });
        const RowStats stats = row_stats<kThreads, L::kChunks, L::kEach>(
            a.kind, s, a.cols, a.eps, thread, space + group * kSpace + turn,
            PartSync<kThreads>{1 + group});
        if (a.kind == NormKind::rms) turn ^= kSpace / 2;
        if (first_row) {
            wait_for_copies();
            __syncthreads();
            first_row = false;
        }
        put_both<L, Out>(s, stats, a, weights, first, thread, mine, kStreaming);
    }
}

// The same with the rows brought by the copy engine (cp.async.bulk, sm_90): every warp has a ring
// of kStages rows in shared memory, and the row after the next is on its way while this one is
// computed. f16 and bf16, a warp a row.
constexpr int kBulkWarps = 4, kStages = 2;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void barrier_init(unsigned barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{ .reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again; }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes,
                                          unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
#endif

template <int kColumns, typename X, typename R, typename Out>
__global__ void __launch_bounds__(32 * kBulkWarps, 2) norm_bulk(const NormArgs a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    using L = Layout<32, kColumns, X, R, Out>;
    static_assert(L::kEach == 2);
    extern __shared__ float4 weights[];
    __shared__ std::uint64_t barriers[kBulkWarps][kStages];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned row_bytes = static_cast<unsigned>(a.cols) * sizeof(X);
    const unsigned stage_bytes = (L::kResidual ? 2 : 1) * row_bytes;
    const int arrays = 1 + (a.bias != nullptr) + (a.weight2 != nullptr) + (a.bias2 != nullptr);
    const unsigned ring = shared_address(weights) + 4u * static_cast<unsigned>(arrays * a.cols) +
                          static_cast<unsigned>(warp) * kStages * stage_bytes;
    const unsigned barrier = shared_address(barriers[warp]);
    bring_weights<L::kEach>(weights, a);
    if (lane == 0) {
        for (int i = 0; i < kStages; ++i) barrier_init(barrier + 8 * i);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();

    const int step = static_cast<int>(gridDim.x) * kBulkWarps;
    const auto bring = [&](int row, int stage) {
        const std::size_t first = static_cast<std::size_t>(row) * row_bytes;
        const unsigned to = ring + stage * stage_bytes, there = barrier + 8 * stage;
        barrier_expect(there, stage_bytes);
        copy_bulk(to, static_cast<const std::byte*>(a.x) + first, row_bytes, there);
        if constexpr (L::kResidual) {
            copy_bulk(to + row_bytes, static_cast<const std::byte*>(a.residual) + first, row_bytes,
                      there);
        }
    };
    const int first_row = static_cast<int>(blockIdx.x) * kBulkWarps + warp;
    if (lane == 0) {
        for (int i = 0; i < kStages; ++i) {
            if (first_row + i * step < a.rows) bring(first_row + i * step, i);
        }
    }
    wait_for_copies();
    __syncthreads();  // the weights
    const int mine = L::mine(a.cols, lane);
    int stage = 0;
    unsigned parity = 0;
    for (int row = first_row; row < a.rows; row += step) {
        const auto first = static_cast<std::size_t>(row) * static_cast<std::size_t>(a.cols);
        const unsigned from = ring + stage * stage_bytes;
        barrier_wait(barrier + 8 * stage, parity);
        float s[L::kChunks][kRowChunk];
        take_row<L, X, R>(s, a, first, lane, mine, [&](int k, auto& to_x, auto& to_r) {
            const int v = lane + 32 * k;
            const auto load = [&](std::uint32_t* to, unsigned at) {
                to[0] = to[1] = to[2] = to[3] = 0;
                if (k >= mine) return;
                asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                             : "r"(at)
                             : "memory");
            };
            load(to_x, from + 16 * v);
            if constexpr (L::kResidual) load(to_r, from + row_bytes + 16 * v);
        });
        __syncwarp();  // all have read it
        if (lane == 0 && row + kStages * step < a.rows) bring(row + kStages * step, stage);
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
        const RowStats stats =
            row_stats<32, L::kChunks, L::kEach>(a.kind, s, a.cols, a.eps, lane, nullptr);
        put_both<L, Out>(s, stats, a, weights, first, lane, mine, false);
    }
#endif
}

struct Device {
    int multiprocessors, sm;
};
const Device& gpu() {
    static const Device device = [] {
        const DeviceInfo info = require_device();
        return Device{info.multiprocessors, info.sm};
    }();
    return device;
}

// Which way, for comparison: 0 as few rows are done; 1 two warps a row, four rows a group; 2 the
// same, as many blocks as the device holds; 3 the copy engine, as many blocks as the device holds;
// 4 the copy engine, eight rows a warp; 5 a warp a row, four rows each; 6 as 1 with streaming
// stores.
int variant() {
    static const int wanted = [] {
        const char* named = std::getenv("MILLRACE_NORM_VARIANT");
        return named && *named ? std::atoi(named) : 0;
    }();
    return wanted;
}

constexpr int up(int a, int b) { return (a + b - 1) / b; }

template <int kThreads, int kColumns, typename X, typename R, typename Out>
void start(const Context& ctx, const NormArgs& a) {
    using L = Layout<kThreads, kColumns, X, R, Out>;
    const int arrays = 1 + (a.bias != nullptr) + (a.weight2 != nullptr) + (a.bias2 != nullptr);
    const std::size_t weights = sizeof(float) * static_cast<std::size_t>(arrays * a.cols);
    // Enough blocks for all multiprocessors; beyond that, rows that share the weights.
    const auto blocks = [&](int groups, int rows_a_group, int a_multiprocessor, bool fixed) {
        const int held = a_multiprocessor * gpu().multiprocessors;
        const int most = up(a.rows, groups);
        const int wanted = fixed ? held : std::max(held, up(a.rows, groups * rows_a_group));
        return dim3(static_cast<unsigned>(std::min(most, wanted)));
    };
    const auto run = [&](auto* kernel, dim3 grid, int threads, std::size_t shared) {
        allow_shared(kernel, shared);
        launch(ctx, grid, dim3(static_cast<unsigned>(threads)), shared, kernel, a);
    };
    if constexpr (kThreads == 32 && L::kEach == 2 && std::is_same_v<X, Out> &&
                  std::is_same_v<X, typename L::Residual>) {
        if (const int v = variant(); (v == 3 || v == 4) && gpu().sm >= 90) {
            const std::size_t ring = std::size_t{kBulkWarps * kStages} * (L::kResidual ? 2 : 1) *
                                     static_cast<std::size_t>(a.cols) * sizeof(X);
            return run(norm_bulk<kColumns, X, R, Out>, blocks(kBulkWarps, 8, 2, v == 3),
                       32 * kBulkWarps, weights + ring);
        }
    }
    constexpr int kGroups = kBlock / kThreads;
    const dim3 grid = blocks(kGroups, 4, L::kBlocks, variant() == 2);
    if constexpr (kThreads == 64 && std::is_same_v<X, __half> && std::is_same_v<R, __half> &&
                  std::is_same_v<Out, __half>) {
        if (variant() == 6) {
            return run(norm_many<kThreads, kColumns, true, X, R, Out>, grid, kBlock, weights);
        }
    }
    run(norm_many<kThreads, kColumns, false, X, R, Out>, grid, kBlock, weights);
}

}  // namespace

bool start_norm_many(const Context& ctx, const NormArgs& a, DType x, DType residual, DType out) {
    if (variant() == 0) return false;
    const bool wide =
        dtype_bytes(x, 1) == 2 && dtype_bytes(residual, 1) == 2 && dtype_bytes(out, 1) == 2;
    if (a.cols > 5120 || (wide && a.cols % 8 != 0)) return false;
    with_float_type(x, [&](auto x_value) {
        with_float_type(out, [&](auto out_value) {
            using X = decltype(x_value);
            using Out = decltype(out_value);
            const auto with_residual = [&](auto residual_type) {
                using R = typename decltype(residual_type)::type;
                if constexpr (sizeof(X) == 2 && std::is_same_v<X, Out> &&
                              !std::is_same_v<R, float>) {
                    if (const int v = variant(); v >= 3 && v <= 5 && a.cols <= 2560) {
                        return start<32, 80, X, R, Out>(ctx, a);
                    }
                }
                if (a.cols <= 1024) {
                    start<32, 32, X, R, Out>(ctx, a);
                } else if (a.cols <= 2560) {
                    start<64, 40, X, R, Out>(ctx, a);
                } else {
                    start<128, 40, X, R, Out>(ctx, a);
                }
            };
            if (!a.residual) {
                with_residual(std::type_identity<void>{});
            } else if (residual == x) {
                with_residual(std::type_identity<X>{});
            } else {
                with_residual(std::type_identity<float>{});
            }
        });
    });
    return true;
}

}  // namespace mr::cuda
