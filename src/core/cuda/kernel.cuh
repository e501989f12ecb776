// Used by every kernel: dependent launch, the stage clock, loads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "core/context.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/timeline.h"

namespace mr::cuda {

using bf16 = __nv_bfloat16;

// Device code. The rest also compiles as plain C++, in a third of the time.
#ifdef __CUDACC__

// Dependent launch (sm_90): a kernel may start while its predecessor in the stream still runs.
// The rule that keeps it correct: EVERY kernel that is launched through launch() calls
// wait_for_previous() in every thread before it touches anything another kernel writes (reads and
// writes alike), also where it has nothing to do. Only weights may be touched before, and warps
// that touch nothing else need not wait.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the blocks of the next kernel start as soon as they find room.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ unsigned long long device_clock() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Returns x, opaque to the compiler. Values computed from it inside a loop are computed there; the
// compiler cannot compute them before the loop and keep them in registers.
__device__ __forceinline__ int computed_here(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
// threadIdx.x, opaque likewise: in a long kernel values derived from it would occupy registers that
// are needed elsewhere.
__device__ __forceinline__ int thread_here() {
    return computed_here(static_cast<int>(threadIdx.x));
}

// Zeros that look like a computed result to the compiler. A register that is not written on every
// path to its read counts as live from the kernel's beginning on: without this, a long kernel
// spills hundreds of bytes.
template <typename T>
__device__ __forceinline__ void define(T& x) {
    static_assert(sizeof(T) % 4 == 0);
    std::uint32_t words[sizeof(T) / 4];
#pragma unroll
    for (std::uint32_t& word : words) asm volatile("mov.b32 %0, 0;" : "=r"(word));
    memcpy(&x, words, sizeof(T));
}

// The threads that work on one thing together: a block, or some warps of one. Barrier 0 is the
// block's.
struct BlockTeam {
    __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
};
template <int kThreads>
struct WarpsTeam {
    int first;    // first thread of the team; a multiple of 32
    int barrier;  // 1 to 15, not shared with other teams
    __device__ __forceinline__ int thread() const { return thread_here() - first; }
    __device__ __forceinline__ void sync() const {
        asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
    }
};

// Stamps the begin of a stage from one thread of
// every block (null: no stamp); the earliest counts.
__device__ __forceinline__ void stamp_begin(Stamp* stamp) {
    if (stamp && threadIdx.x == 0) atomicMin(&stamp->begin, device_clock());
}
__device__ __forceinline__ void stamp_end(Stamp* stamp) {
    if (stamp && threadIdx.x == 0) atomicMax(&stamp->end, device_clock());
}
// Stamps begin and end. Construct it after wait_for_previous().
class StageClock {
  public:
    __device__ explicit StageClock(Stamp* stamp) : stamp_(stamp) { stamp_begin(stamp_); }
    __device__ ~StageClock() { stamp_end(stamp_); }
    StageClock(const StageClock&) = delete;

  private:
    Stamp* stamp_;
};

#endif  // __CUDACC__

// Whether a kernel may start while its predecessor runs: the context allows it, and the kernels in
// use are those for sm_90, which support it.
inline bool launches_dependent(const Context& ctx) {
    return ctx.dependent_launch && this_gpu().sm >= 90;
}

// kernel<<<grid, block, shared, ctx's stream>>>(args...), checked, with dependent launch if the
// context asks for it and the device supports it.
void prepare_kernel(const void* kernel);  // once per kernel; cheap afterwards

template <typename... Params, typename... Args>
void launch(const Context& ctx, dim3 grid, dim3 block, std::size_t shared,
            void (*kernel)(Params...), Args&&... args) {
    prepare_kernel(reinterpret_cast<const void*>(kernel));
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = ctx.cuda->raw();
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = launches_dependent(ctx) ? 1 : 0;
    MR_CUDA_CALL(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// Enters the work in the ledger and returns the kernel's stamp (null without a timeline).
inline Stamp* account(const Context& ctx, OpKind kind, const char* name, const OpRecord& work) {
    if (ctx.ledger) ctx.ledger->add(kind, work);
    return ctx.timeline ? ctx.timeline->add(kind, name, ctx.layer, work) : nullptr;
}

// Raises a kernel's shared-memory limit, once for each size; cheap afterwards.
void raise_shared(const void* kernel, std::size_t bytes);
template <typename Kernel>
void allow_shared(Kernel* kernel, std::size_t bytes) {
    // Every kernel has 48 KB without asking, but its static arrays count towards them.
    if (bytes > 32 * 1024) raise_shared(reinterpret_cast<const void*>(kernel), bytes);
}

#ifdef __CUDACC__

// One value of any storage type as f32, and back.
__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(bf16 x) { return __bfloat162float(x); }
template <typename T>
__device__ __forceinline__ T from_f32(float x);
template <>
__device__ __forceinline__ float from_f32<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ __half from_f32<__half>(float x) {
    return __float2half_rn(x);
}
template <>
__device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
    return x;
}

#endif  // __CUDACC__

// Calls f with a value of the C++ type that stores `dtype` (f32, f16, bf16).
template <typename F>
void with_float_type(DType dtype, F&& f) {
    switch (dtype) {
        case DType::f32:
            return f(float{});
        case DType::f16:
            return f(__half{});
        case DType::bf16:
            return f(bf16{});
        default:
            MR_CHECK(false, "the type is f32, f16 or bf16");
    }
}

}  // namespace mr::cuda
