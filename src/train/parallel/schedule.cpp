#include "train/parallel/schedule.h"

#include <algorithm>
#include <cstddef>

#include "core/error.h"

namespace mr::train {

std::vector<int> RankGrid::same_stage(int rank) const {
    std::vector<int> out;
    out.reserve(static_cast<std::size_t>(replicas));
    for (int r = 0; r < replicas; ++r) out.push_back(this->rank(r, stage(rank)));
    return out;
}

std::vector<int> RankGrid::same_replica(int rank) const {
    std::vector<int> out;
    out.reserve(static_cast<std::size_t>(stages));
    for (int s = 0; s < stages; ++s) out.push_back(this->rank(replica(rank), s));
    return out;
}

std::vector<int> balanced_layers(int layers, int stages, double layer, double head) {
    MR_CHECK(stages >= 1 && stages <= layers, "every stage has a layer");
    if (stages == 1) return {layers};
    int best = 1;  // layers of the last stage
    double fastest = 0;
    for (int last = 1; last <= layers - (stages - 1); ++last) {
        const int most = (layers - last + stages - 2) / (stages - 1);
        const double slowest = std::max(layer * most, layer * last + head);
        if (last == 1 || slowest < fastest) fastest = slowest, best = last;
    }
    std::vector<int> out(static_cast<std::size_t>(stages), (layers - best) / (stages - 1));
    const int over = (layers - best) % (stages - 1);
    for (int i = 0; i < over; ++i) ++out[static_cast<std::size_t>(stages - 2 - i)];
    out.back() = best;
    return out;
}

const char* schedule_name(PipeSchedule schedule) {
    return schedule == PipeSchedule::gpipe ? "gpipe" : "1f1b";
}

std::optional<PipeSchedule> schedule_of(std::string_view name) {
    for (const PipeSchedule s : {PipeSchedule::one_f_one_b, PipeSchedule::gpipe}) {
        if (name == schedule_name(s)) return s;
    }
    return std::nullopt;
}

int on_their_way(PipeSchedule schedule, int stage, int stages, int passes) {
    return schedule == PipeSchedule::gpipe ? passes : std::min(stages - stage, passes);
}

std::vector<PipeOp> stage_ops(PipeSchedule schedule, int stage, int stages, int passes) {
    MR_CHECK(stage >= 0 && stage < stages && passes > 0, "a stage of a pipeline that does work");
    const int ahead = on_their_way(schedule, stage, stages, passes);
    std::vector<PipeOp> out;
    for (int pass = 0; pass < passes + ahead - 1; ++pass) {
        if (pass < passes) out.push_back({true, pass});
        if (pass >= ahead - 1) out.push_back({false, pass - (ahead - 1)});
    }
    return out;
}

double expected_bubble(int stages, int passes) {
    return static_cast<double>(stages - 1) / (passes + stages - 1);
}

double played_bubble(PipeSchedule schedule, int stages, int passes, double forward,
                     double backward) {
    const auto p = static_cast<std::size_t>(stages), m = static_cast<std::size_t>(passes);
    std::vector<std::vector<PipeOp>> ops;
    ops.reserve(p);
    for (int s = 0; s < stages; ++s) ops.push_back(stage_ops(schedule, s, stages, passes));
    // End time of each operation; below 0: not yet.
    std::vector<std::vector<double>> forwards(p, std::vector<double>(m, -1)), backwards = forwards;
    std::vector<std::size_t> next(p, 0);
    std::vector<double> now(p, 0);
    for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t s = 0; s < p; ++s) {
            if (next[s] == ops[s].size()) continue;
            const PipeOp op = ops[s][next[s]];
            const auto pass = static_cast<std::size_t>(op.pass);
            double begin = now[s];
            if (op.forward ? s > 0 : s + 1 < p) {
                const double came = op.forward ? forwards[s - 1][pass] : backwards[s + 1][pass];
                if (came < 0) continue;
                begin = std::max(begin, came);
            }
            now[s] = begin + (op.forward ? forward : backward);
            (op.forward ? forwards : backwards)[s][pass] = now[s];
            ++next[s];
            moved = true;
        }
    }
    for (std::size_t s = 0; s < p; ++s) {
        MR_CHECK(next[s] == ops[s].size(), "no stage waits for ever");
    }
    const double whole = *std::ranges::max_element(now);
    return 1 - passes * (forward + backward) / whole;
}

}  // namespace mr::train
