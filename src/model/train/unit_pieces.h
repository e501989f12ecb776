// A model's parameters sharded by units (params.h), for gradients in ZeRO 2 (grad_shards.h) and
// parameters in ZeRO 3 (param_shards.h). A unit's matrices are whole in one of two buffers while
// the unit is used, units with even numbers in the first, and each rank keeps its share of them.
// Norms and biases are always whole: they are few, and a layer's norm adds to the bias of the layer
// below.
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
    std::int64_t at = 0;     // its first element in the unit's buffer, or among norms and biases
    std::int64_t share = 0;  // start of this rank's part among the shares, which lie end to end

    std::int64_t count() const { return cut.count(); }
};

struct UnitPieces {
    // One for every range, in order. A tied table has one more at the end, the head, in the last
    // unit: the rows of the table again, with the table's cuts.
    std::vector<UnitPiece> pieces;
    bool tied = false;
    std::int64_t matrices = 0;     // elements of this rank's shares of matrices, which come first
    std::int64_t shares = 0;       // ... of all ranges
    std::int64_t head = 0;         // ... of the tied head
    std::int64_t buffers[2] = {};  // largest size of units with even and odd numbers, in elements
    std::int64_t vectors = 0;      // elements of all norms and biases

    std::vector<comm::Shards> cuts() const;
    // Elements of a unit in its buffer.
    std::int64_t whole(int unit) const;
};
UnitPieces unit_pieces(const ParamLayout& layout, const std::vector<ParamRange>& ranges,
                       const std::vector<comm::Shards>& shards, int rank);

// Views of a layout's tensors in the unit buffers, of `dtype`, and in those of norms and biases,
// f32.
Weights unit_views(const ParamLayout& layout, const UnitPieces& units, void* const buffers[2],
                   DType dtype, float* vectors);

}  // namespace mr::model
