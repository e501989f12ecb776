// What stages of a pipeline send each other. All stages of a replica call what fits each other in
// the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/device.h"
#include "core/tensor.h"

namespace mr::model {

class StageLink {
  public:
    virtual ~StageLink() = default;
    // Operations are those of this stream; null: of the thread that calls. Told once, by the
    // engine.
    virtual void attach(const cuda::Stream* /*training*/) {}

    // Of a pass: the residual stream or its gradient, f32, where tensors lie. Both return at once;
    // `x` is the link's until wait(). What is sent is what the operations before made of it, and
    // arrives in the order in which it was sent. Two stages may send each other something at the
    // same time: neither waits for the other.
    using Ticket = std::int64_t;
    static constexpr Ticket kNone = 0;  // wait() returns at once
    virtual Ticket send(int stage, Tensor x) = 0;
    virtual Ticket receive(int stage, Tensor x) = 0;
    // Operations that come behind this may use `x` again. Throws what went wrong on the way.
    virtual void wait(Ticket ticket) = 0;

    // Between passes, with nothing on its way.
    // The numbers of all stages, by stage; every stage has as many.
    virtual std::vector<double> gather(std::span<const double> mine) = 0;
    // Both stages give theirs and have that of the other.
    virtual void swap(int stage, Tensor mine, Tensor theirs) = 0;
    virtual void send_bytes(int stage, std::span<const std::byte> data) = 0;
    virtual void receive_bytes(int stage, std::span<std::byte> data) = 0;
};

}  // namespace mr::model
