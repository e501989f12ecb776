// How the ranks of a run are connected: replicas of the model, and stages of a replica.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "core/comm/device_link.h"
#include "core/error.h"
#include "observe/units.h"
#include "train/layout.h"
#include "train/parallel/device_exchange.h"
#include "train/plan/work.h"
#include "train/run.h"

namespace mr::train {
namespace {

// Channels of messages between replicas of a stage, and between stages of a replica. A number means
// one channel, for every Comm that is split by it.
enum Channel {
    kReplicas = 1,
    kPasses,
    kBetween,
    kGradients,  // of devices
    kStages      // of devices, kDeviceLinkChannels of them
};

double flops(const plan::LayerWork& work) {
    double sum = 0;
    for (const plan::Work& part : {work.forward, work.backward, work.again}) {
        sum += part.products + part.attention;
    }
    return sum;
}

}  // namespace

std::unique_ptr<TimedExchange> Run::make_exchange(comm::Comm& replicas) {
    const auto bucket = static_cast<std::int64_t>(o_.bucket * 1024 * 1024);
    if (!o_.cuda) return std::make_unique<Exchange>(replicas, bucket);
    auto out = make_device_exchange(
        replicas, {.bucket = bucket, .fast = o_.reduce == "fast", .channel = kGradients});
    if (comm_.first()) say(fmt::format("{} ranks on GPUs: {}", comm_.size(), out->about()));
    return out;
}

void Run::make_links(const model::ModelSpec& spec) {
    if (grid_.stages == 1) {
        if (!comm_.alone()) exchange_ = make_exchange(comm_);
        return;
    }
    require_stages(o_, grid_, spec, resumed_);
    const double rows = spec.diffusion ? 2 : 1;  // rows of a layer per row of the head
    const double layer =
        rows * flops(plan::layer_work(spec, o_.seq, *model::recompute_of(o_.recompute)));
    stage_layers_ = balanced_layers(spec.layers, grid_.stages, layer, flops(plan::head_work(spec)));
    const std::vector<int> stages = grid_.same_replica(comm_.rank());
    if (o_.cuda) {
        link_ = make_device_stage_link(comm_, stages, kStages);
    } else {
        link_ =
            std::make_unique<HostLink>(comm_.split(stages, kPasses), comm_.split(stages, kBetween));
    }
    replicas_ = comm_.split(grid_.same_stage(comm_.rank()), kReplicas);
    if (grid_.replicas > 1) exchange_ = make_exchange(*replicas_);
}

model::PipelineStage Run::stage_options() const {
    if (!link_) return {};
    return {.layers = stage_layers_,
            .stage = stage(),
            .on_their_way = on_their_way(*schedule_of(o_.pipeline_schedule), stage(), grid_.stages,
                                         passes_here()),
            .link = link_.get()};
}

// run_passes() for a pipeline stage. Every stage reads the batches: the first needs their inputs,
// the last their targets.
void Run::run_stage(StepMetrics& out, std::int64_t step) {
    const auto start = Clock::now();
    link_->begin();
    const double waited = link_->waited_seconds();
    const int here = passes_here();
    if (o_.diffusion()) out.masked = 0;
    for (const PipeOp& op :
         stage_ops(*schedule_of(o_.pipeline_schedule), stage(), grid_.stages, here)) {
        const bool more = op.pass + 1 < here;
        if (!op.forward) {
            engine_->backward(pass_scale(), (op.pass + 1) % o_.grain_passes() == 0, more);
            continue;
        }
        if (unread_) std::rethrow_exception(unread_);
        if (out.masked && stage() == 0) *out.masked += engine_->counted(slot_);
        engine_->forward(slot_, more);
        next_slot(step < o_.steps || more);
    }
    link_->meet();  // waiting for the other stages is part of the bubble
    pass_seconds_ += seconds_since(start);
    pass_wait_ += link_->waited_seconds() - waited;
}

// In words, for the first rank. All ranks report their memory.
std::string Run::pipeline_plan() const {
    if (!link_) return "";
    const std::vector<double> bytes = comm_.gather(static_cast<double>(engine_->plan().total()));
    std::vector<std::string> memory;
    for (int s = 0; s < grid_.stages; ++s) {
        const auto rank = static_cast<std::size_t>(grid_.rank(0, s));
        memory.push_back(format_bytes(static_cast<std::uint64_t>(bytes[rank])));
    }
    return fmt::format(
        "pipeline: {} stages of {} layers{}, {} micro-batches by {}, bubble {:.1f}% expected; "
        "memory of a rank by stage: {}",
        grid_.stages, fmt::join(stage_layers_, ", "),
        grid_.replicas > 1 ? fmt::format(", {} replicas", grid_.replicas) : "", passes_here(),
        o_.pipeline_schedule, 100 * expected_bubble(grid_.stages, passes_here()),
        fmt::join(memory, ", "));
}

double Run::measured_bubble() const {
    const double share = pass_seconds_ > 0 ? pass_wait_ / pass_seconds_ : 0;
    return comm_.sum(share) / comm_.size();
}

}  // namespace mr::train
