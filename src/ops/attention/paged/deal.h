// How the parts of a batch's keys are distributed to teams (stream.cu). All constexpr: kernels call
// it on the device, tests on the host.
#pragma once

#include <cstdint>

namespace mr::cuda::attn {

// Costs are counted in steps; a long part has kLongSteps, a short one has 1. Team t of `teams`
// takes long parts [longs_before(t), longs_before(t + 1)) and as many short ones as it needs for
// the same number of steps as the others.
struct Deal {
    static constexpr int kLongSteps = 4;
    static constexpr int kLanes = 32;

    std::int64_t longs, steps;  // number of long parts; steps of all parts
    int shorts, teams;
    int back;  // see missing()

    constexpr Deal(int long_steps, int all_steps, int teams_)
        : longs(long_steps / kLongSteps),
          steps(all_steps),
          shorts(all_steps - long_steps),
          teams(teams_),
          back(shorts > 0 ? (kLongSteps + 1) * teams / shorts + 2 : kLanes) {}

    constexpr int longs_before(int t) const { return static_cast<int>(longs * t / teams); }
    // The steps that the teams before t should have, less those of their long parts: these are left
    // to short parts. The value never decreases by more than 4, and grows with the short parts. Its
    // maximum over [t - back, t], which a warp computes with one team per lane, never decreases.
    constexpr int missing(int t) const {
        return static_cast<int>(steps * t / teams) - longs_before(t) * kLongSteps;
    }
    // If there are so few short parts that `back` is too large: they go in equal numbers, at most 4
    // each, to the teams without an extra long part (`light`); if that does not suffice, in equal
    // numbers to all teams.
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
