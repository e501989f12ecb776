// What a gradient exchange sends and when, as data: the part of `millrace-lab overlap` that needs
// no GPU.
//
// One rank is real, the others are ghosts. As in comm::Comm, a bucket is exchanged in two phases.
// Scatter: every rank sends each other rank its share of the gradients, and receives the parts of
// its own share. The parts are added up in a binary tree over ranks. Gather: every rank sends its
// sums to all others, and receives theirs. What ghosts send was recorded before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/comm/comm.h"
#include "core/comm/device_link.h"
#include "core/thread_pool.h"
#include "model/train/params.h"

namespace mr::overlap {

// Gradients [begin, end) of the flat buffer that are complete at the same time. `last`: with the
// last operation of the backward pass, so that nothing is left to hide their exchange.
struct ReadyRange {
    std::int64_t begin = 0, end = 0;
    bool last = false;
    std::uint64_t bytes() const { return static_cast<std::uint64_t>(end - begin) * sizeof(float); }
};
// In the order in which TrainPass::step() reports them.
std::vector<ReadyRange> backward_order(const model::ParamLayout& layout);
struct ReadyBytes {
    std::uint64_t before_last = 0, all = 0;
};
ReadyBytes ready_bytes(std::span<const ReadyRange> order);

// Ranges are sent together up to `bucket_bytes`: the end of every bucket, in ranges.
std::vector<std::size_t> bucket_ends(std::span<const std::int64_t> counts,
                                     std::int64_t bucket_bytes);

struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
};
std::uint64_t bytes_of(std::span<const Copy> copies);
// Splits the copies, in order, into `rounds` of about equal bytes.
std::vector<std::vector<Copy>> in_rounds(std::span<const Copy> copies, int rounds);

// A rate is for one direction. A phase takes its link's time in rounds, each released when the
// rounds before it would have crossed the link.
inline constexpr double kRoundSeconds = 100e-6;
// Nanoseconds of every round of a phase of `bytes`.
std::vector<std::uint64_t> round_times(std::uint64_t bytes, double bytes_per_second);
// Up to the rate of PCIe 5.0 x16 ghosts are in host memory, above it on the device.
inline constexpr double kMostThroughHost = 64e9;

// The arguments of add_up(), and their place in the flat buffer.
struct Gradient {
    float* elements;
    comm::Shards shards;
    std::int64_t begin = 0;
};

// Sizes in floats. Own: shares of the real rank; others: all other shares. In the order of ranges.
struct GhostSizes {
    std::int64_t own = 0, others = 0;
    std::int64_t parts = 0;  // (ranks - 1) x own
};
GhostSizes ghost_sizes(std::span<const Gradient> gradients, int rank);

struct GhostMemory {
    // For ghosts: what they send, and what they receive.
    float* parts = nullptr;      // [parts]: of each range [ranks - 1, own share]
    float* sums = nullptr;       // [others]
    float* got_parts = nullptr;  // [others]
    float* got_sums = nullptr;   // [parts]: of each bucket [ranks - 1, own shares]
    // For the real rank, besides its gradients.
    float* arrived = nullptr;  // [parts], as parts
    float* packed = nullptr;   // [own]: its sums
};

struct Phase {
    std::vector<std::vector<Copy>> out, in;  // [rounds]
    std::vector<std::uint64_t> times;        // [rounds], ns
    std::uint64_t out_bytes = 0, in_bytes = 0;
};
struct Bucket {
    std::size_t first = 0, end = 0;  // ranges
    Phase scatter, gather;
    std::vector<comm::SumPiece> sums;  // own shares, in the arrival buffer
};
std::vector<Bucket> plan_buckets(std::span<const Gradient> gradients, int rank,
                                 const GhostMemory& memory, std::int64_t bucket_bytes,
                                 double bytes_per_second);

// Ghost `rank`'s gradient of an element: 24 random bits, about 1e-3 at most, so that the order of a
// sum is visible.
float ghost_value(int rank, std::int64_t element);
// The sums over ranks, by comm::tree_sum(): `own` are those of `rank`, the others are the ghosts'.
std::vector<float> expected_sums(std::span<const float> own, int rank, int ranks, ThreadPool& pool);
// What ghosts send, in the order of GhostMemory.
std::vector<float> recorded_parts(std::span<const Gradient> gradients, int rank, ThreadPool& pool);
// The shares of all ranks but `rank` in a flat buffer [count]: of sums, what ghosts send; of own
// gradients, what they must receive.
std::vector<float> shares_of_others(std::span<const Gradient> gradients, int rank,
                                    std::span<const float> flat);

// Seconds.
struct Times {
    double compute = 0;        // a step without an exchange
    double communication = 0;  // the exchange alone
    double both = 0;           // a step with the exchange
    double ready = 0;          // the exchange alone, of buckets ready before the last op
    double last = 0;           // the exchange alone, of the other buckets

    double exposed() const { return both - compute; }
    double hidden() const;
    // The share of `ready` that costs no time, if `last` costs all of its own. 0 if nothing is
    // ready.
    double hidden_of_ready() const { return ready > 0 ? 1 - (exposed() - last) / ready : 0; }
};

}  // namespace mr::overlap
