#include "train/plan/cluster.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>

#include "core/error.h"

namespace mr::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;
constexpr std::uint64_t kMiB = 1 << 20;

// NCCL's constants for its protocol for large messages (graph/tuning): a call, and a step of a
// ring.
constexpr double kCall = 8.4e-6;
constexpr double kNvlinkStep = 3.4e-6, kPcieStep = 5.7e-6, kNetStep = 14e-6;

// Peaks and bandwidths: NVIDIA's data sheets of H100 SXM, H200 SXM and A100 80GB SXM, and its Ada
// whitepaper. Links: NVLink 4, NVLink 3, PCIe 4 x16; a network card of the usual rate per GPU.
// Memory: nvidia-smi's. The shares of Hopper are those of this project's own steps on an H200
// (docs/parallel.md, "Calibration"). Those of the others are assumptions that no step of ours has
// checked: a device with less arithmetic for the same memory and power comes nearer to its peak.
constexpr DeviceSpec kDevices[] = {
    {"h100", 989.4 * kTera, 3.35 * kTera, 81559 * kMiB, 450 * kGiga, 50 * kGiga, kNvlinkStep, 0.69,
     0.33, 0.50, 0.80, 0.20, false},
    {"h200", 989.4 * kTera, 4.8 * kTera, 143771 * kMiB, 450 * kGiga, 50 * kGiga, kNvlinkStep, 0.69,
     0.33, 0.50, 0.80, 0.15, true},
    {"a100", 312 * kTera, 2.039 * kTera, 81920 * kMiB, 300 * kGiga, 25 * kGiga, kNvlinkStep, 0.80,
     0.45, 0.55, 0.80, 0.25, false},
    {"rtx-4090", 165.2 * kTera, 1.008 * kTera, 24564 * kMiB, 32 * kGiga, 12.5 * kGiga, kPcieStep,
     0.85, 0.60, 0.70, 0.80, 0.25, false},
};

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::replace(out.begin(), out.end(), ' ', '-');
    return out;
}

}  // namespace

std::optional<DeviceSpec> find_device(std::string_view name) {
    for (const DeviceSpec& device : kDevices) {
        if (lower(name) == device.name) return device;
    }
    return std::nullopt;
}

std::string known_devices() {
    std::string names;
    for (const DeviceSpec& device : kDevices) {
        if (!names.empty()) names += ", ";
        names += device.name;
    }
    return names;
}

std::optional<DeviceSpec> device_of_driver_name(std::string_view name) {
    for (const DeviceSpec& device : kDevices) {
        if (lower(name).find(device.name) != std::string::npos) return device;
    }
    return std::nullopt;
}

Group group_of(const ClusterSpec& cluster, int ranks, int stride) {
    // GPUs are numbered node by node, so the group has every stride-th GPU of a node.
    const int inside = std::clamp(cluster.node / stride, 1, ranks);
    return {inside, (ranks + inside - 1) / inside};
}

double collective_sent(const Group& group, double bytes, Rounds rounds) {
    const double ranks = group.ranks();
    return static_cast<int>(rounds) * bytes * (ranks - 1) / ranks;
}

double collective_seconds(const ClusterSpec& cluster, const Group& group, double bytes,
                          double calls, Rounds rounds) {
    if (group.ranks() <= 1 || bytes <= 0) return 0;
    const double inside = group.inside, nodes = group.nodes;
    // A ring inside a node. Between nodes a tree, whose depth counts: NCCL does not use a ring for
    // many nodes.
    const double depth = std::bit_width(static_cast<unsigned>(group.nodes - 1));
    const double steps = (inside - 1) * cluster.device.step_node + depth * kNetStep;
    // Each GPU's network card sends its part of the node's data while the links inside the node
    // handle the next piece: the slower of the two counts.
    const double in_node = (inside - 1) / inside * bytes / (kLinkShare * cluster.link_node);
    const double between = (nodes - 1) / nodes * bytes / inside / (kLinkShare * cluster.link_net);
    const int times = static_cast<int>(rounds);
    return calls * (kCall + times * steps) + times * std::max(in_node, between);
}

double send_seconds(const ClusterSpec& cluster, double bytes, int stride) {
    const bool leaves = stride >= cluster.node;
    const double rate = kLinkShare * (leaves ? cluster.link_net : cluster.link_node);
    return (leaves ? kNetStep : cluster.device.step_node) + bytes / rate;
}

}  // namespace mr::plan
