// For tests: the reference passes over rows, by name.
#pragma once

#include "ops/norm/norm_cuda.h"

namespace mr::cuda {

inline NormPass pass_of(ops::NormKind kind, Tensor out, Tensor x, Tensor weight, Tensor bias,
                        float eps) {
    NormPass pass;
    pass.kind = kind;
    pass.eps = eps;
    pass.x = x;
    pass.out = out;
    pass.weight = weight;
    pass.bias = bias;
    return pass;
}
inline void rmsnorm(const Context& ctx, Tensor out, Tensor x, Tensor weight, float eps) {
    norm(ctx, pass_of(ops::NormKind::rms, out, x, weight, {}, eps));
}
inline void layernorm(const Context& ctx, Tensor out, Tensor x, Tensor weight, Tensor bias,
                      float eps) {
    norm(ctx, pass_of(ops::NormKind::layer, out, x, weight, bias, eps));
}
// out = norm(x + residual); `sum` and `bias` may be none.
inline void norm_residual(const Context& ctx, Tensor out, Tensor sum, Tensor x, Tensor residual,
                          Tensor weight, Tensor bias, float eps, ops::NormKind kind) {
    NormPass pass = pass_of(kind, out, x, weight, bias, eps);
    pass.residual = residual;
    pass.sum = sum;
    norm(ctx, pass);
}

}  // namespace mr::cuda
