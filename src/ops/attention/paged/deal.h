// How the parts of a batch's keys are dealt out to teams (stream.cu). All constexpr:
// kernels call it on the device, tests on the host.
#pragma once

#include <cstdint>

namespace mr::cuda::attn {

// Costs are counted in steps; a long part has kLongSteps, a short one has 1. Team t of `teams`
// takes long parts [longs_before(t), longs_before(t + 1)) and as many short ones as it needs to
// have the same number of steps as the others.
struct Deal {
    static constexpr int kLongSteps = 4;
    static constexpr int kLanes = 32;

    std::int64_t longs, steps;  // long parts, steps of all parts
    int shorts, teams;
    int back;  // see missing()

    constexpr Deal(int long_steps, int all_steps, int teams_)
        : longs(long_steps / kLongSteps),
          steps(all_steps),
          shorts(all_steps - long_steps),
          teams(teams_),
          back(shorts > 0 ? (kLongSteps + 1) * teams / shorts + 2 : kLanes) {}

    constexpr int longs_before(int t) const { return static_cast<int>(longs * t / teams); }
    // Of the steps that the teams before t should have, those that their long parts leave to short
    // ones. That never falls by more than 4, and grows with the short parts: its greatest value
    // over [t - back, t], in which a warp takes a team a lane, never falls at all.
    constexpr int missing(int t) const {
        return static_cast<int>(steps * t / teams) - longs_before(t) * kLongSteps;
    }
    // For so few short parts that `back` is too far: they go in equal numbers, at most 4 to each,
    // to the teams that do not have one long part more than others (`light`); if that does not
    // suffice, in equal numbers to all teams.
    constexpr bool few() const { return back >= kLanes; }
    constexpr int few_before(int t) const {
        const int most = static_cast<int>(longs) / teams + 1;
        const int light = t * most - longs_before(t);
        const int all_light = teams * most - static_cast<int>(longs);
        return shorts <= kLongSteps * all_light
                   ? shorts * light / all_light
                   : static_cast<int>(std::int64_t{shorts} * t / teams);
    }
};

}  // namespace mr::cuda::attn
