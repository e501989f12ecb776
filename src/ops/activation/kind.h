#pragma once

namespace mr::ops {

enum class Activation {
    silu,       // x * sigmoid(x)
    gelu,       // exact, by erf
    gelu_tanh,  // GPT-2's approximation
    relu,
};

}  // namespace mr::ops
