#include "model/train/grad_shards.h"

#include <algorithm>
#include <bit>

namespace mr::model {
namespace {

std::size_t float_bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(float);
}
int level_count(int grains) { return std::bit_width(static_cast<unsigned>(grains)); }

}  // namespace

std::uint64_t GradShards::share_bytes(const UnitPieces& units, int grains) {
    return static_cast<std::uint64_t>(level_count(grains)) *
           TrainOps::padded(float_bytes(units.shares + units.head));
}

std::uint64_t GradShards::buffer_bytes(const UnitPieces& units) {
    std::uint64_t bytes = 2 * TrainOps::padded(float_bytes(units.vectors));
    for (const std::int64_t count : units.buffers) bytes += TrainOps::padded(float_bytes(count));
    return bytes;
}

GradShards::GradShards(const ParamLayout& layout, const UnitPieces& units, int grains,
                       TrainOps& ops, GradExchange& exchange)
    : layout_(layout), units_(units), ops_(ops), exchange_(exchange) {
    const auto take = [&](std::int64_t count) {
        return static_cast<float*>(ops_.allocate("gradients", float_bytes(count)));
    };
    for (int i = 0; i < 2; ++i) buffers_[i] = take(units.buffers[i]);
    void* const buffers[] = {buffers_[0], buffers_[1]};
    for (int i = 0; i < 2; ++i) {
        vectors_[i] = take(units.vectors);
        views_[i] = unit_views(layout, units, buffers, DType::f32, vectors_[i]);
    }
    const Shape shape{units.shares + units.head};
    for (int i = 0; i < level_count(grains); ++i) {
        levels_.emplace_back(take(shape[0]), DType::f32, shape);
    }
}

float* GradShards::whole(const UnitPiece& piece) const {
    return (piece.matrices ? buffers_[piece.unit % 2] : vectors_[grain_ % 2]) + piece.at;
}

Tensor GradShards::share(std::size_t level, std::int64_t at, std::int64_t count) const {
    return {levels_[level].f32() + at, DType::f32, {count}};
}

const Weights& GradShards::begin() {
    const int turn = grain_ % 2;
    settle(2 + turn);
    ops_.zero({vectors_[turn], DType::f32, {units_.vectors}});
    return views_[turn];
}

void GradShards::enter(int unit) {
    const int turn = unit % 2;
    settle(turn);
    if (const std::int64_t count = units_.whole(unit); count > 0) {
        ops_.zero({buffers_[turn], DType::f32, {count}});
    }
}

void GradShards::leave(int unit) {
    for (std::size_t i = 0; i < units_.pieces.size(); ++i) {
        const UnitPiece& piece = units_.pieces[i];
        if (piece.unit != unit) continue;
        const int slot = piece.matrices ? unit % 2 : 2 + grain_ % 2;
        pending_[slot].push_back({i, grain_, exchange_.add_up(whole(piece), piece.cut, false)});
    }
    exchange_.flush();  // the unit after the next needs the buffer
    if (unit == 0) ++grain_;
}

// The pending gradients in this slot are now summed over ranks, for this rank's share: adds them to
// the sum over grains, and frees the slot.
void GradShards::settle(int slot) {
    if (pending_[slot].empty()) return;
    exchange_.wait(pending_[slot].back().ticket);
    for (const Pending& each : pending_[slot]) add(units_.pieces[each.piece], each.grain);
    pending_[slot].clear();
}

// Together with the sum of as many grains before it, a sum moves up a level. Older grains are the
// left operand.
void GradShards::add(const UnitPiece& piece, int grain) {
    const std::int64_t begin = piece.cut.begin(exchange_.rank());
    const std::int64_t count = piece.cut.size(exchange_.rank());
    if (count == 0) return;
    float* const base = piece.matrices ? buffers_[piece.unit % 2] : vectors_[grain % 2];
    const Tensor from(base + piece.at + begin, DType::f32, {count});
    const auto level = static_cast<std::size_t>(std::countr_one(static_cast<unsigned>(grain)));
    const Tensor to = share(level, piece.share, count);
    if (level == 0) return ops_.copy(to, from);
    for (std::size_t i = 0; i < level; ++i) {
        ops_.sum_of(i + 1 == level ? to : from, share(i, piece.share, count), from);
    }
}

// Adds the two gradients of a tied table: that of the tokens is among the shares, that of the head
// after them. The head's GEMM may have more rows than the table (params.h).
void GradShards::add_head() {
    const UnitPiece &table = units_.pieces.front(), &head = units_.pieces.back();
    const std::int64_t begin = head.cut.begin(exchange_.rank());
    const std::int64_t end = head.cut.end(exchange_.rank());
    const std::int64_t tokens = std::int64_t{layout_.spec.vocab} * layout_.spec.dim;
    const std::int64_t rows = std::clamp(tokens, begin, end) - begin;
    const std::size_t top = levels_.size() - 1;
    if (rows > 0) {
        const Tensor to = share(top, table.share, rows);
        ops_.sum_of(to, share(top, head.share, rows), to);
    }
    if (const std::int64_t more = end - begin - rows; more > 0) {
        ops_.copy(share(top, table.share + rows, more), share(top, head.share + rows, more));
    }
}

Tensor GradShards::sums() {
    for (int slot = 0; slot < 4; ++slot) settle(slot);
    if (units_.tied) add_head();
    grain_ = 0;
    return share(levels_.size() - 1, 0, units_.shares);
}

}  // namespace mr::model
