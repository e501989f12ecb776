// How the ranks of a run are connected: replicas of the model, and stages of a replica.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <string>
#include <vector>

#include "core/comm/device_link.h"
#include "core/error.h"
#include "observe/units.h"
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

void Run::settle_ranks() {
    const int ranks = comm_.size();
    if (ranks > 1 && !o_.cuda && o_.reduce == "fast") {
        throw Error::usage({.field = "--reduce",
                            .value = o_.reduce,
                            .problem = "needs NCCL, but the ranks run on CPUs",
                            .remedy = "leave --reduce exact, or give --device cuda"});
    }
    if (o_.pipeline < 1) o_.validate();  // throws its error
    if (ranks % o_.pipeline != 0) {
        throw Error::usage(
            {.field = "--pipeline",
             .value = fmt::format("{}", o_.pipeline),
             .problem = fmt::format("{} cannot be divided into that many stages",
                                    observe::counted(ranks, "rank")),
             .remedy = fmt::format("launch a multiple of {} ranks (mpirun -n {}), or give another "
                                   "--pipeline",
                                   o_.pipeline, o_.pipeline)});
    }
    grid_ = {ranks / o_.pipeline, o_.pipeline};
    if (o_.cuda && grid_.replicas > comm::kMostDeviceRanks) {
        throw Error::usage(
            {.field = "ranks",
             .value = fmt::format("{}", ranks),
             .problem = fmt::format("on GPUs a model has at most {} replicas, and this is {}",
                                    comm::kMostDeviceRanks, grid_.replicas),
             .remedy = "launch fewer, or give a larger --pipeline"});
    }
    if (std::has_single_bit(static_cast<unsigned>(grid_.replicas))) return;
    throw Error::usage({.field = "ranks",
                        .value = fmt::format("{}", ranks),
                        .problem = o_.pipeline == 1
                                       ? std::string("must be a power of two")
                                       : fmt::format("with --pipeline {} make {} replicas of the "
                                                     "model, which must be a power of two",
                                                     o_.pipeline, grid_.replicas),
                        .remedy = "launch another number"});
}

// The number of grains is fixed at the start of the run.
void Run::settle_grains() {
    const int replicas = grid_.replicas;
    if (o_.micro_batches > 0) {
        const std::int64_t asked = std::int64_t{o_.micro_batches} * replicas;
        if (asked > 1 << 30 || (o_.grains != 0 && o_.grains != asked)) {
            throw Error::usage(
                {.field = "--micro-batches",
                 .value = fmt::format("{}", o_.micro_batches),
                 .problem = fmt::format("{} of the model make{} {} grains of it, and {}",
                                        observe::counted(replicas, "replica"),
                                        replicas == 1 ? "s" : "", asked,
                                        o_.grains != 0 ? fmt::format("there are {}", o_.grains)
                                                       : std::string("that is too many")),
                 .remedy = resumed_ ? "leave it out: the run has its grains from its first step"
                                    : "leave it or --grains out"});
        }
        o_.grains = static_cast<int>(asked);
    }
    if (o_.grains == 0) {
        o_.grains = replicas * static_cast<int>(std::bit_ceil(static_cast<unsigned>(o_.pipeline)));
    }
    if (o_.grains % replicas == 0) return;
    throw Error::usage(
        {.field = "--grains",
         .value = fmt::format("{}", o_.grains),
         .problem = o_.pipeline == 1
                        ? fmt::format("{} ranks do not divide it", replicas)
                        : fmt::format("{} replicas of the model do not divide it", replicas),
         .remedy = resumed_
                       ? "launch as many ranks as do: the run has its grains from its first step"
                       : "give a power of two that they divide, or another number of ranks"});
}

// Sharded gradients are summed over ranks grain by grain (model/train/grad_shards.h): a grain of
// several passes would need whole gradients until its last pass.
void Run::require_grains_of_one_pass() const {
    if (comm_.alone() || o_.zero < 2 || o_.grain_passes() == 1) return;
    const std::int64_t sequences = std::int64_t{o_.batch} * o_.accumulate;
    std::int64_t grains = o_.grains;
    while (sequences % grains == 0 && sequences / grains > o_.batch) grains *= 2;
    const bool there_are = sequences % grains == 0;
    throw Error::usage(
        {.field = "--zero",
         .value = fmt::format("{}", o_.zero),
         .problem = fmt::format("a grain must be one pass, and is {} with --grains {}",
                                o_.grain_passes(), o_.grains),
         .remedy = resumed_    ? "give --zero 1: the run has its grains from its first step"
                   : there_are ? fmt::format("give --grains {}", grains)
                               : "give --zero 1, or an --accumulate that is a power of two"});
}

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
    if (grid_.stages > spec.layers) {
        throw Error::usage(
            {.field = "--pipeline",
             .value = fmt::format("{}", grid_.stages),
             .problem = fmt::format("the model has {}, and every stage has at least one",
                                    observe::counted(spec.layers, "layer")),
             .remedy = "give at most that"});
    }
    if (o_.grains == 1) {
        throw Error::usage(
            {.field = "--micro-batches",
             .value = "1",
             .problem = "a pipeline needs at least two grains",
             .remedy = resumed_ ? "leave --pipeline out: the run has one grain from its first step"
                                : "give 2 or more"});
    }
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
