#include "ops/linear/linear_backward.h"

#include <algorithm>

#include "core/error.h"
#include "ops/linear/packed_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

constexpr std::size_t kAlign = 64;
// Block sizes of packing, in depth, columns and rows of c: a panel of b (12 KiB on NEON) fits L1, a
// thread's rows of a (at most 96 KiB) L2, and b's columns (at most 960 KiB) the shared last-level
// cache.
constexpr std::int64_t kDepthBlock = 256;
constexpr std::int64_t kColBlock = 10 * kPanelStep;
constexpr std::int64_t kRowBlock = kPanelStep;
constexpr std::int64_t kRowStep = 24;  // pieces are multiples of it: whole tiles on every path

std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

std::size_t aligned(std::int64_t floats) {
    return (static_cast<std::size_t>(floats) * sizeof(float) + kAlign - 1) / kAlign * kAlign;
}

std::size_t left_bytes(std::int64_t depth) {
    return aligned(std::min(depth, kDepthBlock) * kRowBlock);
}

std::size_t right_bytes(std::int64_t depth, std::int64_t cols) {
    return aligned(std::min(depth, kDepthBlock) * std::min(round_up(cols, kPanelStep), kColBlock));
}

// A matrix as the product reads it: element (i, j) is data[i * stride + j], or data[j * stride + i]
// where it is `transposed`.
struct Operand {
    const float* data = nullptr;
    std::int64_t stride = 0;
    bool transposed = false;
    const float* at(std::int64_t i, std::int64_t j) const {
        return transposed ? data + j * stride + i : data + i * stride + j;
    }
};

struct Product {
    std::int64_t rows = 0, cols = 0, depth = 0;
    Operand a, b;                 // [rows, depth], [depth, cols]
    float* c = nullptr;           // [rows, cols]
    const float* add = nullptr;   // [rows, cols] or none; may be c
    const float* bias = nullptr;  // [cols] or none
};

void multiply(const Context& ctx, const Product& p) {
    const int threads = ctx.pool->size();
    const auto pack = MR_DISPATCH(packed_panels);
    const auto kernel = MR_DISPATCH(packed_block);
    const std::int64_t tile_cols = MR_DISPATCH(packed_tile)().cols;
    const auto address = reinterpret_cast<std::uintptr_t>(ctx.scratch.data());
    std::byte* begin = ctx.scratch.data() + (kAlign - address % kAlign) % kAlign;
    auto* right = reinterpret_cast<float*>(begin);
    std::byte* lefts = begin + right_bytes(p.depth, p.cols);
    MR_CHECK(lefts + left_bytes(p.depth) * static_cast<std::size_t>(threads) <=
                 ctx.scratch.data() + ctx.scratch.size(),
             "ctx.scratch has linear_backward_scratch_bytes()");

    // Every thread gets several pieces. Their size does not change the bits.
    const std::int64_t rows_per_piece =
        std::clamp(round_up(p.rows / (4 * threads), kRowStep), kRowStep, kRowBlock);
    const std::int64_t pieces = (p.rows + rows_per_piece - 1) / rows_per_piece;
    for (std::int64_t col = 0; col < p.cols; col += kColBlock) {
        const std::int64_t cols = std::min(kColBlock, p.cols - col);
        for (std::int64_t deep = 0; deep < p.depth; deep += kDepthBlock) {
            const std::int64_t depth = std::min(kDepthBlock, p.depth - deep);
            const std::int64_t panels = (cols + tile_cols - 1) / tile_cols;
            ctx.pool->parallel_for(panels, 8, [&](std::int64_t first, std::int64_t last, int) {
                pack(right + first * tile_cols * depth, p.b.at(deep, col + first * tile_cols),
                     p.b.stride, depth, std::min(last * tile_cols, cols) - first * tile_cols,
                     p.b.transposed, PanelSide::right);
            });
            ctx.pool->parallel_for(pieces, 1, [&](std::int64_t piece, std::int64_t, int thread) {
                auto* left = reinterpret_cast<float*>(lefts + left_bytes(p.depth) *
                                                                  static_cast<std::size_t>(thread));
                const std::int64_t row = piece * rows_per_piece;
                const std::int64_t rows = std::min(rows_per_piece, p.rows - row);
                pack(left, p.a.at(row, deep), p.a.stride, depth, rows, !p.a.transposed,
                     PanelSide::left);
                PackedBlock block;
                block.a = left;
                block.b = right;
                block.depth = depth;
                block.rows = rows;
                block.cols = cols;
                block.c = p.c + row * p.cols + col;
                block.c_stride = p.cols;
                const float* sum = deep == 0 ? p.add : p.c;
                block.add = sum ? sum + row * p.cols + col : nullptr;
                block.bias = deep == 0 && p.bias ? p.bias + col : nullptr;
                kernel(block);
            });
        }
    }
}

bool overlap(const Tensor& a, const Tensor& b) {
    const auto* a0 = static_cast<const std::byte*>(a.data);
    const auto* b0 = static_cast<const std::byte*>(b.data);
    return a0 < b0 + b.bytes() && b0 < a0 + a.bytes();
}

void check_matrix(const Tensor& x) {
    MR_CHECK(x && x.dtype == DType::f32 && x.shape.rank == 2 && x.dim(0) >= 0 && x.dim(1) > 0,
             "linear's tensors are f32 matrices in training");
}

// Checks x [tokens, k], y [tokens, n], w [n, k], whichever of them is the output.
void check_linear(const Context& ctx, const Tensor& x, const Tensor& y, const Tensor& w) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    for (const Tensor* one : {&x, &y, &w}) check_matrix(*one);
    MR_CHECK(x.dim(0) == y.dim(0) && x.dim(1) == w.dim(1) && y.dim(1) == w.dim(0),
             "x is [tokens, k], y [tokens, n] and w [n, k]");
}

std::uint64_t product_flops(const Tensor& x, const Tensor& w) {
    return 2 * static_cast<std::uint64_t>(x.dim(0)) * static_cast<std::uint64_t>(w.shape.count());
}

}  // namespace

std::size_t linear_backward_scratch_bytes(std::int64_t max_tokens, std::int64_t max_n,
                                          std::int64_t max_k, int threads) {
    const std::int64_t depth = std::max({max_tokens, max_n, max_k});
    // Plus one alignment, because the caller's scratch may start at any address.
    return right_bytes(depth, std::max(max_n, max_k)) +
           left_bytes(depth) * static_cast<std::size_t>(threads) + kAlign;
}

void linear_train(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias, Tensor residual,
                  OpKind kind) {
    check_linear(ctx, x, out, w);
    MR_CHECK(!overlap(out, x) && !overlap(out, w), "out is neither x nor w");
    MR_CHECK(!bias || (bias.dtype == DType::f32 && bias.shape.count() == w.dim(0)),
             "bias is f32 [n]");
    MR_CHECK(!residual || (residual.dtype == DType::f32 && residual.shape == out.shape),
             "residual is f32 [tokens, n]");
    const LedgerEntry entry(
        ctx.ledger, kind,
        x.bytes() + w.bytes() + (bias ? bias.bytes() : 0) + (residual ? residual.bytes() : 0),
        out.bytes(), product_flops(x, w));
    Product p;
    p.rows = x.dim(0);
    p.cols = w.dim(0);
    p.depth = w.dim(1);
    p.a = {x.f32(), p.depth, false};
    p.b = {w.f32(), p.depth, true};
    p.c = out.f32();
    p.add = residual ? residual.f32() : nullptr;
    p.bias = bias ? bias.f32() : nullptr;
    multiply(ctx, p);
}

void linear_backward_input(const Context& ctx, Tensor dx, Tensor dy, Tensor w, bool accumulate,
                           OpKind kind) {
    check_linear(ctx, dx, dy, w);
    MR_CHECK(!overlap(dx, dy) && !overlap(dx, w), "dx is neither dy nor w");
    const LedgerEntry entry(ctx.ledger, kind,
                            dy.bytes() + w.bytes() + (accumulate ? dx.bytes() : 0), dx.bytes(),
                            product_flops(dx, w));
    Product p;
    p.rows = dx.dim(0);
    p.cols = w.dim(1);
    p.depth = w.dim(0);
    p.a = {dy.f32(), p.depth, false};
    p.b = {w.f32(), p.cols, false};
    p.c = dx.f32();
    p.add = accumulate ? p.c : nullptr;
    multiply(ctx, p);
}

void linear_backward_weight(const Context& ctx, Tensor dw, Tensor dbias, Tensor dy, Tensor x,
                            OpKind kind) {
    check_linear(ctx, x, dy, dw);
    MR_CHECK(!overlap(dw, dy) && !overlap(dw, x), "dw is neither dy nor x");
    MR_CHECK(!dbias || (dbias.dtype == DType::f32 && dbias.shape.count() == dw.dim(0)),
             "dbias is f32 [n]");
    const std::uint64_t bias_bytes = dbias ? dbias.bytes() : 0;
    const LedgerEntry entry(
        ctx.ledger, kind, dy.bytes() + x.bytes() + dw.bytes() + bias_bytes, dw.bytes() + bias_bytes,
        product_flops(x, dw) + (dbias ? static_cast<std::uint64_t>(dy.shape.count()) : 0));
    Product p;
    p.rows = dw.dim(0);
    p.cols = dw.dim(1);
    p.depth = x.dim(0);
    p.a = {dy.f32(), p.rows, true};
    p.b = {x.f32(), p.cols, false};
    p.c = dw.f32();
    p.add = p.c;
    multiply(ctx, p);
    if (!dbias) return;
    const auto kernel = MR_DISPATCH(column_sums);
    ctx.pool->parallel_for(p.rows, 64, [&](std::int64_t begin, std::int64_t end, int) {
        kernel(dbias.f32() + begin, dy.f32() + begin, p.rows, p.depth, end - begin);
    });
}

}  // namespace mr::ops
