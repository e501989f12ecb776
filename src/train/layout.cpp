#include "train/layout.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <string>

#include "core/comm/device_link.h"
#include "core/error.h"
#include "observe/units.h"

namespace mr::train {
namespace {

RankGrid grid_of(const TrainOptions& o, int ranks) {
    if (ranks > 1 && !o.cuda && o.reduce == "fast") {
        throw Error::usage({.field = "--reduce",
                            .value = o.reduce,
                            .problem = "needs NCCL, but the ranks run on CPUs",
                            .remedy = "leave --reduce exact, or give --device cuda"});
    }
    if (o.pipeline < 1) o.validate();  // throws its error
    if (ranks % o.pipeline != 0) {
        throw Error::usage(
            {.field = "--pipeline",
             .value = fmt::format("{}", o.pipeline),
             .problem = fmt::format("{} cannot be divided into that many stages",
                                    observe::counted(ranks, "rank")),
             .remedy = fmt::format("launch a multiple of {} ranks (mpirun -n {}), or give another "
                                   "--pipeline",
                                   o.pipeline, o.pipeline)});
    }
    const RankGrid grid = {ranks / o.pipeline, o.pipeline};
    if (o.cuda && grid.replicas > comm::kMostDeviceRanks) {
        throw Error::usage(
            {.field = "ranks",
             .value = fmt::format("{}", ranks),
             .problem = fmt::format("on GPUs a model has at most {} replicas, and this is {}",
                                    comm::kMostDeviceRanks, grid.replicas),
             .remedy = "launch fewer, or give a larger --pipeline"});
    }
    if (std::has_single_bit(static_cast<unsigned>(grid.replicas))) return grid;
    throw Error::usage({.field = "ranks",
                        .value = fmt::format("{}", ranks),
                        .problem = o.pipeline == 1
                                       ? std::string("must be a power of two")
                                       : fmt::format("with --pipeline {} make {} replicas of the "
                                                     "model, which must be a power of two",
                                                     o.pipeline, grid.replicas),
                        .remedy = "launch another number"});
}

// The number of grains is fixed at the start of the run.
void settle_grains(TrainOptions& o, int replicas, bool resumed) {
    if (o.micro_batches > 0) {
        const std::int64_t asked = std::int64_t{o.micro_batches} * replicas;
        if (asked > 1 << 30 || (o.grains != 0 && o.grains != asked)) {
            throw Error::usage(
                {.field = "--micro-batches",
                 .value = fmt::format("{}", o.micro_batches),
                 .problem = fmt::format("{} of the model make{} {} grains of it, and {}",
                                        observe::counted(replicas, "replica"),
                                        replicas == 1 ? "s" : "", asked,
                                        o.grains != 0 ? fmt::format("there are {}", o.grains)
                                                      : std::string("that is too many")),
                 .remedy = resumed ? "leave it out: the run has its grains from its first step"
                                   : "leave it or --grains out"});
        }
        o.grains = static_cast<int>(asked);
    }
    if (o.grains == 0) {
        o.grains = replicas * static_cast<int>(std::bit_ceil(static_cast<unsigned>(o.pipeline)));
    }
    if (o.grains % replicas == 0) return;
    throw Error::usage(
        {.field = "--grains",
         .value = fmt::format("{}", o.grains),
         .problem = o.pipeline == 1
                        ? fmt::format("{} ranks do not divide it", replicas)
                        : fmt::format("{} replicas of the model do not divide it", replicas),
         .remedy = resumed
                       ? "launch as many ranks as do: the run has its grains from its first step"
                       : "give a power of two that they divide, or another number of ranks"});
}

// Sharded gradients are summed over ranks grain by grain (model/train/grad_shards.h): a grain of
// several passes would need whole gradients until its last pass.
void require_grains_of_one_pass(const TrainOptions& o, int ranks, bool resumed) {
    if (ranks == 1 || o.zero < 2 || o.grain_passes() == 1) return;
    const std::int64_t sequences = std::int64_t{o.batch} * o.accumulate;
    std::int64_t grains = o.grains;
    while (sequences % grains == 0 && sequences / grains > o.batch) grains *= 2;
    const bool there_are = sequences % grains == 0;
    throw Error::usage(
        {.field = "--zero",
         .value = fmt::format("{}", o.zero),
         .problem = fmt::format("a grain must be one pass, and is {} with --grains {}",
                                o.grain_passes(), o.grains),
         .remedy = resumed     ? "give --zero 1: the run has its grains from its first step"
                   : there_are ? fmt::format("give --grains {}", grains)
                               : "give --zero 1, or an --accumulate that is a power of two"});
}

}  // namespace

RankGrid settle_layout(TrainOptions& options, int ranks, bool resumed) {
    const RankGrid grid = grid_of(options, ranks);
    settle_grains(options, grid.replicas, resumed);
    options.validate();
    require_grains_of_one_pass(options, ranks, resumed);
    return grid;
}

void require_stages(const TrainOptions& o, const RankGrid& grid, const model::ModelSpec& spec,
                    bool resumed) {
    if (grid.stages == 1) return;
    if (grid.stages > spec.layers) {
        throw Error::usage(
            {.field = "--pipeline",
             .value = fmt::format("{}", grid.stages),
             .problem = fmt::format("the model has {}, and every stage has at least one",
                                    observe::counted(spec.layers, "layer")),
             .remedy = "give at most that"});
    }
    if (o.grains == 1) {
        throw Error::usage(
            {.field = "--micro-batches",
             .value = "1",
             .problem = "a pipeline needs at least two grains",
             .remedy = resumed ? "leave --pipeline out: the run has one grain from its first step"
                               : "give 2 or more"});
    }
}

}  // namespace mr::train
