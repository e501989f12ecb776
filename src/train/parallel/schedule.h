// A pipeline: which stage has which layers, what it does after what, and what that leaves idle.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace mr::train {

// Ranks that train together: every replica has all stages of the model, every stage as many ranks
// as there are replicas. Ranks of one stage are neighbours, so that what is exchanged most, their
// gradients, stays in a node where it can (plan::Layout numbers GPUs in the same way).
struct RankGrid {
    int replicas = 1, stages = 1;

    int replica(int rank) const { return rank % replicas; }
    int stage(int rank) const { return rank / replicas; }
    int rank(int replica, int stage) const { return stage * replicas + replica; }
    std::vector<int> same_stage(int rank) const;    // by replica
    std::vector<int> same_replica(int rank) const;  // by stage
};

// The layers of each stage: in order, at least one each, so that the slowest is as fast as can be.
// `layer`: what a layer costs; `head`: what the last stage has besides. Layers that are left over
// go to later stages: early ones hold more micro-batches.
std::vector<int> balanced_layers(int layers, int stages, double layer, double head);

enum class PipeSchedule {
    one_f_one_b,  // a stage turns back as soon as it can: as many micro-batches on their way as
                  // there are stages from it on
    gpipe,        // all micro-batches forward, then all back
};
const char* schedule_name(PipeSchedule schedule);
std::optional<PipeSchedule> schedule_of(std::string_view name);  // "1f1b", "gpipe"

// What a stage does with micro-batch `pass`.
struct PipeOp {
    bool forward = true;
    int pass = 0;
    bool operator==(const PipeOp&) const = default;
};
// The operations of stage `stage` of `stages` in their order. Both kinds are in the order of the
// micro-batches, in all stages: so are the sums over them.
std::vector<PipeOp> stage_ops(PipeSchedule schedule, int stage, int stages, int passes);
// The most micro-batches that have come to the stage and not gone back.
int on_their_way(PipeSchedule schedule, int stage, int stages, int passes);

// Of the time that a step takes, the part in which a stage has nothing to do: of stages that all
// take as long, (stages - 1) / (passes + stages - 1).
double expected_bubble(int stages, int passes);
// The same by playing the schedule through, mean over the stages, where a forward takes `forward`
// and a backward `backward`.
double played_bubble(PipeSchedule schedule, int stages, int passes, double forward,
                     double backward);

}  // namespace mr::train
