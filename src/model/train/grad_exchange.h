// The exchange of gradients and parameters between ranks that train together. All ranks call the
// same functions in the same order.
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
    // Gradients come from this stream; null: from the calling thread. Called once, by the engine.
    virtual void attach(const cuda::Stream* /*training*/) {}
    // add_up() and collect() only start an operation; operations run in order, beside the
    // computation. Elements are in device or host memory, as for TrainOps; nothing may read or
    // write them until wait() returns. Tickets rise.
    using Ticket = std::int64_t;
    static constexpr Ticket kNothing = 0;
    // elements[0 .. shards.count()) hold this rank's sum and get the sum over all ranks, as a
    // binary tree over ranks: all of them, or only this rank's share.
    virtual Ticket add_up(float* elements, const comm::Shards& shards, bool whole) = 0;
    // Every rank starts with its own share of the elements, of `size` bytes each, and ends with all
    // of them.
    virtual Ticket collect(void* elements, const comm::Shards& shards, std::size_t size) = 0;
    // Sends what was started now, without waiting for more to send with it.
    virtual void flush() {}
    // Waits until this operation and all earlier ones are done. Throws their errors.
    virtual void wait(Ticket ticket) = 0;
    // Waits for all of them. Call it before any function below.
    virtual void finish() = 0;
    // The numbers of all ranks, by rank; every rank passes equally many.
    virtual std::vector<double> gather(std::span<const double> mine) = 0;
    // From one rank to another.
    virtual void send(int to, std::span<const std::byte> data) = 0;
    virtual void receive(int from, std::span<std::byte> data) = 0;
    // Upper bound of its own memory in bytes, if add_up() is given such pieces.
    virtual std::uint64_t memory_bytes(std::span<const comm::Shards> /*pieces*/,
                                       bool /*whole*/) const {
        return 0;
    }
};

}  // namespace mr::model
