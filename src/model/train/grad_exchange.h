// What ranks that train together do with their gradients and parameters. All ranks call the same
// functions in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/comm/comm.h"
#include "core/cuda/device.h"

namespace mr::model {

class GradExchange {
  public:
    virtual ~GradExchange() = default;
    virtual int rank() const = 0;
    virtual int ranks() const = 0;
    // Gradients come from this stream; null: from the thread that calls. Told once, by the engine.
    virtual void attach(const cuda::Stream* /*training*/) {}
    // elements[0 .. shards.count()), where gradients lie, are this rank's own sum, and become that
    // of all ranks, a binary tree over ranks: all of them, or this rank's share alone. Returns at
    // once; nothing touches them before finish().
    virtual void add_up(float* elements, const comm::Shards& shards, bool whole) = 0;
    // Until all of it is there. Throws what went wrong on the way. Everything below is behind it.
    virtual void finish() = 0;
    // The numbers of all ranks, by rank; every rank has as many.
    virtual std::vector<double> gather(std::span<const double> mine) = 0;
    // Every rank has its own share of the elements, and then all of them.
    virtual void collect(float* elements, const comm::Shards& shards) = 0;
    // One rank to another.
    virtual void send(int to, std::span<const std::byte> data) = 0;
    virtual void receive(int from, std::span<std::byte> data) = 0;
};

}  // namespace mr::model
