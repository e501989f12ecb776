// One team per block: decode_parts() over a grid of kv heads, tiles and parts.
#include "ops/attention/paged/decode.cuh"

namespace mr::cuda::attn {
namespace {

template <typename T, int D>
__global__ void __launch_bounds__(kDecodeThreads) decode_kernel(const __grid_constant__ Args a) {
    __shared__ DecodeShared<D> shared;
    wait_for_previous();
    let_next_start();
    const StageClock clock(a.stamp);
    const DecodePlace place{static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                            static_cast<int>(blockIdx.z), static_cast<int>(gridDim.z)};
    decode_parts<T, D>(a, a.keys, a.values, place, shared, BlockTeam{});
}

template <typename T>
bool launch_decode(const Context& ctx, dim3 grid, const Args& args) {
    switch (args.head_dim) {
        case 64:
            return launch(ctx, grid, kDecodeThreads, 0, decode_kernel<T, 64>, args), true;
        case 80:
            return launch(ctx, grid, kDecodeThreads, 0, decode_kernel<T, 80>, args), true;
        case 96:
            return launch(ctx, grid, kDecodeThreads, 0, decode_kernel<T, 96>, args), true;
        case 128:
            return launch(ctx, grid, kDecodeThreads, 0, decode_kernel<T, 128>, args), true;
        case 256:
            return launch(ctx, grid, kDecodeThreads, 0, decode_kernel<T, 256>, args), true;
        default:
            return false;
    }
}

}  // namespace

bool decode_on_tensor_cores(const Context& ctx, DType dtype, dim3 grid, const Args& args) {
    if (dtype == DType::bf16) return launch_decode<bf16>(ctx, grid, args);
    if (dtype == DType::f16) return launch_decode<__half>(ctx, grid, args);
    return false;
}

}  // namespace mr::cuda::attn
