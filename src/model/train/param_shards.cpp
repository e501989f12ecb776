#include "model/train/param_shards.h"

namespace mr::model {

std::uint64_t ParamShards::buffer_bytes(const UnitPieces& units, DType compute) {
    std::uint64_t bytes = 0;
    for (const std::int64_t count : units.buffers) {
        bytes += TrainOps::padded(dtype_bytes(compute, static_cast<std::size_t>(count)));
    }
    return bytes;
}

ParamShards::ParamShards(const ParamLayout& layout, const UnitPieces& units, Tensor shares,
                         float* vectors, TrainOps& ops, GradExchange& exchange)
    : units_(units),
      shares_(shares),
      ops_(ops),
      exchange_(exchange),
      last_(unit_count(layout.spec) - 1) {
    for (int i = 0; i < 2; ++i) {
        const auto count = static_cast<std::size_t>(units.buffers[i]);
        buffers_[i] = ops_.allocate("parameters of a unit", dtype_bytes(shares.dtype, count));
    }
    views_ = unit_views(layout, units, buffers_, shares.dtype, vectors);
}

void ParamShards::enter(int unit, bool backward, bool again) {
    if (backward && unit == 0) return;  // the backward does not read tables
    gather(unit);
    exchange_.wait(tickets_[unit % 2]);
    const int next = unit + (backward ? -1 : 1);
    if (next > last_ || (next == 0 && !again)) return;
    gather(next);
}

// The buffer's previous unit was left: passes visit units one after another.
void ParamShards::gather(int unit) {
    const int turn = unit % 2;
    if (held_[turn] == unit) return;
    held_[turn] = unit;
    exchange_.wait(tickets_[turn]);
    const std::size_t size = dtype_bytes(shares_.dtype, 1);
    for (const UnitPiece& piece : units_.pieces) {
        if (piece.unit != unit || !piece.matrices) continue;
        const bool head = units_.tied && &piece == &units_.pieces.back();
        const std::int64_t share = head ? units_.pieces.front().share : piece.share;
        const std::int64_t count = piece.cut.size(exchange_.rank());
        const auto at = [&](void* base, std::int64_t element) {
            return static_cast<std::byte*>(base) + static_cast<std::size_t>(element) * size;
        };
        std::byte* const to = at(buffers_[turn], piece.at);
        if (count > 0) {
            ops_.copy({at(to, piece.cut.begin(exchange_.rank())), shares_.dtype, {count}},
                      {at(shares_.data, share), shares_.dtype, {count}});
        }
        tickets_[turn] = exchange_.collect(to, piece.cut, size);
    }
}

void ParamShards::forget() { held_[0] = held_[1] = -1; }

}  // namespace mr::model
