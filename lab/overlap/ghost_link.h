// The link between the real rank and its ghosts: copies by the real copy engines, one stream per
// direction, at the given rate.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/cuda/device.h"
#include "core/thread_pool.h"
#include "lab/overlap/pacer.h"
#include "lab/overlap/traffic.h"

namespace mr::overlap {

struct LinkOptions {
    double rate = 50e9;  // bytes per second in each direction
    bool host = true;    // ghosts are in host memory; else on the device
    int rank = 0;
    std::int64_t bucket_bytes = std::int64_t{25} << 20;
};

class GhostLink {
  public:
    // `gradients` in the order of a step; they must be complete on `training` when exchange() is
    // called. Error (device) if memory is too small.
    GhostLink(const cuda::Stream& training, std::vector<Gradient> gradients,
              const LinkOptions& options);
    ~GhostLink();
    GhostLink(const GhostLink&) = delete;
    GhostLink& operator=(const GhostLink&) = delete;

    static MemoryPlan host_plan(std::span<const Gradient> gradients, const LinkOptions& options);

    // Records what ghosts will send: their parts, and the sums [count of the flat buffer] of the
    // shares that they own.
    void record(std::span<const float> sums, ThreadPool& pool);
    // Overwrites what was sent so far with NaN. Nothing may be in flight.
    void poison();
    // Error (device) if ghosts received other bits than the shares of `own` and the sums of the
    // real rank's share. Nothing may be in flight.
    void require_left(std::span<const float> own, std::span<const float> sums) const;

    const std::vector<Bucket>& buckets() const { return buckets_; }
    // Starts as soon as the current work of `training` is done. Call in the order of buckets.
    void exchange(std::size_t bucket);
    // `training` waits for what was exchanged.
    void join();
    // Seconds on the device for buckets [first, end) alone.
    double alone(std::size_t first, std::size_t end);
    // In one direction, for a whole exchange; and the time the link would take.
    std::uint64_t sent_bytes() const;
    double link_seconds() const;
    // Whether copies on the device use no multiprocessors, as far as the driver was asked.
    bool by_engines() const { return by_engines_; }

  private:
    void run(const Phase& phase);
    void copy(const cuda::Stream& stream, const std::vector<Copy>& copies, bool out);
    void read(std::vector<float>& to, const float* from) const;
    void write(float* to, std::span<const float> from) const;

    const cuda::Stream& training_;
    std::vector<Gradient> gradients_;
    LinkOptions options_;
    GhostSizes sizes_;
    cuda::DeviceArena device_;
    cuda::PinnedBuffer pinned_;
    GhostMemory memory_;
    std::vector<Bucket> buckets_;
    // started, released, go: words of host memory, and their device addresses.
    cuda::PinnedBuffer words_;
    std::uint32_t* started_ = nullptr;
    std::uint32_t* released_ = nullptr;
    std::uint32_t* go_ = nullptr;
    std::uint32_t goes_ = 0;
    cuda::Stream out_;
    // Sums are kernels of this stream and must start at once.
    cuda::Stream in_{cuda::Stream::Priority::high};
    cuda::Event ready_, left_, summed_, out_done_, in_done_;
    cuda::Event begin_{true}, end_{true};
    bool by_engines_ = true;
    std::optional<Pacer> pacer_;
};

}  // namespace mr::overlap
