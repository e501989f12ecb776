#include "train/plan/work.h"

namespace mr::plan {
namespace {

// The least time of a kernel, from its first block to the next kernel's. Assumed; it keeps a plan
// from cutting a batch into tiny pieces.
constexpr double kKernelSeconds = 2e-6;
// A step of GPT-2's 12 layers has about 400 launches (docs/notebook/training.md), a third of
// them forward.
constexpr double kForwardKernels = 11, kBackwardKernels = 22;

// Bytes of an element: activations are bf16, the residual stream and its gradient f32.
constexpr double kNormForward = 6;    // reads x (4), writes h (2)
constexpr double kNormBackward = 16;  // reads dy (2), x (4), dx (4); writes dx (4) and its copy (2)

}  // namespace

Work& Work::operator+=(const Work& other) {
    products += other.products;
    attention += other.attention;
    passes += other.passes;
    kernels += other.kernels;
    return *this;
}
Work Work::operator*(double by) const {
    return {products * by, attention * by, passes * by, kernels * by};
}
Seconds& Seconds::operator+=(const Seconds& other) {
    products += other.products;
    attention += other.attention;
    passes += other.passes;
    return *this;
}
Seconds Seconds::operator*(double by) const { return {products * by, attention * by, passes * by}; }

LayerWork layer_work(const ModelSpec& spec, int seq, Recompute recompute) {
    const double dim = spec.dim, q = spec.q_dim(), kv = spec.kv_dim(), hidden = spec.hidden;
    const double to_qkv = dim * (q + 2 * kv), from_attention = q * dim;
    const double to_hidden = dim * hidden * (spec.gated ? 2 : 1), from_hidden = hidden * dim;
    LayerWork work;
    // Scores and their product with the values: 2 + 2 FLOPs over half of the keys. The backward has
    // five products, the forward two.
    const double scores = q * seq;
    const double norms = 2 * kNormForward * dim;
    const double activation = (spec.gated ? 6 : 4) * hidden;  // reads 2 or 1, writes 1, of 2 bytes
    const double turned = spec.rope.rotary > 0 ? 4 * (q + kv) : 0;  // in place
    const double heads = spec.qk_norm ? 4 * (q + kv) : 0;
    work.forward = {2 * (to_qkv + from_attention + to_hidden + from_hidden), 2 * scores,
                    norms + activation + turned + heads, kForwardKernels};
    const double biases = (spec.qkv_bias ? 2 * (q + 2 * kv) : 0);
    work.backward = {
        2 * work.forward.products, 5 * scores,
        2 * kNormBackward * dim + (spec.gated ? 10 : 6) * hidden + turned + 2 * heads + biases,
        kBackwardKernels};
    if (recompute == Recompute::light) {
        work.again = {0, 0, norms + activation, 3};
    } else if (recompute == Recompute::full) {
        // As TrainEngine::remade_flops_per_token(): outputs that only go to the residual stream are
        // not recomputed.
        const bool parallel = spec.residual == model::Residual::parallel;
        work.again = {2 * (to_qkv + to_hidden + (parallel ? 0 : from_attention)), 2 * scores,
                      work.forward.passes, kForwardKernels};
    }
    return work;
}

LayerWork embedding_work(const ModelSpec& spec) {
    const double dim = spec.dim;
    return {{0, 0, 6 * dim, 1}, {0, 0, 8 * dim, 3}, {}};
}

LayerWork head_work(const ModelSpec& spec) {
    const double dim = spec.dim, vocab = spec.vocab;
    // The loss reads logits and writes their gradient in one pass.
    return {{2 * dim * vocab, 0, kNormForward * dim, 2},
            {4 * dim * vocab, 0, kNormBackward * dim + 4 * vocab, 4},
            {}};
}

Seconds seconds_of(const ClusterSpec& cluster, const ModelSpec& spec, const Work& work,
                   double tokens) {
    const DeviceSpec& device = cluster.device;
    const double attention = spec.head_dim > 64 ? device.attention128 : device.attention64;
    return {
        cluster.pace * tokens * work.products / (device.peak * device.products),
        cluster.pace * tokens * work.attention / (device.peak * attention),
        pass_seconds(cluster, tokens * work.passes) + cluster.pace * kKernelSeconds * work.kernels};
}

double pass_seconds(const ClusterSpec& cluster, double bytes) {
    return cluster.pace * bytes / (cluster.device.bandwidth * cluster.device.passes);
}

Parameters parameters_of(const ModelSpec& spec) {
    ModelSpec one = spec, two = spec;
    one.own.clear();
    two.own.clear();
    one.layers = 1;
    two.layers = 2;
    Parameters out;
    out.layer = static_cast<double>(two.parameters() - one.parameters());
    out.table = static_cast<double>(spec.vocab) * spec.dim;
    const double positions =
        spec.learned_positions ? static_cast<double>(spec.context) * spec.dim : 0;
    out.embedding = out.table + positions;
    out.head = spec.tied_embeddings ? 0 : out.table;
    out.last_norm = static_cast<double>(one.parameters()) - out.layer - out.embedding - out.head;
    return out;
}

}  // namespace mr::plan
