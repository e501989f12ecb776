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
    // What add_up() and collect() begin is done in the order in which it was begun, beside what
    // computes. Elements lie where the operations have them; nothing reads or writes what was
    // handed over before wait() says that it is done. Tickets rise.
    using Ticket = std::int64_t;
    static constexpr Ticket kNothing = 0;
    // elements[0 .. shards.count()) are this rank's own sum, and become that of all ranks, a binary
    // tree over ranks: all of them, or this rank's share alone.
    virtual Ticket add_up(float* elements, const comm::Shards& shards, bool whole) = 0;
    // Every rank has its own share of the elements, of `size` bytes each, and then all of them.
    virtual Ticket collect(void* elements, const comm::Shards& shards, std::size_t size) = 0;
    // What was begun goes out now, not when there is enough of it to travel together.
    virtual void flush() {}
    // Until that, and all that was begun before it, is there. Throws what went wrong on the way.
    virtual void wait(Ticket ticket) = 0;
    // Until all of it is there. Everything below is behind it.
    virtual void finish() = 0;
    // The numbers of all ranks, by rank; every rank has as many.
    virtual std::vector<double> gather(std::span<const double> mine) = 0;
    // One rank to another.
    virtual void send(int to, std::span<const std::byte> data) = 0;
    virtual void receive(int from, std::span<std::byte> data) = 0;
    // Bytes that it takes by itself, at most, where add_up() is given such pieces.
    virtual std::uint64_t memory_bytes(std::span<const comm::Shards> /*pieces*/,
                                       bool /*whole*/) const {
        return 0;
    }
};

}  // namespace mr::model
