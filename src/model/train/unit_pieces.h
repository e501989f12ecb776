// A model's parameters as ranks share them by units (params.h): what ZeRO 2 does with gradients
// (grad_shards.h) and ZeRO 3 with parameters (param_shards.h). A unit's matrices are whole in one
// of two buffers while the unit is used, units of even numbers in the first, and each rank keeps
// its share of them. Norms and biases are whole all the time: they are few, and a layer's norm adds
// to the bias of the layer below.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/comm/comm.h"
#include "model/train/params.h"

namespace mr::model {

struct UnitPiece {
    int unit = 0;
    bool matrices = true;  // else norms and biases
    comm::Shards cut;
    std::int64_t at = 0;     // of its first element in the unit's buffer, or among norms and biases
    std::int64_t share = 0;  // of this rank's part of it among the shares, which lie end to end

    std::int64_t count() const { return cut.count(); }
};

struct UnitPieces {
    // One for every range, in their order. Of a tied table there is one more behind them, the head,
    // of the last unit: the rows of the table once more, in the table's cuts.
    std::vector<UnitPiece> pieces;
    bool tied = false;
    std::int64_t matrices = 0;     // elements of all shares: of matrices, which come first
    std::int64_t shares = 0;       // ... of all ranges
    std::int64_t head = 0;         // ... of the tied head
    std::int64_t buffers[2] = {};  // elements that units of even and odd numbers have at most
    std::int64_t vectors = 0;      // norms and biases, all

    std::vector<comm::Shards> cuts() const;
    // Elements of a unit in its buffer.
    std::int64_t whole(int unit) const;
};
UnitPieces unit_pieces(const ParamLayout& layout, const std::vector<ParamRange>& ranges,
                       const std::vector<comm::Shards>& shards, int rank);

// The tensors of a layout in the buffers of units, of `dtype`, and of norms and biases, f32.
Weights unit_views(const ParamLayout& layout, const UnitPieces& units, void* const buffers[2],
                   DType dtype, float* vectors);

}  // namespace mr::model
