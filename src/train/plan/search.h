// The layouts of a cluster, best first, and the uncertainty of a plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/plan/cost.h"

namespace mr::plan {

// What the user has fixed; the rest is searched.
struct Wanted {
    std::optional<int> data, pipeline, zero, micro_batches;
    std::optional<Recompute> recompute;
    int tensor = 1, interleave = 1;  // never searched: train has neither
};

struct Candidate {
    Layout layout;
    Cost cost;
};

struct Found {
    std::vector<Candidate> fitting;  // the fastest first
    // Of those that do not fit, the one with the least memory; none if no layout is possible.
    std::optional<Candidate> nearest;
    std::string fault;  // why none is possible
};
// `most`: how many of the fitting ones to keep.
Found find_layouts(const ClusterSpec& cluster, const Job& job, const Wanted& wanted,
                   std::size_t most);

// Seconds of a step if the shares of the peak, and the links, are better or worse than assumed,
// within their uncertainty.
struct Band {
    double low = 0, high = 0;
    double computing = 0, links = 0;  // relative uncertainty
};
Band band_of(const ClusterSpec& cluster, const Job& job, const Layout& layout,
             double compute_uncertainty);

}  // namespace mr::plan
