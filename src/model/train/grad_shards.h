// Gradients that ranks share (ZeRO 2). A unit's gradient is whole for as long as it is computed and
// added up over ranks, which is done for every grain; the sum over grains, a binary tree, is kept
// of this rank's share alone. Rank r has grains r, r + ranks, r + 2 ranks, ...: those that are
// added up at a time are neighbours, a part of the tree over all grains, so the order of the sum is
// that of every other way.
#pragma once

#include <cstdint>
#include <vector>

#include "model/train/grad_exchange.h"
#include "model/train/train_ops.h"
#include "model/train/unit_pieces.h"

namespace mr::model {

class GradShards {
  public:
    // `grains` of this rank, a power of two. All else outlives this.
    GradShards(const ParamLayout& layout, const UnitPieces& units, int grains, TrainOps& ops,
               GradExchange& exchange);

    // What it takes from `ops`: sums in shares, and buffers of units.
    static std::uint64_t share_bytes(const UnitPieces& units, int grains);
    static std::uint64_t buffer_bytes(const UnitPieces& units);

    // A grain begins: what its pass adds to.
    const Weights& begin();
    // Before the unit's first gradient is added, and when all of it is there.
    void enter(int unit);
    void leave(int unit);
    // Behind the last grain: the sum over all grains and ranks, f32 [units.shares].
    Tensor sums();

  private:
    // What was handed over, by the memory in which it lies: two buffers of units, two of norms and
    // biases.
    struct Pending {
        std::size_t piece;
        int grain;
        GradExchange::Ticket ticket;
    };
    float* whole(const UnitPiece& piece) const;
    Tensor share(std::size_t level, std::int64_t at, std::int64_t count) const;
    void settle(int slot);
    void add(const UnitPiece& piece, int grain);
    void add_head();

    const ParamLayout& layout_;
    const UnitPieces& units_;
    TrainOps& ops_;
    GradExchange& exchange_;
    float* buffers_[2] = {};
    float* vectors_[2] = {};      // of grains in turn
    Weights views_[2];            // of each
    std::vector<Tensor> levels_;  // sums of 1, 2, 4, ... grains, [shares + head]
    std::vector<Pending> pending_[4];
    int grain_ = 0;
};

}  // namespace mr::model
