// Gradients sharded over ranks (ZeRO 2). A unit's gradient is whole only while it is computed and
// summed over ranks, for every grain; the sum over grains, a binary tree, is kept only for this
// rank's share. Rank r has grains r, r + ranks, r + 2 ranks, ...: grains summed at the same time
// are neighbours, a subtree of the tree over all grains, so the order of the sum is the same as
// without sharding.
#pragma once

#include <cstdint>
#include <vector>

#include "model/train/grad_exchange.h"
#include "model/train/train_ops.h"
#include "model/train/unit_pieces.h"

namespace mr::model {

class GradShards {
  public:
    // `grains` of this rank, a power of two. All other arguments must outlive the object.
    GradShards(const ParamLayout& layout, const UnitPieces& units, int grains, TrainOps& ops,
               GradExchange& exchange);

    // What it allocates from `ops`: sums of shares, and unit buffers.
    static std::uint64_t share_bytes(const UnitPieces& units, int grains);
    static std::uint64_t buffer_bytes(const UnitPieces& units);

    // Begins a grain; returns the gradients that its pass adds to.
    const Weights& begin();
    // enter(): before the unit's first gradient is added; leave(): when all of them are there.
    void enter(int unit);
    void leave(int unit);
    // After the last grain: the sum over all grains and ranks, f32 [units.shares].
    Tensor sums();

  private:
    // Gradients given to the exchange, by the memory they lie in: two unit buffers, two for norms
    // and biases.
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
    float* vectors_[2] = {};      // for alternate grains
    Weights views_[2];            // of each of them
    std::vector<Tensor> levels_;  // sums of 1, 2, 4, ... grains, [shares + head]
    std::vector<Pending> pending_[4];
    int grain_ = 0;
};

}  // namespace mr::model
