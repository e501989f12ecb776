#include "train/plan/search.h"

#include <algorithm>

namespace mr::plan {
namespace {

std::vector<int> divisors(std::int64_t n, std::int64_t most) {
    std::vector<int> out;
    for (std::int64_t d = 1; d <= std::min(n, most); ++d) {
        if (n % d == 0) out.push_back(static_cast<int>(d));
    }
    return out;
}

template <typename T>
std::vector<T> only(const std::optional<T>& settled, std::vector<T> else_these) {
    return settled ? std::vector<T>{*settled} : else_these;
}

bool faster(const Candidate& a, const Candidate& b) { return a.cost.step() < b.cost.step(); }

}  // namespace

Found find_layouts(const ClusterSpec& cluster, const Job& job, const Wanted& wanted,
                   std::size_t most) {
    constexpr std::int64_t kMostMicroBatches = 1 << 16;
    Found found;
    const auto consider = [&](const Layout& layout) {
        if (std::string fault = layout_fault(cluster, job, layout); !fault.empty()) {
            if (found.fault.empty()) found.fault = std::move(fault);
            return;
        }
        Candidate candidate{layout, cost_of(cluster, job, layout)};
        if (fits(candidate.cost, cluster)) {
            auto& list = found.fitting;
            list.insert(std::upper_bound(list.begin(), list.end(), candidate, faster),
                        std::move(candidate));
            if (list.size() > most) list.pop_back();
        } else if (!found.nearest ||
                   candidate.cost.most_memory() < found.nearest->cost.most_memory()) {
            found.nearest = std::move(candidate);
        }
    };
    const int groups = std::max(1, cluster.gpus / wanted.tensor);
    std::vector<int> pipelines = divisors(groups, job.spec.layers);
    if (wanted.data) pipelines = {std::max(1, groups / *wanted.data)};
    for (const int pipeline : only(wanted.pipeline, pipelines)) {
        Layout layout;
        layout.pipeline = pipeline;
        layout.tensor = wanted.tensor;
        layout.interleave = pipeline > 1 ? wanted.interleave : 1;
        layout.data = wanted.data.value_or(std::max(1, groups / pipeline));
        const std::int64_t own = std::max<std::int64_t>(1, job.batch / layout.data);
        for (const int micro : only(wanted.micro_batches, divisors(own, kMostMicroBatches))) {
            layout.micro_batches = micro;
            // With one replica, shards are the whole.
            const std::vector<int> levels =
                layout.data > 1 ? std::vector{0, 1, 2, 3} : std::vector{0};
            for (const int zero : only(wanted.zero, levels)) {
                layout.zero = zero;
                for (const Recompute recompute :
                     only(wanted.recompute, {Recompute::none, Recompute::light, Recompute::full})) {
                    layout.recompute = recompute;
                    consider(layout);
                }
            }
        }
    }
    return found;
}

Band band_of(const ClusterSpec& cluster, const Job& job, const Layout& layout,
             double compute_uncertainty) {
    const auto step = [&](double computing, double links) {
        ClusterSpec off = cluster;
        off.pace *= 1 + computing;
        off.link_node /= 1 + links;
        off.link_net /= 1 + links;
        return cost_of(off, job, layout).step();
    };
    Band band;
    band.computing = compute_uncertainty;
    // With one GPU there are no links.
    band.links = cluster.gpus > 1 ? kLinkUncertainty : 0;
    band.low = step(-band.computing, -band.links);
    band.high = step(band.computing, band.links);
    return band;
}

}  // namespace mr::plan
