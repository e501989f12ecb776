#include "train/plan/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/error.h"
#include "model/train/train_engine.h"
#include "model/train/train_ops.h"
#include "train/layout.h"
#include "train/parallel/schedule.h"
#include "train/plan/memory.h"

namespace mr::plan {
namespace {

// While a collective runs, its kernels occupy this share of the multiprocessors: NCCL's 16 channels
// of an H100's 132.
constexpr double kSlowedBy = 16.0 / 132;
constexpr double kWeightBytes = 2;  // bf16

// Bytes of device memory that the optimizer moves for an element: the norm reads the gradient (4);
// AdamW reads master, gradient and moments (16) and writes master, moments, copy and a zero (18).
constexpr double optimizer_bytes(bool bf16_masters) { return bf16_masters ? 32 : 38; }

// One stage's part of a step, seconds of one micro-batch.
struct Stage {
    int layers = 0;
    bool first = false, last = false;
    Seconds forward, backward, again;
    double whole() const { return forward.sum() + backward.sum() + again.sum(); }
    double back() const { return backward.sum() + again.sum(); }
};

Stage stage_of(const ClusterSpec& cluster, const Job& job, const Layout& layout, int stage,
               int layers) {
    Stage out;
    out.layers = layers;
    out.first = stage == 0;
    out.last = stage == layout.pipeline - 1;
    // Each GPU of a tensor-parallel group has its part of all work, but launches every kernel.
    const double tokens = job.tokens() / layout.data / layout.micro_batches / layout.tensor;
    const auto add = [&](const LayerWork& work, double times) {
        const auto of = [&](const Work& part) {
            return seconds_of(cluster, job.spec, part * times, tokens);
        };
        out.forward += of(work.forward);
        out.backward += of(work.backward);
        out.again += of(work.again);
    };
    add(layer_work(job.spec, job.seq, layout.recompute), layers);
    if (out.first) add(embedding_work(job.spec), 1);
    if (out.last) add(head_work(job.spec), 1);
    return out;
}

// The exposed part of communication of `seconds` beside computation of `beside`. `tail` seconds of
// it come when nothing is left to compute.
double exposed(double seconds, double beside, double tail) {
    const double waits = std::max(std::min(tail, seconds), seconds - beside);
    return waits + kSlowedBy * (seconds - waits);
}

struct DataTraffic {
    Traffic in_steps;   // over all micro-batches, without the end of the step
    double at_end = 0;  // exposed seconds
};

DataTraffic data_traffic(const ClusterSpec& cluster, const Job& job, const Layout& layout,
                         const Parameters& all, const Stage& stage, double parameters) {
    DataTraffic out;
    if (layout.data == 1) return out;
    const Group group = group_of(cluster, layout.data, layout.tensor);
    const double calls = stage.layers + (stage.first ? 1 : 0);  // a bucket is a layer, or the table
    const double gradient = job.exact ? 4 : 2;
    // The table's gradient is complete only when the backward ends; in other stages, a layer's.
    const double tail_part = (stage.first ? all.embedding : all.layer) / layout.tensor / parameters;
    const int passes = layout.micro_batches;
    Traffic& t = out.in_steps;
    const auto add = [&](double bytes, Rounds rounds, double times) {
        const double seconds = collective_seconds(cluster, group, bytes, calls, rounds);
        t.sent += times * collective_sent(group, bytes, rounds);
        t.seconds += times * seconds;
        return seconds;
    };
    if (layout.zero <= 1) {
        // Once per step, after the backward of the last micro-batch.
        const double seconds =
            add(gradient * parameters, layout.zero == 0 ? Rounds::two : Rounds::one, 1);
        out.at_end += exposed(seconds, stage.back(), tail_part * seconds);
    } else {
        // After every micro-batch, since no rank has room for a whole sum.
        const double reduce = add(gradient * parameters, Rounds::one, passes);
        double beside_forward = 0, beside_backward = reduce;
        if (layout.zero == 3) {
            beside_forward = add(kWeightBytes * parameters, Rounds::one, passes);
            beside_backward += add(kWeightBytes * parameters, Rounds::one, passes);
        }
        const double shown = exposed(beside_forward, stage.forward.sum(), 0) +
                             exposed(beside_backward, stage.back(), 0);
        t.exposed = passes * shown;
        out.at_end += tail_part * reduce;
        // The first layer's parameters must be waited for.
        if (layout.zero == 3) out.at_end += tail_part * beside_forward;
    }
    if (layout.zero == 1 || layout.zero == 2) {
        // New parameters, after the optimizer.
        out.at_end += add(kWeightBytes * parameters, Rounds::one, 1);
    }
    return out;
}

Traffic tensor_traffic(const ClusterSpec& cluster, const Job& job, const Layout& layout,
                       const Stage& stage) {
    Traffic out;
    if (layout.tensor == 1) return out;
    const Group group = group_of(cluster, layout.tensor, 1);
    const double tokens = job.tokens() / layout.data / layout.micro_batches;
    const double bytes = 2 * tokens * job.spec.dim;
    // Two sums per layer forward, two backward; the forward's again with recomputation.
    const double calls = stage.layers * (layout.recompute == Recompute::full ? 6 : 4) +
                         (stage.first ? 1 : 0) + (stage.last ? 1 : 0);
    const double times = layout.micro_batches;
    out.sent = times * calls * collective_sent(group, bytes, Rounds::two);
    out.seconds = times * collective_seconds(cluster, group, calls * bytes, calls, Rounds::two);
    out.exposed = out.seconds;  // the next GEMM waits for it
    return out;
}

Traffic pipeline_traffic(const ClusterSpec& cluster, const Job& job, const Layout& layout,
                         const Parameters& all, double micro_batch_seconds) {
    Traffic out;
    if (layout.pipeline == 1) return out;
    const double bytes = boundary_bytes(job, layout);
    const double once = send_seconds(cluster, bytes, layout.data * layout.tensor);
    const double passes = layout.micro_batches;
    // Forward and backward, one message for each part of the layers.
    const double messages = 2.0 * layout.interleave;
    out.sent = passes * messages * bytes;
    out.seconds = passes * messages * once;
    // While the pipeline fills and drains, each stage waits for the one before it; between, only
    // for what other micro-batches do not hide.
    out.exposed = 2 * (layout.pipeline - 1) * once +
                  passes * std::max(0.0, messages * once - micro_batch_seconds);
    if (job.spec.tied_embeddings) {
        // Both ends exchange their parts of the table's gradient, f32, after all computation.
        const double table = 4 * all.table / layout.tensor;
        const int apart = (layout.pipeline - 1) * layout.data * layout.tensor;
        const double seconds = send_seconds(cluster, table, apart);
        out.sent += table;
        out.seconds += seconds;
        out.exposed += seconds;
    }
    return out;
}

double optimizer_seconds(const ClusterSpec& cluster, const Job& job, const Layout& layout,
                         double parameters) {
    const double own = layout.zero >= 1 ? parameters / layout.data : parameters;
    double bytes = own * optimizer_bytes(job.bf16_masters);
    if (job.exact) {
        // A sum of two reads both and writes one: over the micro-batches of a rank, then over the
        // parts from the other ranks.
        const double summed = layout.zero >= 2 ? parameters / layout.data : parameters;
        bytes += 12 * summed * (layout.micro_batches - 1);
        if (layout.data > 1) bytes += 4 * parameters;
    }
    return pass_seconds(cluster, bytes);
}

}  // namespace

double Cost::step() const {
    return forward.sum() + backward.sum() + again.sum() + optimizer + bubble + data.exposed +
           tensor.exposed + pipeline.exposed;
}

double Cost::most_memory() const {
    double most = 0;
    for (const StageMemory& stage : stages) most = std::max(most, stage.total());
    return most;
}

std::string Cost::binds() const {
    struct Part {
        const char* name;
        double seconds;
    };
    const Part parts[] = {
        {"matrix products", forward.products + backward.products},
        {"attention", forward.attention + backward.attention},
        {"passes over memory between products", forward.passes + backward.passes},
        {"recomputation", again.sum()},
        {"the optimizer", optimizer},
        {"the pipeline's bubble", bubble},
        {"communication of gradients and parameters", data.exposed},
        {"communication inside of layers", tensor.exposed},
        {"communication between stages", pipeline.exposed},
    };
    const Part* most =
        std::max_element(std::begin(parts), std::end(parts),
                         [](const Part& a, const Part& b) { return a.seconds < b.seconds; });
    return fmt::format("{} ({:.0f}% of the step)", most->name, 100 * most->seconds / step());
}

bool fits(const Cost& cost, const ClusterSpec& cluster) {
    return cost.most_memory() <= kMemoryShare * static_cast<double>(cluster.device.memory);
}

std::vector<int> stage_layers(const ClusterSpec& cluster, const Job& job, const Layout& layout) {
    const int stages = layout.pipeline, layers = job.spec.layers;
    if (stages == 1) return {layers};
    const double layer =
        stage_of(cluster, job, layout, 0, 1).whole() - stage_of(cluster, job, layout, 0, 0).whole();
    const double head = stage_of(cluster, job, layout, stages - 1, 0).whole();
    return train::balanced_layers(layers, stages, layer, head);
}

train::TrainOptions options_of(const Job& job, const Layout& layout) {
    const int grains = layout.data * layout.micro_batches;
    train::TrainOptions out;
    // A grain is a pass. train refuses far smaller batches than those that an int cannot hold.
    out.batch = static_cast<int>(
        std::min<std::int64_t>(job.batch / grains, std::numeric_limits<int>::max()));
    out.accumulate = grains;
    out.seq = job.seq;
    out.recompute = model::recompute_name(layout.recompute);
    out.masters = job.bf16_masters ? "bf16" : "f32";
    out.reduce = job.exact ? "exact" : "fast";
    out.zero = layout.zero;
    out.pipeline = layout.pipeline;
    out.micro_batches = layout.micro_batches;
    out.cuda = true;
    return out;
}

namespace {

// What train says of the layout before its first step; empty: nothing.
std::string train_fault(const Job& job, const Layout& layout) {
    constexpr std::int64_t kMost = 1 << 20;  // grains, as train's own limit
    if (std::int64_t{layout.data} * layout.micro_batches > kMost) {
        return fmt::format("{} replicas x {} micro-batches are more than {} grains", layout.data,
                           layout.micro_batches, kMost);
    }
    try {
        train::TrainOptions options = options_of(job, layout);
        const train::RankGrid grid = train::settle_layout(options, layout.gpus(), false);
        train::require_stages(options, grid, job.spec, false);
        model::require_trainable_heads(job.spec, true);
    } catch (const Error& error) {
        const ErrorInfo& info = error.info();
        return fmt::format("'millrace train' refuses it: {}{}{}: {}", info.field,
                           info.value.empty() ? "" : " ", info.value, info.problem);
    }
    return {};
}

}  // namespace

std::string layout_fault(const ClusterSpec& cluster, const Job& job, const Layout& layout) {
    if (layout.gpus() != cluster.gpus) {
        return fmt::format("--data {} x --pipeline {}{} are {} GPUs, and --gpus is {}", layout.data,
                           layout.pipeline,
                           layout.tensor > 1 ? fmt::format(" x --tensor {}", layout.tensor) : "",
                           layout.gpus(), cluster.gpus);
    }
    if (layout.pipeline > job.spec.layers) {
        return fmt::format("--pipeline {} is more than the {} layers", layout.pipeline,
                           job.spec.layers);
    }
    if (layout.tensor > cluster.node || cluster.node % layout.tensor != 0) {
        return fmt::format("--tensor {} does not divide the {} GPUs of a node", layout.tensor,
                           cluster.node);
    }
    if (layout.interleave > 1 && layout.interleave * layout.pipeline > job.spec.layers) {
        return fmt::format("--interleave {} x --pipeline {} is more than the {} layers",
                           layout.interleave, layout.pipeline, job.spec.layers);
    }
    const std::int64_t grains = std::int64_t{layout.data} * layout.micro_batches;
    if (job.batch % grains != 0) {
        return fmt::format("--batch {} is not a multiple of {} replicas x {} micro-batches",
                           job.batch, layout.data, layout.micro_batches);
    }
    if (!layout.only_to_compare()) return train_fault(job, layout);
    if (job.exact && !std::has_single_bit(static_cast<std::uint64_t>(grains))) {
        return fmt::format(
            "{} replicas x {} micro-batches are no power of two, which exact sums need",
            layout.data, layout.micro_batches);
    }
    return {};
}

Cost cost_of(const ClusterSpec& cluster, const Job& job, const Layout& layout) {
    MR_CHECK(layout_fault(cluster, job, layout).empty(), "the layout is one of the cluster");
    const Parameters all = parameters_of(job.spec);
    const std::vector<int> layers = stage_layers(cluster, job, layout);
    const auto sequences = static_cast<int>(job.batch / layout.data / layout.micro_batches);
    const PassMemory pass = pass_memory(job, layout, sequences);
    const double times = layout.micro_batches;
    Cost out;
    double slowest = -1;
    double at_end = -1;  // after the last micro-batch: the slowest stage counts
    for (int i = 0; i < layout.pipeline; ++i) {
        const int own = layers[static_cast<std::size_t>(i)];
        out.stages.push_back(stage_memory(job, layout, all, pass, i, own));
        const double parameters = out.stages.back().parameters;
        const Stage stage = stage_of(cluster, job, layout, i, own);
        const Traffic tensor = tensor_traffic(cluster, job, layout, stage);
        const DataTraffic data = data_traffic(cluster, job, layout, all, stage, parameters);
        const double whole = times * stage.whole() + tensor.exposed + data.in_steps.exposed;
        if (whole > slowest) {
            slowest = whole;
            out.forward = stage.forward * times;
            out.backward = stage.backward * times;
            out.again = stage.again * times;
            out.tensor = tensor;
            out.data = data.in_steps;
        }
        const double optimizer = optimizer_seconds(cluster, job, layout, parameters);
        if (optimizer + data.at_end > at_end) {
            at_end = optimizer + data.at_end;
            out.optimizer = optimizer;
        }
    }
    out.data.exposed += at_end - out.optimizer;
    const double one = slowest / times;
    out.bubble = (layout.pipeline - 1) * one / layout.interleave;
    out.pipeline = pipeline_traffic(cluster, job, layout, all, one);
    return out;
}

double flops_share(const ClusterSpec& cluster, const Job& job, double step_seconds) {
    const auto flops = static_cast<double>(model::TrainEngine::flops_per_token(job.spec, job.seq));
    return flops * job.tokens() / (step_seconds * cluster.gpus * cluster.device.peak);
}

}  // namespace mr::plan
