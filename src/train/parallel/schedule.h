// A pipeline: the layers of each stage, the order of its operations, and its idle time.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace mr::train {

// Ranks that train together: every replica has all stages of the model, every stage has one rank
// per replica. Ranks of one stage are neighbours, so that their gradients, the largest exchange,
// stay within a node if possible (plan::Layout numbers GPUs in the same way).
struct RankGrid {
    int replicas = 1, stages = 1;

    int replica(int rank) const { return rank % replicas; }
    int stage(int rank) const { return rank / replicas; }
    int rank(int replica, int stage) const { return stage * replicas + replica; }
    std::vector<int> same_stage(int rank) const;    // by replica
    std::vector<int> same_replica(int rank) const;  // by stage
};

// The layers of each stage: in order, at least one each, so that the slowest is as fast as
// possible. `layer`: cost of a layer; `head`: additional cost of the last stage. Left-over layers
// go to later stages: early ones hold more micro-batches.
std::vector<int> balanced_layers(int layers, int stages, double layer, double head);

enum class PipeSchedule {
    one_f_one_b,  // a stage turns back as soon as it can: as many micro-batches on their way as
                  // there are stages from it on
    gpipe,        // all micro-batches forward, then all backward
};
const char* schedule_name(PipeSchedule schedule);
std::optional<PipeSchedule> schedule_of(std::string_view name);  // "1f1b", "gpipe"

// One operation of a stage, on micro-batch `pass`.
struct PipeOp {
    bool forward = true;
    int pass = 0;
    bool operator==(const PipeOp&) const = default;
};
// The operations of stage `stage` of `stages`, in order. Forwards and backwards are each in the
// order of micro-batches in all stages, and so are the sums over them.
std::vector<PipeOp> stage_ops(PipeSchedule schedule, int stage, int stages, int passes);
// The most micro-batches in flight at the stage: forward done, backward not.
int on_their_way(PipeSchedule schedule, int stage, int stages, int passes);

// The idle share of a step's time, for stages of equal time: (stages - 1) / (passes + stages -
// 1).
double expected_bubble(int stages, int passes);
// The same by simulating the schedule, mean over the stages, with times `forward` and
// `backward`.
double played_bubble(PipeSchedule schedule, int stages, int passes, double forward,
                     double backward);

}  // namespace mr::train
