#include <algorithm>
#include <cmath>

#include "core/cuda/vec4.cuh"
#include "ops/optimizer/adamw_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kAdamWThreads = 256;
// Blocks of a sum's first kernel, on any GPU: the order of additions depends on their number.
constexpr int kSumBlocks = 1024;
constexpr int kAdamWBatch = 4;  // loads in flight

__device__ __forceinline__ double block_sum(double sum, double* shared) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
    __syncthreads();
    double total = 0;
#pragma unroll
    for (int w = 0; w < kAdamWThreads / 32; ++w) total += shared[w];
    return total;
}

// Block b has elements kAdamWThreads * b + thread, then every (kAdamWThreads * kSumBlocks)-th.
template <typename T>
__global__ void __launch_bounds__(kAdamWThreads)
    parts_of_sum(double* parts, const T* x, std::int64_t count, Stamp* stamp) {
    __shared__ double shared[kAdamWThreads / 32];
    wait_for_previous();
    stamp_begin(stamp);
    let_next_start();
    constexpr std::int64_t kStep = std::int64_t{kAdamWThreads} * kSumBlocks;
    std::int64_t i = std::int64_t{blockIdx.x} * kAdamWThreads + threadIdx.x;
    double sum = 0;
    const auto add = [&](T v) { sum += static_cast<double>(v); };
    for (; i + (kAdamWBatch - 1) * kStep < count; i += kAdamWBatch * kStep) {
        T v[kAdamWBatch];
#pragma unroll
        for (int j = 0; j < kAdamWBatch; ++j) v[j] = x[i + j * kStep];
#pragma unroll
        for (int j = 0; j < kAdamWBatch; ++j) add(v[j]);
    }
    for (; i < count; i += kStep) add(x[i]);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kAdamWThreads)
    sum_of_parts(double* to, const double* parts, bool accumulate, Stamp* stamp) {
    __shared__ double shared[kAdamWThreads / 32];
    wait_for_previous();
    let_next_start();
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kSumBlocks / kAdamWThreads; ++i)
        sum += parts[threadIdx.x + i * kAdamWThreads];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *to = accumulate ? *to + sum : sum;
    stamp_end(stamp);
}

template <typename T>
void run_sum(const Context& ctx, double* to, const T* x, std::int64_t count, bool accumulate) {
    MR_CHECK(ctx.cuda && to, "the context has a stream, and the sum a place");
    MR_CHECK(ctx.scratch.size() >= sum_scratch_bytes(), "scratch was planned");
    auto* parts = reinterpret_cast<double*>(ctx.scratch.data());
    const auto elements = static_cast<std::uint64_t>(count);
    Stamp* stamp =
        account(ctx, OpKind::optimizer, "sum", {1, elements * sizeof(T), 8, elements, 0});
    launch(ctx, dim3(kSumBlocks), dim3(kAdamWThreads), 0, parts_of_sum<T>, parts, x, count, stamp);
    launch(ctx, dim3(1), dim3(kAdamWThreads), 0, sum_of_parts, to, parts, accumulate, stamp);
}

// One warp per block of elements; a lane takes every 32nd.
__global__ void __launch_bounds__(kAdamWThreads)
    squares_of_blocks(double* squares, const float* x, const std::int64_t* cuts,
                      std::int64_t blocks, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const std::int64_t block = std::int64_t{blockIdx.x} * (kAdamWThreads / 32) + threadIdx.x / 32;
    if (block >= blocks) return;
    const std::int64_t begin = cuts[block], end = cuts[block + 1];
    double sum = 0;
    const auto add = [&](float v) { sum += static_cast<double>(v) * static_cast<double>(v); };
    std::int64_t i = begin + threadIdx.x % 32;
    constexpr int kLoads = 8;
    for (; i + (kLoads - 1) * 32 < end; i += kLoads * 32) {
        float v[kLoads];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) v[j] = x[i + j * 32];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) add(v[j]);
    }
    for (; i < end; i += 32) add(x[i]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0) squares[block] = sum;
}

template <bool kFours>
__global__ void __launch_bounds__(kAdamWThreads)
    sum_of_two(float* to, const float* a, const float* b, std::int64_t count, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    constexpr int kEach = kFours ? 4 : 1;
    const std::int64_t i = (std::int64_t{blockIdx.x} * kAdamWThreads + threadIdx.x) * kEach;
    if (i >= count) return;
    if constexpr (kFours) {
        float x[4], y[4];
        load4(a + i, x);
        load4(b + i, y);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] += y[j];
        store4(to + i, x);
    } else {
        to[i] = a[i] + b[i];
    }
}

struct AdamWArgs {
    float *params, *grads, *m, *v;
    bf16* copy;  // or null
    std::int64_t count, decayed;
    const double* square_sum;
    float lr, beta1, beta2, eps, decay, clip;
    float correct1, correct2;  // 1 / (1 - beta^step)
    ops::AdamW with;           // for its random draws
    Stamp* stamp;
};

// Updates one parameter; non-const references are replaced.
__device__ __forceinline__ void update(const AdamWArgs& a, float scale, float decay, float& p,
                                       float g, float& m, float& v) {
    g *= scale;
    m = a.beta1 * m + (1.0f - a.beta1) * g;
    v = a.beta2 * v + (1.0f - a.beta2) * g * g;
    const float step = m * a.correct1 / (sqrtf(v * a.correct2) + a.eps);
    p -= a.lr * (step + decay * p);
}

template <typename T>
__device__ __forceinline__ void load(const T* from, float (&v)[4]) {
    load4(from, v);
}
template <typename T>
__device__ __forceinline__ void load(const T* from, float (&v)[1]) {
    v[0] = to_f32(*from);
}
template <typename T>
__device__ __forceinline__ void store(T* to, const float (&v)[4]) {
    store4(to, v);
}
template <typename T>
__device__ __forceinline__ void store(T* to, const float (&v)[1]) {
    *to = from_f32<T>(v[0]);
}

// Stores bf16 parameters from i on with stochastic rounding.
__device__ __forceinline__ void store_by_chance(const AdamWArgs& a, std::int64_t i,
                                                const float (&p)[4]) {
    const std::array<std::uint32_t, 4> draws = a.with.draws(i / 4);
    std::uint32_t half[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) half[j] = ops::stochastic_bf16(p[j], draws[j]);
    *reinterpret_cast<uint2*>(a.copy + i) =
        make_uint2(half[0] | half[1] << 16, half[2] | half[3] << 16);
}
__device__ __forceinline__ void store_by_chance(const AdamWArgs& a, std::int64_t i,
                                                const float (&p)[1]) {
    const std::array<std::uint32_t, 4> draws = a.with.draws(i / 4);
    const auto at = static_cast<int>(i % 4);
    // Not draws[at], which would put the array into memory.
    const std::uint32_t draw = at == 0   ? draws[0]
                               : at == 1 ? draws[1]
                               : at == 2 ? draws[2]
                                         : draws[3];
    reinterpret_cast<std::uint16_t*>(a.copy)[i] = ops::stochastic_bf16(p[0], draw);
}

// kEach parameters per thread: 4 if `count` and `decayed` are multiples of it, else one. Master:
// the type in which parameters with decay are kept. bf16: they are those of `copy`, and `params`
// has only the others; float: `params` has all of them.
template <typename Master, int kEach>
__global__ void __launch_bounds__(kAdamWThreads) update_all(const AdamWArgs a) {
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    constexpr bool kHalf = sizeof(Master) == 2;
    const std::int64_t i = (std::int64_t{blockIdx.x} * kAdamWThreads + threadIdx.x) * kEach;
    if (i >= a.count) return;
    const double squares = *a.square_sum;
    const bool skip = !isfinite(squares);
    const float norm = sqrtf(static_cast<float>(squares));  // too large for f32: scale 0
    const float scale = a.clip > 0 && norm > a.clip ? a.clip / norm : 1.0f;
    const bool decayed = i < a.decayed, half = kHalf && decayed;
    const float decay = decayed ? a.decay : 0.0f;
    float* const whole = a.params + (kHalf ? i - a.decayed : i);  // unless `half`
    if (!skip) {
        float p[kEach], g[kEach], m[kEach], v[kEach];
        if (half) {
            load(a.copy + i, p);
        } else {
            load(whole, p);
        }
        load(a.grads + i, g);
        load(a.m + i, m);
        load(a.v + i, v);
#pragma unroll
        for (int j = 0; j < kEach; ++j) update(a, scale, decay, p[j], g[j], m[j], v[j]);
        if (half) {
            store_by_chance(a, i, p);
        } else {
            store(whole, p);
        }
        store(a.m + i, m);
        store(a.v + i, v);
        if (!kHalf && a.copy) store(a.copy + i, p);
    }
    const float zeros[kEach] = {};
    store(a.grads + i, zeros);
}

template <bool kFours>
__global__ void __launch_bounds__(kAdamWThreads)
    round_all(bf16* to, const float* from, std::int64_t count, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    constexpr int kEach = kFours ? 4 : 1;
    const std::int64_t i = (std::int64_t{blockIdx.x} * kAdamWThreads + threadIdx.x) * kEach;
    if (i >= count) return;
    if constexpr (kFours) {
        float v[4];
        load4(from + i, v);
        store4(to + i, v);
    } else {
        to[i] = from_f32<bf16>(from[i]);
    }
}

unsigned blocks_for(std::int64_t count, int each) {
    return static_cast<unsigned>((count + kAdamWThreads * each - 1) / (kAdamWThreads * each));
}

}  // namespace

std::size_t sum_scratch_bytes() { return kSumBlocks * sizeof(double); }

void add_sum(const Context& ctx, double* sum, Tensor x) {
    MR_CHECK(x.dtype == DType::f32, "a sum is over f32");
    run_sum(ctx, sum, static_cast<const float*>(x.data), x.shape.count(), true);
}
void sum_parts(const Context& ctx, double* sum, const double* x, std::int64_t count) {
    run_sum(ctx, sum, x, count, false);
}

void block_squares(const Context& ctx, double* squares, Tensor x, const std::int64_t* cuts,
                   std::int64_t blocks) {
    MR_CHECK(ctx.cuda && squares && cuts && x.dtype == DType::f32, "squares are of f32");
    if (blocks == 0) return;
    Stamp* stamp = account(ctx, OpKind::optimizer, "square sum",
                           {1, x.bytes(), static_cast<std::uint64_t>(blocks) * 8,
                            2 * static_cast<std::uint64_t>(x.shape.count()), 0});
    constexpr int kWarps = kAdamWThreads / 32;
    launch(ctx, dim3(static_cast<unsigned>((blocks + kWarps - 1) / kWarps)), dim3(kAdamWThreads), 0,
           squares_of_blocks, squares, static_cast<const float*>(x.data), cuts, blocks, stamp);
}

void sum_of(const Context& ctx, Tensor to, Tensor a, Tensor b) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    const std::int64_t count = to.shape.count();
    bool fours = true;
    for (const Tensor& t : {to, a, b}) {
        MR_CHECK(t && t.dtype == DType::f32 && t.shape.count() == count,
                 "what is added is f32 and of one size");
        fours = fours && in_fours(t.data, count);
    }
    if (count == 0) return;
    Stamp* stamp =
        account(ctx, OpKind::add, "sum of two",
                {1, a.bytes() + b.bytes(), to.bytes(), static_cast<std::uint64_t>(count), 0});
    launch(ctx, dim3(blocks_for(count, fours ? 4 : 1)), dim3(kAdamWThreads), 0,
           fours ? sum_of_two<true> : sum_of_two<false>, static_cast<float*>(to.data),
           static_cast<const float*>(a.data), static_cast<const float*>(b.data), count, stamp);
}

void adamw(const Context& ctx, const ops::AdamW& with, Tensor params, Tensor copy, Tensor grads,
           Tensor m, Tensor v, std::int64_t decayed, const double* grad_square_sum) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    const std::int64_t count = grads.shape.count();
    const std::int64_t whole = with.bf16_masters ? count - decayed : count;  // f32 parameters
    bool fours =
        count % 4 == 0 && decayed % 4 == 0 && in_fours(copy.data, 4) && in_fours(params.data, 4);
    MR_CHECK((params || whole == 0) && params.dtype == DType::f32 && params.shape.count() == whole,
             "parameters are f32; with bf16 masters those that have no decay");
    for (const Tensor& t : {grads, m, v}) {
        MR_CHECK(t && t.dtype == DType::f32 && t.shape.count() == count,
                 "parameters, gradients and moments are f32 and equally many");
        fours = fours && in_fours(t.data, 4);
    }
    MR_CHECK(copy ? copy.dtype == DType::bf16 && copy.shape.count() == count : !with.bf16_masters,
             "the copy is bf16, one element per parameter");
    MR_CHECK(decayed >= 0 && decayed <= count && with.step >= 1 && grad_square_sum &&
                 with.first % 4 == 0,
             "the decayed ones are among them, steps begin at 1, and the norm is there");
    if (count == 0) return;
    const auto corrected = [&](float beta) {
        return static_cast<float>(
            1 / (1 - std::pow(static_cast<double>(beta), static_cast<double>(with.step))));
    };
    // Clip 1, moments 3 and 4, step 5, decay and update 4.
    const std::uint64_t masters = with.bf16_masters ? 2 * static_cast<std::uint64_t>(decayed) : 0;
    Stamp* stamp =
        account(ctx, OpKind::optimizer, "adamw",
                {1, params.bytes() + masters + 3 * grads.bytes(),
                 params.bytes() + 3 * grads.bytes() + (with.bf16_masters ? masters : copy.bytes()),
                 17 * static_cast<std::uint64_t>(count), 0});
    const AdamWArgs args{params.f32(),
                         grads.f32(),
                         m.f32(),
                         v.f32(),
                         static_cast<bf16*>(copy.data),
                         count,
                         decayed,
                         grad_square_sum,
                         with.lr,
                         with.beta1,
                         with.beta2,
                         with.eps,
                         with.weight_decay,
                         with.clip,
                         corrected(with.beta1),
                         corrected(with.beta2),
                         with,
                         stamp};
    const auto kernel = with.bf16_masters ? (fours ? update_all<bf16, 4> : update_all<bf16, 1>)
                                          : (fours ? update_all<float, 4> : update_all<float, 1>);
    launch(ctx, dim3(blocks_for(count, fours ? 4 : 1)), dim3(kAdamWThreads), 0, kernel, args);
}

void round_to_bf16(const Context& ctx, Tensor to, Tensor from) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    const std::int64_t count = from.shape.count();
    MR_CHECK(to && from && to.dtype == DType::bf16 && from.dtype == DType::f32 &&
                 to.shape.count() == count,
             "f32 is rounded to as many bf16");
    if (count == 0) return;
    Stamp* stamp = account(ctx, OpKind::optimizer, "round", {1, from.bytes(), to.bytes(), 0, 0});
    const bool fours = in_fours(to.data, count) && in_fours(from.data, count);
    launch(ctx, dim3(blocks_for(count, fours ? 4 : 1)), dim3(kAdamWThreads), 0,
           fours ? round_all<true> : round_all<false>, static_cast<bf16*>(to.data),
           static_cast<const float*>(from.data), count, stamp);
}

}  // namespace mr::cuda
