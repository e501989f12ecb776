#include "train/plan/memory.h"

#include <algorithm>
#include <bit>

namespace mr::plan {
namespace {

// Bytes per element, as in TrainEngine::plan().
constexpr double kWeight = 2, kMaster = 4, kGradient = 4, kMoments = 8;

}  // namespace

double stage_parameters(const Parameters& all, const Layout& layout, int stage, int layers) {
    double count = all.layer * layers;
    if (stage == 0) count += all.embedding;
    if (stage == layout.pipeline - 1) {
        count += all.last_norm + all.head;
        // Both ends hold a tied table.
        if (all.head == 0 && layout.pipeline > 1) count += all.table;
    }
    return count;
}

PassMemory pass_memory(const Job& job, const Layout& layout, int sequences) {
    const auto plan = [&](int layers, bool head) {
        ModelSpec spec = job.spec;
        spec.layers = layers;
        spec.own.clear();
        model::TrainShape shape;
        shape.sequences = sequences;
        shape.seq = job.seq;
        shape.head_rows =
            head ? model::default_head_rows(spec, shape.tokens(), DType::bf16) : std::int64_t{1};
        const MemoryPlan plan = model::TrainPass::plan(spec, shape, layout.recompute, DType::bf16);
        return std::pair(static_cast<double>(plan.items()[0].bytes),
                         static_cast<double>(plan.items()[1].bytes));
    };
    const auto [one, workspace] = plan(1, false);
    const double layer = plan(2, false).first - one;
    // Tensor parallelism splits the matrices, their outputs, and the residual stream between them.
    const double by = 1.0 / layout.tensor;
    // With recomputation, buffers that all layers share are in `one` besides a layer's own.
    return {by * layer, by * (one - layer), by * workspace, by * plan(1, true).second};
}

double boundary_bytes(const Job& job, const Layout& layout) {
    const double sequences = static_cast<double>(job.batch) / layout.data / layout.micro_batches;
    return 4 * sequences * job.seq * job.spec.dim / layout.tensor;
}

StageMemory stage_memory(const Job& job, const Layout& layout, const Parameters& all,
                         const PassMemory& pass, int stage, int layers) {
    StageMemory out;
    out.layers = layers;
    out.parameters = stage_parameters(all, layout, stage, layers) / layout.tensor;
    const double p = out.parameters, ranks = layout.data;
    const auto part = [&](int from_zero) { return layout.zero >= from_zero ? p / ranks : p; };
    out.weights = kWeight * part(3);
    out.masters = job.bf16_masters ? 0 : kMaster * part(1);
    out.optimizer = kMoments * part(1);
    // A tree over the micro-batches of a rank holds a sum for every bit of their number.
    const auto sums = job.exact ? std::bit_width(static_cast<unsigned>(layout.micro_batches)) : 1;
    out.gradients = kGradient * sums * part(2);

    // 1F1B: this many micro-batches are in flight. A stage with several parts of the layers starts
    // earlier by as many as the other parts admit.
    const int stages = layout.pipeline;
    double on_their_way = std::min(layout.micro_batches, stages - stage);
    if (layout.interleave > 1) {
        on_their_way = std::min<double>(layout.micro_batches,
                                        on_their_way + (stages - 1.0) / layout.interleave);
    }
    out.activations = on_their_way * pass.layer * layers + pass.output;
    out.workspace = stage == stages - 1 ? pass.head_workspace : pass.workspace;

    const double bucket = std::max(all.layer, stage == 0 ? all.embedding : 0) / layout.tensor;
    if (layout.data > 1) {
        if (job.exact) out.buffers += kGradient * bucket;             // parts from other ranks
        if (layout.zero >= 2) out.buffers += 2 * kGradient * bucket;  // before sharding
        if (layout.zero >= 3) out.buffers += 2 * kWeight * bucket;    // this layer and the next
    }
    if (stages > 1) out.buffers += 4 * boundary_bytes(job, layout);  // both directions, two each
    return out;
}

}  // namespace mr::plan
