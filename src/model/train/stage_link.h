// Transfers between the stages of a pipeline. All stages of a replica make matching calls in the
// same order.
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
    // Operations run on this stream; null: in the calling thread. Called once, by the
    // engine.
    virtual void attach(const cuda::Stream* /*training*/) {}

    // In a pass: the residual stream or its gradient, f32, in the memory of TrainOps. Both return
    // at once; `x` belongs to the link until wait(). Sends wait for the operations before them, and
    // arrive in order. Two stages may send to each other at the same time without waiting for each
    // other.
    using Ticket = std::int64_t;
    static constexpr Ticket kNone = 0;  // wait() returns at once
    virtual Ticket send(int stage, Tensor x) = 0;
    virtual Ticket receive(int stage, Tensor x) = 0;
    // Later operations may use `x` again. Throws the transfer's error.
    virtual void wait(Ticket ticket) = 0;

    // Call the functions below only between passes, with nothing in flight.
    // The numbers of all stages, by stage; every stage passes equally many.
    virtual std::vector<double> gather(std::span<const double> mine) = 0;
    // Exchanges tensors between two stages.
    virtual void swap(int stage, Tensor mine, Tensor theirs) = 0;
    virtual void send_bytes(int stage, std::span<const std::byte> data) = 0;
    virtual void receive_bytes(int stage, std::span<std::byte> data) = 0;
};

}  // namespace mr::model
