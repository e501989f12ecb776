// The machines of a plan: published figures of a GPU and its links, and the time of collectives.
// Nothing here asks a device: a plan is made before there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mr::plan {

struct DeviceSpec {
    const char* name;      // as --device takes it
    double peak;           // FLOP/s of dense bf16 GEMMs with f32 sums, as published
    double bandwidth;      // bytes/s of its memory, as published
    std::uint64_t memory;  // bytes, as its driver reports them
    double link_node;      // bytes/s to the others in its node, each direction, typical
    double link_net;       // bytes/s to other nodes, each direction, typical
    double step_node;      // seconds of a ring step inside a node
    double products;       // share of `peak` that a step's GEMMs reach
    double attention64;    // ... attention, heads of up to 64 elements
    double attention128;   // ... larger heads
    double passes;         // share of `bandwidth` that norms, activations, AdamW reach
    double uncertainty;    // of the four shares together, as a share of the time
    bool measured;         // this project measured the shares on this device
};

// None: unknown name. known_devices() lists the names.
std::optional<DeviceSpec> find_device(std::string_view name);
std::string known_devices();
// The device whose name is part of the driver's name: "NVIDIA H200" is h200.
std::optional<DeviceSpec> device_of_driver_name(std::string_view name);

struct ClusterSpec {
    DeviceSpec device;
    int gpus = 1;
    int node = 8;          // GPUs per node
    double link_node = 0;  // bytes/s per GPU, each direction, as published
    double link_net = 0;
    double pace = 1;  // measured time / time by `device` of a GPU: calibration
};

// The share of the wire rate that a collective of large messages reaches.
inline constexpr double kLinkShare = 0.8;
// Relative uncertainty of the links' time.
inline constexpr double kLinkUncertainty = 0.3;

// Ranks that communicate: ranks per node, and nodes.
struct Group {
    int inside = 1;
    int nodes = 1;
    int ranks() const { return inside * nodes; }
};
// `ranks` of them: every `stride`-th GPU of the cluster.
Group group_of(const ClusterSpec& cluster, int ranks, int stride);

// Seconds of `calls` collectives of `bytes` together. A reduce-scatter or an all-gather goes round
// the ring once, an all-reduce twice.
enum class Rounds { one = 1, two = 2 };
double collective_seconds(const ClusterSpec& cluster, const Group& group, double bytes,
                          double calls, Rounds rounds);
// Bytes that a rank sends in it.
double collective_sent(const Group& group, double bytes, Rounds rounds);
// Seconds of one message to a rank that is `stride` GPUs away.
double send_seconds(const ClusterSpec& cluster, double bytes, int stride);

}  // namespace mr::plan
