#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/cuda/timer.h"
#include "lab/norms/norm_measure.h"
#include "ops/norm/norm_cuda.h"

namespace mr::cuda {
namespace {

// Values around 0 from a counter: memory traffic does not depend on them, but the norm needs finite
// numbers.
template <typename T>
__global__ void fill_some(T* x, std::size_t count) {
    wait_for_previous();
    const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += step) {
        x[i] = from_f32<T>(static_cast<float>(i * 2654435761u % 2001) * 0.001f - 1.0f);
    }
}

// Only the memory traffic of norm + residual: four 16-byte loads of each array in flight.
constexpr int kBatch = 4;
__global__ void __launch_bounds__(256)
    two_in_one_out(uint4* out, const uint4* a, const uint4* b, std::size_t count) {
    wait_for_previous();
    let_next_start();
    const std::size_t first = static_cast<std::size_t>(blockIdx.x) * 256 * kBatch + threadIdx.x;
    uint4 x[kBatch], y[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
        if (first + i * 256 >= count) continue;
        x[i] = a[first + i * 256];
        y[i] = b[first + i * 256];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
        if (first + i * 256 >= count) continue;
        out[first + i * 256] =
            make_uint4(x[i].x ^ y[i].x, x[i].y ^ y[i].y, x[i].z ^ y[i].z, x[i].w ^ y[i].w);
    }
}

void fill(const Context& ctx, Tensor t) {
    with_float_type(t.dtype, [&](auto value) {
        using T = decltype(value);
        launch(ctx, dim3(1024), dim3(256), 0, fill_some<T>, static_cast<T*>(t.data),
               static_cast<std::size_t>(t.shape.count()));
    });
}

double measure_bandwidth(const Context& ctx, const Stream& stream, std::byte* memory,
                         std::size_t each) {
    const std::size_t count = each / sizeof(uint4);
    auto* arrays = reinterpret_cast<uint4*>(memory);
    const dim3 grid(static_cast<unsigned>((count + 256 * kBatch - 1) / (256 * kBatch)));
    const double seconds = seconds_per_call(stream, 8, [&](int) {
        launch(ctx, grid, dim3(256), 0, two_in_one_out, arrays, arrays + count, arrays + 2 * count,
               count);
    });
    return 3.0 * static_cast<double>(count * sizeof(uint4)) / seconds;
}

}  // namespace

NormMeasurement measure_norm(std::int64_t hidden, std::span<const std::int64_t> tokens, DType type,
                             ops::NormKind kind, bool many_rows) {
    const DeviceInfo info = require_device();
    NormMeasurement result;
    result.device = info.name;
    const std::int64_t most = *std::max_element(tokens.begin(), tokens.end());
    // Bandwidth is measured over arrays larger than any cache.
    const std::size_t rows_bytes = dtype_bytes(type, static_cast<std::size_t>(most * hidden));
    const std::size_t each =
        DeviceArena::padded(std::max<std::size_t>(rows_bytes, std::size_t{160} << 20));
    DeviceArena memory("norm benchmark",
                       3 * each + 2 * DeviceArena::padded(4 * static_cast<std::size_t>(hidden)));
    const Stream stream;
    Context ctx;
    ctx.cuda = const_cast<Stream*>(&stream);
    ctx.many_rows_norm = many_rows;
    result.bytes_per_second = measure_bandwidth(ctx, stream, memory.data(), each);

    for (const std::int64_t rows : tokens) {
        memory.reset();
        const Shape shape{rows, hidden};
        NormPass pass;
        pass.kind = kind;
        pass.x = memory.tensor(type, shape);
        pass.residual = memory.tensor(type, shape);
        pass.out = memory.tensor(type, shape);
        pass.weight = memory.tensor(DType::f32, {hidden});
        fill(ctx, pass.weight);
        if (kind == ops::NormKind::layer) {
            pass.bias = memory.tensor(DType::f32, {hidden});
            fill(ctx, pass.bias);
        }
        fill(ctx, pass.x);
        fill(ctx, pass.residual);
        const int calls = static_cast<int>(std::clamp<std::int64_t>((1 << 18) / rows, 8, 256));
        const auto body = [&](int) { norm(ctx, pass); };
        NormMeasured m;
        m.tokens = rows;
        m.graph_seconds = seconds_per_call(stream, calls, body);
        m.launched_seconds = seconds_per_call(stream, calls, body, 9, false);
        m.bytes = 3 * pass.x.bytes();
        m.floor_seconds = static_cast<double>(m.bytes) / result.bytes_per_second;
        result.sizes.push_back(m);
    }
    return result;
}

}  // namespace mr::cuda
