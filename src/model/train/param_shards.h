// Parameters that ranks share (ZeRO 3). The matrices of a unit are gathered into one of two buffers
// while the unit before it computes.
#pragma once

#include <cstdint>

#include "model/train/grad_exchange.h"
#include "model/train/train_ops.h"
#include "model/train/unit_pieces.h"

namespace mr::model {

class ParamShards {
  public:
    // `shares`: this rank's of all matrices, [units.matrices] in ops.compute_type(). `vectors`: all
    // norms and biases. All of it outlives this.
    ParamShards(const ParamLayout& layout, const UnitPieces& units, Tensor shares, float* vectors,
                TrainOps& ops, GradExchange& exchange);
    static std::uint64_t buffer_bytes(const UnitPieces& units, DType compute);

    // What a pass reads. A unit's tensors are there from enter() on until the unit after the next
    // is entered.
    const Weights& weights() const { return views_; }
    // A pass comes to the unit. The one behind it is gathered meanwhile, forward the next, backward
    // the one before; `again`: another pass with the same parameters follows this one.
    void enter(int unit, bool backward, bool again);
    // Parameters have changed.
    void forget();

  private:
    void gather(int unit);

    const UnitPieces& units_;
    const Tensor shares_;
    TrainOps& ops_;
    GradExchange& exchange_;
    const int last_;  // unit
    void* buffers_[2] = {};
    int held_[2] = {-1, -1};  // the units that are there, or on their way
    GradExchange::Ticket tickets_[2] = {GradExchange::kNothing, GradExchange::kNothing};
    Weights views_;
};

}  // namespace mr::model
