// Parameters sharded over ranks (ZeRO 3). The matrices of a unit are gathered into one of two
// buffers while the unit before it computes.
#pragma once

#include <cstdint>

#include "model/train/grad_exchange.h"
#include "model/train/train_ops.h"
#include "model/train/unit_pieces.h"

namespace mr::model {

class ParamShards {
  public:
    // `shares`: this rank's share of all matrices, [units.matrices] in ops.compute_type().
    // `vectors`: all norms and biases. All arguments must outlive the object.
    ParamShards(const ParamLayout& layout, const UnitPieces& units, Tensor shares, float* vectors,
                TrainOps& ops, GradExchange& exchange);
    static std::uint64_t buffer_bytes(const UnitPieces& units, DType compute);

    // The weights that a pass reads. A unit's tensors are valid from enter() until the unit after
    // the next is entered.
    const Weights& weights() const { return views_; }
    // A pass reaches the unit; meanwhile the next one is gathered (in the backward, the one
    // before). `again`: another pass with the same parameters follows.
    void enter(int unit, bool backward, bool again);
    // Call when parameters have changed.
    void forget();

  private:
    void gather(int unit);

    const UnitPieces& units_;
    const Tensor shares_;
    TrainOps& ops_;
    GradExchange& exchange_;
    const int last_;  // unit
    void* buffers_[2] = {};
    int held_[2] = {-1, -1};  // the gathered units, complete or in flight
    GradExchange::Ticket tickets_[2] = {GradExchange::kNothing, GradExchange::kNothing};
    Weights views_;
};

}  // namespace mr::model
