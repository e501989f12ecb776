#include "lab/norms/norm_error.h"

#include <cstring>
#include <vector>

#include "core/cuda/device.h"
#include "core/half.h"
#include "ops/norm/norm_cuda.h"

namespace mr::cuda {
namespace {

// Values representable in `type`, as its bytes, and back.
std::vector<std::byte> bytes_of(const std::vector<float>& values, DType type) {
    std::vector<std::byte> bytes(dtype_bytes(type, values.size()));
    if (type == DType::f32) {
        std::memcpy(bytes.data(), values.data(), bytes.size());
        return bytes;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t half =
            type == DType::bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    return bytes;
}
std::vector<float> values_of(const std::vector<std::byte>& bytes, DType type, std::size_t count) {
    std::vector<float> values(count);
    if (type == DType::f32) {
        std::memcpy(values.data(), bytes.data(), bytes.size());
        return values;
    }
    for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t half = 0;
        std::memcpy(&half, bytes.data() + 2 * i, 2);
        values[i] = type == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
    }
    return values;
}

}  // namespace

ops::NormError norm_error(const ops::NormCase& of, DType type, bool many_rows) {
    require_device();
    const Shape shape{of.rows, of.hidden};
    const std::size_t rows = DeviceArena::padded(dtype_bytes(type, of.x.size()));
    const std::size_t cols = DeviceArena::padded(of.weight.size() * sizeof(float));
    DeviceArena memory("norm's errors", 3 * rows + 2 * cols);
    Stream stream;
    Context ctx;
    ctx.cuda = &stream;
    ctx.many_rows_norm = many_rows;
    const auto upload = [&](const std::vector<float>& values, DType as, Shape to) {
        const Tensor t = memory.tensor(as, to);
        const std::vector<std::byte> bytes = bytes_of(values, as);
        stream.to_device(t.data, bytes.data(), bytes.size(), nullptr);
        stream.synchronize();
        return t;
    };
    NormPass pass;
    pass.kind = of.kind;
    pass.eps = of.eps;
    pass.x = upload(of.x, type, shape);
    pass.residual = upload(of.residual, type, shape);
    pass.weight = upload(of.weight, DType::f32, {of.hidden});
    if (!of.bias.empty()) pass.bias = upload(of.bias, DType::f32, {of.hidden});
    pass.out = memory.tensor(type, shape);
    stream.fill(pass.out.data, 0xff, pass.out.bytes());  // NaN where nothing is written
    norm(ctx, pass);
    std::vector<std::byte> bytes(pass.out.bytes());
    stream.to_host(bytes.data(), pass.out.data, bytes.size(), nullptr);
    stream.synchronize();
    return of.error(values_of(bytes, type, of.x.size()));
}

}  // namespace mr::cuda
