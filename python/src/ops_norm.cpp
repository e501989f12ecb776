#include "ops.h"
#include "ops/add/add.h"
#include "ops/norm/norm.h"
#include "ops/norm/norm_backward.h"
#include "ops/norm/norm_backward_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/norm/norm_weights_cuda.h"

namespace mr::python {
namespace {

struct Shapes {
    const NormCall& call;
    Tensor rows(Address data, DType type = DType::f32) const {
        return {reinterpret_cast<void*>(data), type, {call.rows, call.cols}};
    }
    Tensor columns(Address data, DType type = DType::f32) const {
        return {reinterpret_cast<void*>(data), type, {call.cols}};
    }
};

std::size_t cpu_backward_scratch(int threads, const void* of) {
    const auto& call = *static_cast<const NormCall*>(of);
    return ops::norm_backward_scratch_bytes(call.rows, call.cols, threads);
}

// A missing tensor must have no shape either.
Tensor given(Tensor tensor) { return tensor ? tensor : Tensor(); }

}  // namespace

bool norm_takes_weights([[maybe_unused]] DType type, [[maybe_unused]] std::int64_t rows,
                        [[maybe_unused]] std::int64_t cols) {
#ifdef MR_CUDA
    return cuda::norm_takes_weights_like_rows(type, rows, cols);
#else
    return false;
#endif
}

void norm_residual(const NormCall& call, Address x, Address residual, Address weight, Address bias,
                   Address out, Address sum, Address stream) {
    if (call.rows == 0) return;
    const Shapes shape{call};
    if (!call.cuda) {
        on_cpu(nullptr, nullptr, [&](const Context& ctx) {
            const Tensor s = shape.rows(sum);
            ops::add(ctx, s, shape.rows(x), shape.rows(residual));
            if (call.kind == ops::NormKind::layer) {
                ops::layernorm(ctx, shape.rows(out), s, shape.columns(weight),
                               given(shape.columns(bias)), call.eps);
            } else {
                ops::rmsnorm(ctx, shape.rows(out), s, shape.columns(weight), call.eps);
            }
        });
        return;
    }
    on_cuda(stream, {}, [&]([[maybe_unused]] const Context& ctx) {
#ifdef MR_CUDA
        cuda::NormPass pass;
        pass.kind = call.kind;
        pass.eps = call.eps;
        pass.x = shape.rows(x, call.x_type);
        pass.residual = shape.rows(residual, call.residual_type);
        pass.sum = given(shape.rows(sum, call.residual_type));
        pass.out = shape.rows(out, call.x_type);
        pass.weight = shape.columns(weight, call.weight_type);
        pass.bias = given(shape.columns(bias, call.weight_type));
        cuda::norm(ctx, pass);
#endif
    });
}

void norm_residual_backward(const NormCall& call, [[maybe_unused]] DType dy_type, Address dy,
                            Address ds, Address s, Address weight, Address dx, Address dweight,
                            Address dbias, [[maybe_unused]] Address scratch, Address stream) {
    if (call.rows == 0) return;
    const Shapes shape{call};
    if (!call.cuda) {
        on_cpu(&cpu_backward_scratch, &call, [&](const Context& ctx) {
            ops::norm_backward(ctx, {call.kind, call.eps, shape.rows(dx), given(shape.rows(ds)),
                                     shape.columns(dweight), given(shape.columns(dbias)),
                                     shape.rows(dy), shape.rows(s), shape.columns(weight)});
        });
        return;
    }
    on_cuda(stream, {reinterpret_cast<std::byte*>(scratch), norm_backward_scratch(call.cols)},
            [&]([[maybe_unused]] const Context& ctx) {
#ifdef MR_CUDA
                cuda::NormBackward pass;
                pass.kind = call.kind;
                pass.eps = call.eps;
                pass.dx = shape.rows(dx, call.x_type);
                pass.residual = given(shape.rows(ds, call.x_type));
                pass.dweight = shape.columns(dweight);
                pass.dbias = given(shape.columns(dbias));
                pass.dy = shape.rows(dy, dy_type);
                pass.x = shape.rows(s, call.x_type);
                pass.weight = shape.columns(weight);
                cuda::norm_backward(ctx, pass);
#endif
            });
}

std::size_t norm_backward_scratch([[maybe_unused]] std::int64_t cols) {
#ifdef MR_CUDA
    return cuda::norm_backward_scratch_bytes(cols);
#else
    return 0;
#endif
}

}  // namespace mr::python
