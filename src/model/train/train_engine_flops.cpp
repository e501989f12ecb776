// FLOPs of a step, from the spec.
#include "model/train/train_engine.h"

namespace mr::model {

std::uint64_t TrainEngine::flops_per_token(const ModelSpec& spec, int seq) {
    const auto n = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
    const std::uint64_t layer = n(spec.dim) * n(2 * spec.q_dim() + 2 * spec.kv_dim()) +
                                n(spec.dim) * n(spec.hidden) * (spec.gated ? 3 : 2);
    const std::uint64_t matrices = n(spec.layers) * layer + n(spec.vocab) * n(spec.dim);
    // Scores and their product with values, over half the keys on average.
    const std::uint64_t attention = n(spec.layers) * n(spec.q_dim()) * n(seq);
    if (spec.diffusion && spec.diffusion->block > 0) {
        // A noisy and a clean row for each token, and a block of noisy keys besides; but the last
        // layer needs only keys and values of clean rows. The LM head computes only unknown tokens:
        // k of a block, with each k from 1 to the block's length equally often.
        const std::uint64_t block = n(spec.diffusion->block);
        const std::uint64_t own = n(spec.layers) * n(2 * spec.q_dim()) * block;
        const std::uint64_t unread =
            layer - n(spec.dim) * n(2 * spec.kv_dim()) + n(spec.q_dim()) * n(seq);
        return 6 * (2 * (n(spec.layers) * layer + attention) - unread + own +
                    n(spec.vocab) * n(spec.dim) * (block + 1) / (2 * block));
    }
    return 6 * (matrices + attention);
}

std::uint64_t TrainEngine::remade_flops_per_token(const ModelSpec& spec, int seq,
                                                  Recompute recompute) {
    if (recompute != Recompute::full) return 0;  // only norms and activations
    const auto n = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
    std::uint64_t layer = n(spec.dim) * n(spec.q_dim() + 2 * spec.kv_dim()) +
                          n(spec.dim) * n(spec.hidden) * (spec.gated ? 2 : 1);
    // Outputs that only go to the residual stream are not needed: the MLP's never, attention's only
    // if the MLP reads it.
    if (spec.residual != Residual::parallel) layer += n(spec.q_dim()) * n(spec.dim);
    const std::uint64_t whole = layer + n(spec.q_dim()) * n(seq);
    if (spec.diffusion && spec.diffusion->block > 0) {  // as above
        return 2 * (2 * n(spec.layers) * whole - whole + n(spec.dim) * n(2 * spec.kv_dim()));
    }
    return 2 * n(spec.layers) * whole;
}

}  // namespace mr::model
