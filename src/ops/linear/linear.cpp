#include "ops/linear/linear.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/cpu.h"
#include "core/error.h"
#include "ops/linear/linear_kernels.h"

namespace mr::ops {
namespace {

constexpr std::int64_t kBlock = 32;
constexpr std::size_t kAlign = 64;
// Bytes of weights per piece of work. Every thread gets several pieces, so that threads end
// together, unless pieces become so small that distributing them costs more than the wait. One
// token does little work per byte, several do more. With one token the weights are only streamed,
// and longer pieces stream better.
constexpr std::size_t kPieceBytes = 128 * 1024;  // upper limit with several tokens, lower with one
constexpr std::size_t kMinPieceBytes = 16 * 1024;
constexpr std::size_t kMaxPieceBytes = 1024 * 1024;
constexpr std::int64_t kRowStep = 16;  // pieces start at multiples of it, so that tiles are full

std::size_t align_up(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::size_t quantised_bytes(std::int64_t tokens, std::int64_t k) {
    const std::int64_t padded = (tokens + kTokenGroup - 1) / kTokenGroup * kTokenGroup;
    const std::int64_t blocks = (k + kBlock - 1) / kBlock;
    return align_up(static_cast<std::size_t>(padded * blocks * kQuantBlockBytes));
}

std::size_t pack_bytes(std::int64_t k) {
    const std::int64_t padded = (k + kBlock - 1) / kBlock * kBlock;
    return align_up(static_cast<std::size_t>(padded * kPackBytesPerColumn));
}

WeightKind weight_kind(DType type) {
    switch (type) {
        case DType::f32:
            return WeightKind::f32;
        case DType::f16:
            return WeightKind::f16;
        case DType::bf16:
            return WeightKind::bf16;
        case DType::q8_0:
            return WeightKind::q8_0;
        case DType::q4_0:
            return WeightKind::q4_0;
        case DType::q8_0x4:
            return WeightKind::q8_0x4;
        case DType::q4_0x4:
            return WeightKind::q4_0x4;
        default:
            MR_CHECK(false, "linear takes weights in f32, f16, bf16, q8_0 or q4_0");
    }
}

bool interleaved(DType type) { return type == DType::q8_0x4 || type == DType::q4_0x4; }

bool reads_interleaved() { return active_isa() != Isa::portable; }

bool overlap(const Tensor& a, const Tensor& b) {
    const auto* a0 = static_cast<const std::byte*>(a.data);
    const auto* b0 = static_cast<const std::byte*>(b.data);
    return a0 < b0 + b.bytes() && b0 < a0 + a.bytes();
}

void check(const Tensor& x, const LinearOut& one) {
    const std::int64_t tokens = x.dim(0), k = x.dim(1);
    MR_CHECK(one.w && one.w.shape.rank == 2 && one.w.dim(1) == k, "w is [n, k]");
    const std::int64_t n = one.w.dim(0);
    MR_CHECK(n > 0, "w has rows");
    weight_kind(one.w.dtype);
    if (interleaved(one.w.dtype)) {
        MR_CHECK(reads_interleaved() && n % 4 == 0,
                 "weights were repacked for the instruction path in use");
    }
    MR_CHECK(k % dtype_info(one.w.dtype).block == 0, "k is a whole number of blocks of w");
    MR_CHECK(one.out && one.out.dtype == DType::f32 && one.out.shape == Shape({tokens, n}),
             "out is f32 [tokens, n]");
    MR_CHECK(!overlap(one.out, x), "out is not x");
    if (one.bias) {
        MR_CHECK(one.bias.dtype == DType::f32 && one.bias.shape == Shape({n}), "bias is f32 [n]");
        MR_CHECK(!overlap(one.out, one.bias), "out is not the bias");
    }
    if (one.residual) {
        MR_CHECK(one.residual.dtype == DType::f32 && one.residual.shape == one.out.shape,
                 "residual is f32 [tokens, n]");
        MR_CHECK(one.residual.data == one.out.data || !overlap(one.out, one.residual),
                 "residual is out itself or apart from it");
    }
}

// The pieces of one product: rows [i * rows, (i + 1) * rows) are piece `first` + i.
struct Product {
    LinearJob job;
    std::int64_t rows = 0;
    std::int64_t first = 0;
};
constexpr std::size_t kMaxGroup = 8;

}  // namespace

DType linear_fastest_type(DType type, std::int64_t n) {
    if (!reads_interleaved() || n % 4 != 0) return type;
    if (type == DType::q8_0) return DType::q8_0x4;
    return type == DType::q4_0 ? DType::q4_0x4 : type;
}

void linear_repack(ThreadPool& pool, Tensor to, Tensor w) {
    MR_CHECK(w.shape.rank == 2 && to.shape == w.shape, "both are [n, k]");
    MR_CHECK(interleaved(to.dtype) && to.dtype == linear_fastest_type(w.dtype, w.dim(0)),
             "`to` has the type that linear_fastest_type() gives");
    const auto block = static_cast<std::size_t>(dtype_info(w.dtype).block_bytes);
    const std::size_t quants = block - 2;  // after the scale
    const std::int64_t blocks = w.dim(1) / kBlock;
    pool.parallel_for(w.dim(0) / 4, 4, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t group = begin; group < end; ++group) {
            const auto* from = w.row<const std::byte>(group * 4);
            auto* out = to.row<std::byte>(group * 4);
            for (std::int64_t b = 0; b < blocks; ++b, from += block, out += 4 * block) {
                for (std::size_t r = 0; r < 4; ++r) {
                    const std::byte* in = from + r * w.row_bytes();
                    std::memcpy(out + 4 * quants + 2 * r, in, 2);
                    for (std::size_t j = 0; j < quants; j += 4) {
                        std::memcpy(out + 4 * j + 4 * r, in + 2 + j, 4);
                    }
                }
            }
        }
    });
}

std::size_t linear_scratch_bytes(std::int64_t max_tokens, std::int64_t max_k, int threads) {
    // Plus one alignment, because the caller's scratch may start at any address.
    return quantised_bytes(max_tokens, max_k) +
           pack_bytes(max_k) * static_cast<std::size_t>(threads) + kAlign;
}

void linear(const Context& ctx, Tensor x, std::span<const LinearOut> group, OpKind kind) {
    MR_CHECK(ctx.pool, "the context has a thread pool");
    MR_CHECK(x.dtype == DType::f32 && x.shape.rank == 2, "x is f32 [tokens, k]");
    MR_CHECK(!group.empty() && group.size() <= kMaxGroup, "a group has 1 to 8 products");
    const std::int64_t tokens = x.dim(0), k = x.dim(1);
    MR_CHECK(k > 0 && tokens >= 0, "x is f32 [tokens, k]");
    if (tokens == 0) return;
    MR_CHECK(x, "x is f32 [tokens, k]");
    for (const LinearOut& one : group) check(x, one);
    const int threads = ctx.pool->size();
    MR_CHECK(ctx.scratch.size() >= linear_scratch_bytes(tokens, k, threads),
             "ctx.scratch has linear_scratch_bytes()");

    std::uint64_t read = x.bytes(), written = 0, flops = 0, int8_flops = 0;
    for (const LinearOut& one : group) {
        read += one.w.bytes();
        if (one.bias) read += one.bias.bytes();
        if (one.residual) read += one.residual.bytes();
        written += one.out.bytes();
        const auto product =
            2 * static_cast<std::uint64_t>(one.out.shape.count()) * static_cast<std::uint64_t>(k);
        flops += product;
        if (is_quantised(one.w.dtype)) int8_flops += product;
    }
    const LedgerEntry entry(ctx.ledger, kind, read, written, flops, int8_flops);

    const auto address = reinterpret_cast<std::uintptr_t>(ctx.scratch.data());
    std::byte* xq = ctx.scratch.data() + (kAlign - address % kAlign) % kAlign;
    std::byte* packs = xq + quantised_bytes(tokens, k);
    if (int8_flops > 0) {
        const auto kernel = MR_DISPATCH(linear_quantise);
        ctx.pool->parallel_for(tokens, kTokenGroup, [&](std::int64_t begin, std::int64_t end, int) {
            kernel(xq, x.f32(), k, tokens, begin, end);
        });
    }

    std::size_t weights = 0;
    for (const LinearOut& one : group) weights += one.w.bytes();
    const std::size_t piece_bytes = std::clamp(weights / (4 * static_cast<std::size_t>(threads)),
                                               tokens == 1 ? kPieceBytes : kMinPieceBytes,
                                               tokens == 1 ? kMaxPieceBytes : kPieceBytes);
    Product products[kMaxGroup];
    std::int64_t pieces = 0;
    for (std::size_t i = 0; i < group.size(); ++i) {
        const LinearOut& one = group[i];
        LinearJob& job = products[i].job;
        job.kind = weight_kind(one.w.dtype);
        job.w = static_cast<const unsigned char*>(one.w.data);
        job.row_bytes = one.w.row_bytes();
        job.n = one.w.dim(0);
        job.k = k;
        job.tokens = tokens;
        job.x = x.f32();
        job.xq = xq;
        job.out = one.out.f32();
        job.bias = one.bias ? one.bias.f32() : nullptr;
        job.residual = one.residual ? one.residual.f32() : nullptr;
        const auto rows =
            static_cast<std::int64_t>(piece_bytes / std::max<std::size_t>(1, job.row_bytes));
        products[i].rows = std::max(kRowStep, rows / kRowStep * kRowStep);
        products[i].first = pieces;
        pieces += (job.n + products[i].rows - 1) / products[i].rows;
    }
    const auto kernel = MR_DISPATCH(linear_rows);
    ctx.pool->parallel_for(pieces, 1, [&](std::int64_t piece, std::int64_t, int thread) {
        std::size_t i = group.size() - 1;
        while (products[i].first > piece) --i;
        const Product& product = products[i];
        const std::int64_t begin = (piece - product.first) * product.rows;
        const std::int64_t end = std::min(begin + product.rows, product.job.n);
        kernel(product.job, begin, end, packs + pack_bytes(k) * static_cast<std::size_t>(thread));
    });
}

}  // namespace mr::ops
