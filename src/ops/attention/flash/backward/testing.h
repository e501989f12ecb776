// Shared by the tests of attention's backward on the GPU. out and lse are those of the reference,
// rounded, so the tests do not need the forward.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/attention/flash/backward/dispatch.cuh"
#include "ops/attention/flash/flash_testing.h"

namespace mr::cuda {

inline const std::vector<ops::AttentionMask> kBackwardMasks{
    {ops::AttentionMask::Kind::full},
    {ops::AttentionMask::Kind::causal},
    {ops::AttentionMask::Kind::block_causal, 16},
    {ops::AttentionMask::Kind::causal, 1, 137},               // a window
    {ops::AttentionMask::Kind::causal, 1, 100, 4},            // a window and sinks
    {ops::AttentionMask::Kind::causal, 1, 60, 140},           // sinks beyond a tile
    {ops::AttentionMask::Kind::block_causal, 50, 70, 2, 13},  // block-causal with window and sinks
    {ops::AttentionMask::Kind::full, 1, 50, 20},
    {ops::AttentionMask::Kind::block_before, 16},
    {ops::AttentionMask::Kind::block_before, 100},
};

class FlashBackwardTest : public FlashGpuTest {
  protected:
    using AttentionMask = ops::AttentionMask;
    using Kind = AttentionMask::Kind;
    using HeadRows = ops::HeadRows;
    using Problem = ops::reference::Problem;

    enum class Path { chosen, tiles, pairs, mma, plain };
    static const char* name(Path path) {
        constexpr const char* kNames[] = {"chosen", "tiles", "pairs", "mma", "plain"};
        return kNames[static_cast<int>(path)];
    }
    // The paths that this device has for the type and the head size: blocks have whole pairs up to
    // 64, where there is room for a second tile of keys.
    static std::vector<Path> paths(DType dtype, int dim) {
        std::vector<Path> all{Path::plain};
        if (dtype == DType::f32) return all;
        if (this_gpu().sm >= 80) all.push_back(Path::mma);
        if (this_gpu().sm == 90) all.push_back(Path::tiles);
        if (this_gpu().sm == 90 && dim <= 64) all.push_back(Path::pairs);
        return all;
    }
    static Problem random(int heads, int kv_heads, int dim, const std::vector<int>& q,
                          const std::vector<int>& k, const AttentionMask& mask, DType dtype) {
        return ops::reference::random_problem(heads, kv_heads, dim, q, k, mask, 41, 1,
                                              rounding(dtype));
    }

    // The tensors, `spare` tokens more than there are in sequences, NaN in those; gradients NaN.
    struct Device {
        Tensor q, k, v, out, dout, lse, dq, dk, dv;
        FlashBatch batch;
        ops::FlashGradients gradients() const { return {dq, dk, dv}; }
    };
    Device device_copy(const Problem& p, const ops::reference::Result& forward, DType dtype,
                       int spare = 0) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        const auto put = [&](const std::vector<double>& x, int tokens, int heads) {
            std::vector<float> values(x.begin(), x.end());
            values.resize(Problem::at(tokens + spare) * Problem::at(heads * p.head_dim), nan);
            return upload(dtype, {tokens + spare, heads, p.head_dim}, values);
        };
        Device d;
        d.q = put(p.q, p.tokens_q(), p.heads);
        d.k = put(p.k, p.tokens_k(), p.kv_heads);
        d.v = put(p.v, p.tokens_k(), p.kv_heads);
        d.out = put(forward.out, p.tokens_q(), p.heads);
        d.dout = put(p.dout, p.tokens_q(), p.heads);
        const int tokens = p.tokens_q() + spare;
        std::vector<float> lse(Problem::at(p.heads) * Problem::at(tokens), nan);
        for (int h = 0; h < p.heads; ++h) {
            for (int t = 0; t < p.tokens_q(); ++t) {
                lse[Problem::at(h * tokens + t)] =
                    static_cast<float>(forward.lse[Problem::at(h * p.tokens_q() + t)]);
            }
        }
        d.lse = upload(DType::f32, {p.heads, tokens}, lse);
        d.dq = poisoned(dtype, d.q.shape);
        d.dk = poisoned(dtype, d.k.shape);
        d.dv = poisoned(dtype, d.k.shape);
        d.batch = device_batch(p);
        return d;
    }
    void backward(const ops::FlashGradients& to, const HeadRows& dout, const HeadRows& q,
                  const HeadRows& k, const HeadRows& v, const HeadRows& out, const Tensor& lse,
                  const FlashBatch& batch, const AttentionMask& mask, double scale,
                  Path path = Path::chosen) {
        const std::size_t bytes = flash_backward_scratch_bytes(q, batch);
        Context ctx = ctx_;
        ctx.scratch = {static_cast<std::byte*>(memory_.alloc(bytes)), bytes};
        stream_->fill(ctx.scratch.data(), 0xff, bytes);  // its contents must not matter
        const auto f = static_cast<float>(scale);
        if (path == Path::chosen) {
            return flash_backward(ctx, to, dout, q, k, v, out, lse, batch, mask, f);
        }
        flash::BackwardViews views;
        const flash::Problem p =
            flash::checked_backward(ctx, to, dout, q, k, v, out, lse, batch, mask, f, bytes, views);
        if (path == Path::tiles || path == Path::pairs) {
            flash::backward_hopper(
                ctx, p, views, nullptr,
                path == Path::tiles ? flash::BackwardBlocks::tiles : flash::BackwardBlocks::pairs);
        }
        if (path == Path::mma) flash::backward_mma(ctx, p, views, nullptr);
        if (path == Path::plain) flash::backward_plain(ctx, p, views, nullptr);
    }
    void backward(const Device& d, const Problem& p, Path path = Path::chosen) {
        backward(d.gradients(), d.dout, d.q, d.k, d.v, d.out, d.lse, d.batch, p.mask, p.scale,
                 path);
    }
    // The context that a caller makes once for all calls.
    Context with_scratch(const Device& d, Stream& stream) {
        const std::size_t bytes = flash_backward_scratch_bytes(d.q, d.batch);
        Context ctx = ctx_;
        ctx.cuda = &stream;
        ctx.scratch = {static_cast<std::byte*>(memory_.alloc(bytes)), bytes};
        return ctx;
    }
    static void call(const Context& ctx, const Device& d, const Problem& p) {
        flash_backward(ctx, d.gradients(), d.dout, d.q, d.k, d.v, d.out, d.lse, d.batch, p.mask,
                       static_cast<float>(p.scale));
    }
    void poison(const Device& d) {
        for (const Tensor& t : {d.dq, d.dk, d.dv}) stream_->fill(t.data, 0xff, t.bytes());
    }
    // Tensors for tests where any out and lse will do.
    Device any_forward(const Problem& p, DType dtype) {
        ops::reference::Result forward;
        forward.out = p.dout;
        forward.lse.assign(Problem::at(p.heads * p.tokens_q()), 7.0);
        return device_copy(p, forward, dtype);
    }
    std::vector<std::uint16_t> bits(const Device& d) {
        std::vector<std::uint16_t> all;
        for (const Tensor& t : {d.dq, d.dk, d.dv}) {
            const auto part = download(static_cast<const std::uint16_t*>(t.data), t.bytes() / 2);
            all.insert(all.end(), part.begin(), part.end());
        }
        return all;
    }

    // 100 runs give the same bits.
    void expect_same_bits(int dim, const AttentionMask& mask, DType dtype) {
        // More blocks than the device runs at once, so that their order differs every time.
        const Problem p = random(12, 12, dim, {1100, 300}, {1100, 300}, mask, dtype);
        memory_.reset();
        const Device d = any_forward(p, dtype);
        const Context ctx = with_scratch(d, *stream_);
        std::vector<std::uint16_t> first;
        for (int run = 0; run < 100; ++run) {
            poison(d);
            stream_->fill(ctx.scratch.data(), run, ctx.scratch.size());
            call(ctx, d, p);
            const std::vector<std::uint16_t> now = bits(d);
            if (run == 0) first = now;
            ASSERT_TRUE(now == first)
                << "dim " << dim << " window " << mask.window << " run " << run;
        }
    }

    static Wanted wanted(const Problem& p, DType dtype) {
        return with_bounds(p, ops::reference::forward_backward(p), dtype);
    }
    // Checks every element against its bound and reports the first that exceeds it. Tokens of no
    // sequence must be unchanged.
    void expect_close(const Device& d, const Wanted& want, const std::string& what) {
        const auto check = [&](const char* which, const Tensor& t, const std::vector<double>& value,
                               const std::vector<double>& bound) {
            const std::vector<float> got = download(t);
            const std::size_t row = static_cast<std::size_t>(t.dim(1) * t.dim(2));
            for (std::size_t i = 0; i < value.size(); ++i) {
                ASSERT_LE(std::abs(got[i] - value[i]), bound[i] + tiny(t.dtype))
                    << what << ": " << which << " " << got[i] << ", is " << value[i]
                    << ", at token " << i / row << " number " << i % row;
            }
            for (std::size_t i = value.size(); i < got.size(); ++i) {
                ASSERT_TRUE(std::isnan(got[i])) << what << ": " << which << " wrote at " << i;
            }
        };
        check("dq", d.dq, want.value.dq, want.bound.dq);
        check("dk", d.dk, want.value.dk, want.bound.dk);
        check("dv", d.dv, want.value.dv, want.bound.dv);
    }
    // The absolute rounding error of a type near zero: f16 has no numbers below 2^-24.
    static double tiny(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : 0x1p-126; }

    void expect_reference(const Problem& p, DType dtype, const std::string& what, int spare = 0) {
        const Wanted want = wanted(p, dtype);
        for (const Path path : paths(dtype, p.head_dim)) {
            memory_.reset();
            const Device d = device_copy(p, want.value, dtype, spare);
            backward(d, p, path);
            expect_close(d, want, what + ", " + name(path));
            if (HasFatalFailure()) return;
        }
    }
};

inline std::string text(const ops::AttentionMask& mask) {
    return "mask " + std::to_string(static_cast<int>(mask.kind)) + " block " +
           std::to_string(mask.block) + " origin " + std::to_string(mask.origin) + " window " +
           std::to_string(mask.window) + " sinks " + std::to_string(mask.sinks);
}

}  // namespace mr::cuda
