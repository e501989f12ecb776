#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "core/cuda/kernel.cuh"
#include "core/median.h"
#include "lab/attention/flash_measure.h"
#include "lab/attention/flash_unfused.h"
#include "ops/attention/flash/flash_cuda.h"
#include "ops/attention/paged/fill.cuh"
#include "ops/linear/gemm_cuda.h"

namespace mr::cuda {
namespace {

// q, k, v, out, and with a backward the gradients, all filled with normal values.
struct Tensors {
    ops::HeadRows q, k, v, out, dout, dq, dk, dv;
    DeviceArena memory;

    Tensors(const Context& ctx, const FlashShape& s, bool backward) {
        const std::int64_t tokens = s.all_tokens();
        const Shape wide{tokens, s.heads, s.head_dim}, narrow{tokens, s.kv_heads, s.head_dim};
        const auto bytes = [&](const Shape& shape) {
            return DeviceArena::padded(
                dtype_bytes(s.dtype, static_cast<std::size_t>(shape.count())));
        };
        memory = DeviceArena("attention benchmark",
                             (backward ? 2 : 1) * (2 * bytes(wide) + 2 * bytes(narrow)));
        const auto make = [&](const Shape& shape) {
            const Tensor t = memory.tensor(s.dtype, shape);
            fill_with<Normal>(ctx, t);
            return ops::HeadRows(t);
        };
        q = make(wide);
        k = make(narrow);
        v = make(narrow);
        out = make(wide);
        if (!backward) return;
        dout = make(wide);
        dq = make(wide);
        dk = make(narrow);
        dv = make(narrow);
    }
};

// The expected time, from measurements on large devices.
double expected_seconds(DType dtype, double flops) {
    return flops / (dtype == DType::f32 ? 1e13 : 4e14);
}
// A graph of about 5 ms, replayed round after round, after a pause of twice its time. Under full
// load a device reaches its power limit within a tenth of a second, and its speed then depends on
// what ran before.
class Rounds {
  public:
    template <typename Body>
    Rounds(const Stream& stream, double expected, Body&& body)
        : stream_(stream), calls_(static_cast<int>(std::clamp(5e-3 / expected, 1.0, 32.0))) {
        body();  // work done only at the first call
        stream.synchronize();
        graph_ = Graph::capture(stream, [&] {
            for (int i = 0; i < calls_; ++i) body();
        });
    }
    void run() {
        const double last = seconds_.empty() ? 5e-3 : seconds_.back() * calls_;
        std::this_thread::sleep_for(std::chrono::duration<double>(2 * std::min(last, 20e-3)));
        const Event begin(true), end(true);
        stream_.record(begin);
        graph_.launch(stream_);
        stream_.record(end);
        end.synchronize();
        seconds_.push_back(end.seconds_since(begin) / calls_);
    }
    // Of all rounds but the first two.
    double median() const { return mr::median({seconds_.begin() + 2, seconds_.end()}); }

  private:
    const Stream& stream_;
    int calls_;
    Graph graph_;
    std::vector<double> seconds_;
};
// Fewer rounds for long calls.
int rounds_of(double expected) { return 2 + (expected > 3e-3 ? 3 : 7); }

}  // namespace

FlashMeasured measure_flash(const FlashShape& shape, bool backward, bool together,
                            const std::function<void()>& between) {
    require_device();
    if (shape.head_dim > kFlashBackwardMaxDim) backward = false;
    Stream stream;
    Context ctx;
    ctx.cuda = &stream;
    const Tensors t(ctx, shape, backward);
    FlashBatch batch{nullptr, nullptr, shape.sequences(), shape.longest(), shape.longest()};
    std::vector<std::int32_t> ends{0};  // cumulative lengths
    for (const int length : shape.lengths) ends.push_back(ends.back() + length);
    const DeviceArena packed("attention benchmark", DeviceArena::padded(4 * ends.size()));
    if (!shape.lengths.empty()) {
        stream.to_device(packed.data(), ends.data(), 4 * ends.size(), nullptr);
        stream.synchronize();
        batch.cu_q = batch.cu_k = reinterpret_cast<const std::int32_t*>(packed.data());
    }
    const std::size_t scratch = backward ? flash_backward_scratch_bytes(t.q, batch) : 0;
    const std::int64_t tokens = shape.all_tokens();
    DeviceArena extra("attention benchmark",
                      DeviceArena::padded(scratch) +
                          DeviceArena::padded(static_cast<std::size_t>(4 * tokens * shape.heads)));
    const Tensor lse = extra.tensor(DType::f32, {shape.heads, tokens});
    if (scratch > 0) ctx.scratch = {extra.array<std::byte>(scratch), scratch};
    const float scale = ops::default_scale(shape.head_dim);
    FlashMeasured m;
    m.tensors = t.memory.size();
    m.extra = extra.size();
    const auto forward = [&] {
        flash_forward(ctx, t.out, lse, t.q, t.k, t.v, batch, shape.mask, scale);
    };
    const auto back = [&] {
        flash_backward(ctx, {t.dq, t.dk, t.dv}, t.dout, t.q, t.k, t.v, t.out, lse, batch,
                       shape.mask, scale);
    };
    const double once = expected_seconds(shape.dtype, shape.forward_flops());
    const double again = expected_seconds(shape.dtype, shape.backward_flops());
    // All take turns, also with other measurements, so that the device is in the same state for
    // each.
    std::vector<Rounds> timed;
    timed.emplace_back(stream, once, forward);
    if (backward) timed.emplace_back(stream, again, back);
    if (backward && together) {
        timed.emplace_back(stream, once + again, [&] {
            forward();
            back();
        });
    }
    for (int i = 0; i < rounds_of(once); ++i) {
        for (Rounds& rounds : timed) rounds.run();
        if (between) between();
    }
    m.forward = timed[0].median();
    if (backward) m.backward = timed[1].median();
    if (backward && together) m.together = timed[2].median();
    return m;
}

FlashMeasured measure_unfused(const FlashShape& shape, bool backward) {
    require_device();
    MR_CHECK(shape.batch == 1 && shape.lengths.empty() && shape.heads == 1 && shape.kv_heads == 1 &&
                 shape.mask.kind == ops::AttentionMask::Kind::causal && shape.mask.window == 0,
             "the unfused version is one sequence and one head, causal");
    Stream stream;
    Context ctx;
    ctx.cuda = &stream;
    const Tensors t(ctx, shape, backward);
    const std::size_t matrices = unfused_bytes(shape.tokens, shape.head_dim, shape.dtype, backward);
    const std::size_t scratch = unfused_scratch_bytes(shape.tokens, shape.head_dim, shape.dtype);
    DeviceArena extra("attention benchmark",
                      DeviceArena::padded(matrices) + DeviceArena::padded(scratch));
    void* memory = extra.alloc(matrices);
    ctx.scratch = {extra.array<std::byte>(scratch), scratch};
    const auto flat = [&](const ops::HeadRows& x) {
        return x.tensor.data ? Tensor(x.tensor.data, shape.dtype, {shape.tokens, shape.head_dim})
                             : Tensor();
    };
    const UnfusedTensors u{flat(t.q),    flat(t.k),  flat(t.v),  flat(t.out),
                           flat(t.dout), flat(t.dq), flat(t.dk), flat(t.dv)};
    const float scale = ops::default_scale(shape.head_dim);
    FlashMeasured m;
    m.tensors = t.memory.size();
    m.extra = matrices;
    const auto seconds = [&](double flops, auto&& body) {
        const double expected = expected_seconds(shape.dtype, 4 * flops);
        Rounds rounds(stream, expected, body);
        for (int i = 0; i < rounds_of(expected); ++i) rounds.run();
        return rounds.median();
    };
    m.forward = seconds(shape.forward_flops(), [&] { unfused_forward(ctx, u, memory, scale); });
    if (backward) {
        m.backward =
            seconds(shape.backward_flops(), [&] { unfused_backward(ctx, u, memory, scale); });
    }
    return m;
}

}  // namespace mr::cuda
