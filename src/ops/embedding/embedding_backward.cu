// Sorting: a stable radix sort, 8 bits of the id at a time, lowest first. A pass is three kernels:
// blocks count the digits of their chunk of tokens, one block turns counts into positions, blocks
// move their tokens there. Thread d of a block handles only digit d, and walks through the chunk in
// order: no two threads write to the same position, so timing has no effect.
//
// Adding: the sorted tokens are cut in pieces of kPiece. A row of the table all of whose tokens lie
// in one piece is finished by that piece's block. For other rows a piece writes partial sums: of
// the row that continues from the previous piece (head) and of the row that begins here and
// continues (tail). A second kernel adds these, from the piece where the row begins.
#include <algorithm>

#include "core/cuda/vec4.cuh"
#include "ops/embedding/embedding_backward_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kDigits = 256;
constexpr int kEmbeddingBackwardChunk = 1024;  // tokens a block sorts
constexpr int kPiece = 64;                     // sorted tokens a block adds
constexpr int kEmbeddingBackwardThreads = 256;
constexpr int kEmbeddingBackwardBatch = 8;  // rows in flight

struct Sorted {
    std::int32_t* id;
    std::int32_t* token;
};

// The sort key of an id: ids outside of the table all become `rows`, and come last.
__device__ __forceinline__ std::int32_t kept_id(std::int32_t id, int rows) {
    return id >= 0 && id < rows ? id : rows;
}

// counts[digit * blocks + block]
__global__ void __launch_bounds__(kDigits)
    count_digits(int* counts, const std::int32_t* ids, int tokens, int rows, int shift,
                 Stamp* stamp) {
    __shared__ unsigned char digits[kEmbeddingBackwardChunk];
    wait_for_previous();
    stamp_begin(stamp);
    let_next_start();
    const int first = static_cast<int>(blockIdx.x) * kEmbeddingBackwardChunk;
    const int count = min(kEmbeddingBackwardChunk, tokens - first);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kDigits) {
        digits[i] = static_cast<unsigned char>(kept_id(ids[first + i], rows) >> shift);
    }
    __syncthreads();
    int mine = 0;
    for (int i = 0; i < count; ++i) mine += digits[i] == threadIdx.x;
    counts[threadIdx.x * gridDim.x + blockIdx.x] = mine;
}

// Turns counts into the number of all before them; one block.
__global__ void __launch_bounds__(kDigits) place_digits(int* counts, int blocks) {
    __shared__ int totals[kDigits];
    wait_for_previous();
    let_next_start();
    int* mine = counts + static_cast<int>(threadIdx.x) * blocks;
    int sum = 0;
    for (int b = 0; b < blocks; ++b) sum += mine[b];
    totals[threadIdx.x] = sum;
    __syncthreads();
    int before = 0;
    for (int d = 0; d < static_cast<int>(threadIdx.x); ++d) before += totals[d];
    for (int b = 0; b < blocks; ++b) {
        const int here = mine[b];
        mine[b] = before;
        before += here;
    }
}

// `tokens_in` null: token i is at position i.
__global__ void __launch_bounds__(kDigits)
    put_digits(Sorted to, const int* places, const std::int32_t* ids, const std::int32_t* tokens_in,
               int tokens, int rows, int shift) {
    __shared__ std::int32_t chunk_id[kEmbeddingBackwardChunk], chunk_token[kEmbeddingBackwardChunk];
    wait_for_previous();
    let_next_start();
    const int first = static_cast<int>(blockIdx.x) * kEmbeddingBackwardChunk;
    const int count = min(kEmbeddingBackwardChunk, tokens - first);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kDigits) {
        chunk_id[i] = kept_id(ids[first + i], rows);
        chunk_token[i] = tokens_in ? tokens_in[first + i] : first + i;
    }
    __syncthreads();
    int place = places[threadIdx.x * gridDim.x + blockIdx.x];
    for (int i = 0; i < count; ++i) {
        if (((chunk_id[i] >> shift) & (kDigits - 1)) != static_cast<int>(threadIdx.x)) continue;
        to.id[place] = chunk_id[i];
        to.token[place] = chunk_token[i];
        ++place;
    }
}

template <int kWidth>
__device__ __forceinline__ void load_some(const float* p, float (&v)[kWidth]) {
    if constexpr (kWidth == 4) {
        load4(p, v);
    } else {
        v[0] = *p;
    }
}
template <int kWidth>
__device__ __forceinline__ void store_some(float* p, const float (&v)[kWidth]) {
    if constexpr (kWidth == 4) {
        store4(p, v);
    } else {
        *p = v[0];
    }
}
template <int kWidth>
__device__ __forceinline__ void add_some(float* p, const float (&v)[kWidth]) {
    float before[kWidth];
    load_some<kWidth>(p, before);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) before[i] += v[i];
    store_some<kWidth>(p, before);
}

// Block (piece, columns). parts [pieces, 2, dim]: head, tail.
template <int kWidth>
__global__ void __launch_bounds__(kEmbeddingBackwardThreads)
    add_pieces(float* dtable, float* parts, const float* dx, Sorted sorted, int tokens, int rows,
               int dim) {
    __shared__ std::int32_t id[kPiece], token[kPiece];
    wait_for_previous();
    let_next_start();
    const int first = static_cast<int>(blockIdx.x) * kPiece;
    const int count = min(kPiece, tokens - first);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kEmbeddingBackwardThreads) {
        id[i] = sorted.id[first + i];
        token[i] = sorted.token[first + i];
    }
    __syncthreads();
    const int col = static_cast<int>(blockIdx.y * kEmbeddingBackwardThreads + threadIdx.x) * kWidth;
    if (col >= dim) return;
    const int before = first > 0 ? sorted.id[first - 1] : -1;
    const int after = first + count < tokens ? sorted.id[first + count] : -1;
    float* head = parts + static_cast<std::size_t>(blockIdx.x) * 2 * static_cast<std::size_t>(dim);
    float sum[kWidth] = {};
    for (int base = 0; base < count; base += kEmbeddingBackwardBatch) {
        float v[kEmbeddingBackwardBatch][kWidth];
#pragma unroll
        for (int j = 0; j < kEmbeddingBackwardBatch; ++j) {
            if (base + j < count && id[base + j] < rows) {
                load_some<kWidth>(dx + static_cast<std::int64_t>(token[base + j]) * dim + col,
                                  v[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < kEmbeddingBackwardBatch; ++j) {
            const int i = base + j;
            if (i >= count || id[i] >= rows) continue;
#pragma unroll
            for (int c = 0; c < kWidth; ++c) sum[c] += v[j][c];
            if (i + 1 < count && id[i + 1] == id[i]) continue;
            // The row ends here, or with the piece.
            if (id[i] == before) {
                store_some<kWidth>(head + col, sum);
            } else if (i + 1 == count && id[i] == after) {
                store_some<kWidth>(head + dim + col, sum);
            } else {
                add_some<kWidth>(dtable + static_cast<std::int64_t>(id[i]) * dim + col, sum);
            }
#pragma unroll
            for (int c = 0; c < kWidth; ++c) sum[c] = 0;
        }
    }
}

// Block (piece, columns): the row that begins in the piece and continues.
template <int kWidth>
__global__ void __launch_bounds__(kEmbeddingBackwardThreads)
    add_between(float* dtable, const float* parts, Sorted sorted, int tokens, int rows, int dim,
                Stamp* stamp) {
    wait_for_previous();
    let_next_start();
    const int first = static_cast<int>(blockIdx.x) * kPiece;
    const int next = first + kPiece;
    const int col = static_cast<int>(blockIdx.y * kEmbeddingBackwardThreads + threadIdx.x) * kWidth;
    if (next < tokens && col < dim) {
        const int id = sorted.id[next - 1];
        const bool begins = first == 0 || sorted.id[first - 1] != id;
        if (begins && id < rows && sorted.id[next] == id) {
            const std::size_t width = static_cast<std::size_t>(dim);
            const float* part = parts + static_cast<std::size_t>(blockIdx.x) * 2 * width + col;
            float sum[kWidth];
            load_some<kWidth>(part + width, sum);
            for (int at = next; at < tokens && sorted.id[at] == id; at += kPiece) {
                part += 2 * width;
                float more[kWidth];
                load_some<kWidth>(part, more);
#pragma unroll
                for (int c = 0; c < kWidth; ++c) sum[c] += more[c];
            }
            add_some<kWidth>(dtable + static_cast<std::int64_t>(id) * dim + col, sum);
        }
    }
    stamp_end(stamp);
}

__global__ void __launch_bounds__(kEmbeddingBackwardThreads)
    add_positions(float* dtable, const float* dx, std::int64_t count, int sequences, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const std::int64_t i = std::int64_t{blockIdx.x} * kEmbeddingBackwardThreads + threadIdx.x;
    if (i >= count) return;
    float sum = 0;
    int s = 0;
    for (; s + kEmbeddingBackwardBatch <= sequences; s += kEmbeddingBackwardBatch) {
        float v[kEmbeddingBackwardBatch];
#pragma unroll
        for (int j = 0; j < kEmbeddingBackwardBatch; ++j) v[j] = dx[(s + j) * count + i];
#pragma unroll
        for (int j = 0; j < kEmbeddingBackwardBatch; ++j) sum += v[j];
    }
    for (; s < sequences; ++s) sum += dx[s * count + i];
    dtable[i] += sum;
}

int pieces_of(std::int64_t tokens, int each) {
    return static_cast<int>((tokens + each - 1) / each);
}

// The parts of the scratch.
struct Plan {
    std::size_t list, counts, parts;  // bytes of each; there are four lists
    Plan(std::int64_t tokens, std::int64_t dim)
        : list(DeviceArena::padded(static_cast<std::size_t>(tokens) * 4)),
          counts(DeviceArena::padded(
              static_cast<std::size_t>(pieces_of(tokens, kEmbeddingBackwardChunk)) * kDigits * 4)),
          parts(static_cast<std::size_t>(pieces_of(tokens, kPiece)) * 2 *
                static_cast<std::size_t>(dim) * 4) {}
    std::size_t total() const { return 4 * list + counts + parts; }
};

}  // namespace

std::size_t embedding_backward_scratch_bytes(std::int64_t tokens, std::int64_t dim) {
    return Plan(tokens, dim).total();
}

void embedding_backward(const Context& ctx, Tensor dtable, Tensor dx, const std::int32_t* ids) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(dtable && dx && dtable.dtype == DType::f32 && dx.dtype == DType::f32 &&
                 dtable.shape.rank == 2 && dx.shape.rank == 2 && dtable.dim(1) == dx.dim(1) && ids,
             "dtable is f32 [rows, dim], dx f32 [tokens, dim]");
    const std::int64_t many = dx.dim(0), width = dx.dim(1);
    const Plan plan(many, width);
    MR_CHECK(ctx.scratch.size() >= plan.total(), "scratch was planned");
    MR_CHECK(many < (std::int64_t{1} << 30) && dtable.dim(0) < (std::int64_t{1} << 30),
             "tokens and rows are counted in 32 bits");
    if (many == 0 || width == 0) return;
    const auto tokens = static_cast<int>(many), dim = static_cast<int>(width);
    const auto rows = static_cast<int>(dtable.dim(0));
    // Every token's gradient is read and added once; at most as many rows of the table change.
    const std::uint64_t changed =
        static_cast<std::uint64_t>(std::min(tokens, rows)) * static_cast<std::uint64_t>(dim) * 4;
    Stamp* stamp = account(ctx, OpKind::embedding, "embedding backward",
                           {1, dx.bytes() + changed + static_cast<std::uint64_t>(tokens) * 4,
                            changed, static_cast<std::uint64_t>(dx.shape.count()), 0});

    std::byte* at = ctx.scratch.data();
    const auto take = [&](std::size_t bytes) {
        std::byte* from = at;
        at += bytes;
        return from;
    };
    const auto list = [&] { return reinterpret_cast<std::int32_t*>(take(plan.list)); };
    const Sorted lists[2] = {{list(), list()}, {list(), list()}};
    auto* counts = reinterpret_cast<int*>(take(plan.counts));
    auto* parts = reinterpret_cast<float*>(take(plan.parts));

    const int blocks = pieces_of(tokens, kEmbeddingBackwardChunk);
    const dim3 chunks(static_cast<unsigned>(blocks));
    const std::int32_t* from_id = ids;
    const std::int32_t* from_token = nullptr;
    int into = 0;
    for (int shift = 0; shift == 0 || rows >> shift > 0; shift += 8, into ^= 1) {
        launch(ctx, chunks, dim3(kDigits), 0, count_digits, counts, from_id, tokens, rows, shift,
               stamp);
        launch(ctx, dim3(1), dim3(kDigits), 0, place_digits, counts, blocks);
        launch(ctx, chunks, dim3(kDigits), 0, put_digits, lists[into], counts, from_id, from_token,
               tokens, rows, shift);
        from_id = lists[into].id;
        from_token = lists[into].token;
    }
    const Sorted sorted = lists[into ^ 1];

    const bool fours = in_fours(dtable.data, dim) && in_fours(dx.data, dim);
    const int each = kEmbeddingBackwardThreads * (fours ? 4 : 1);
    const dim3 grid(static_cast<unsigned>(pieces_of(tokens, kPiece)),
                    static_cast<unsigned>((dim + each - 1) / each));
    launch(ctx, grid, dim3(kEmbeddingBackwardThreads), 0, fours ? add_pieces<4> : add_pieces<1>,
           dtable.f32(), parts, dx.f32(), sorted, tokens, rows, dim);
    launch(ctx, grid, dim3(kEmbeddingBackwardThreads), 0, fours ? add_between<4> : add_between<1>,
           dtable.f32(), parts, sorted, tokens, rows, dim, stamp);
}

void positions_backward(const Context& ctx, Tensor dtable, Tensor dx, std::int64_t seq) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(dtable && dx && dtable.dtype == DType::f32 && dx.dtype == DType::f32 &&
                 dtable.shape.rank == 2 && dx.shape.rank == 2 && dtable.dim(1) == dx.dim(1) &&
                 seq > 0 && seq <= dtable.dim(0) && dx.dim(0) % seq == 0,
             "dtable is f32 [at least seq, dim], dx f32 [sequences * seq, dim]");
    const std::int64_t count = seq * dx.dim(1);
    if (dx.shape.count() == 0) return;
    Stamp* stamp = account(
        ctx, OpKind::embedding, "positions backward",
        {1, dx.bytes() + static_cast<std::uint64_t>(count) * 4,
         static_cast<std::uint64_t>(count) * 4, static_cast<std::uint64_t>(dx.shape.count()), 0});
    launch(ctx,
           dim3(static_cast<unsigned>((count + kEmbeddingBackwardThreads - 1) /
                                      kEmbeddingBackwardThreads)),
           dim3(kEmbeddingBackwardThreads), 0, add_positions, dtable.f32(), dx.f32(), count,
           static_cast<int>(dx.dim(0) / seq), stamp);
}

}  // namespace mr::cuda
