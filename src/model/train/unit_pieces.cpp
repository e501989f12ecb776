#include "model/train/unit_pieces.h"

#include <algorithm>

#include "core/error.h"

namespace mr::model {

std::vector<comm::Shards> UnitPieces::cuts() const {
    std::vector<comm::Shards> out;
    for (const UnitPiece& piece : pieces) out.push_back(piece.cut);
    return out;
}

std::int64_t UnitPieces::whole(int unit) const {
    std::int64_t count = 0;
    for (const UnitPiece& piece : pieces) {
        if (piece.unit == unit && piece.matrices) count += piece.count();
    }
    return count;
}

UnitPieces unit_pieces(const ParamLayout& layout, const std::vector<ParamRange>& ranges,
                       const std::vector<comm::Shards>& shards, int rank) {
    UnitPieces out;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const ParamRange& range = ranges[i];
        const bool matrices = range.begin < layout.decayed;
        const std::int64_t at = matrices ? out.whole(range.unit) : range.begin - layout.decayed;
        out.pieces.push_back({range.unit, matrices, shards[i], at, out.shares});
        out.shares += shards[i].size(rank);
        if (matrices) out.matrices = out.shares;
    }
    out.vectors = layout.count - layout.decayed;
    // A pipeline stage has one of the two, or neither.
    out.tied = layout.spec.tied_embeddings && layout.all;
    if (out.tied) {
        MR_CHECK(layout.entries.front().at.role == Role::embedding, "the table comes first");
        const int last = unit_count(layout.spec) - 1;
        const comm::Shards cut = shards.front().first(head_rows(layout.spec) * layout.spec.dim);
        out.pieces.push_back({last, true, cut, out.whole(last), out.shares});
        out.head = cut.size(rank);
    }
    for (int unit = 0; unit < unit_count(layout.spec); ++unit) {
        out.buffers[unit % 2] = std::max(out.buffers[unit % 2], out.whole(unit));
    }
    return out;
}

Weights unit_views(const ParamLayout& layout, const UnitPieces& units, void* const buffers[2],
                   DType dtype, float* vectors) {
    const auto in_buffer = [&](const UnitPiece& piece, std::int64_t offset) {
        const auto elements = static_cast<std::size_t>(piece.at + offset);
        return static_cast<std::byte*>(buffers[piece.unit % 2]) + dtype_bytes(dtype, elements);
    };
    Weights out;
    out.layers.resize(static_cast<std::size_t>(layout.spec.layers));
    const std::vector<ParamRange> ranges = param_ranges(layout);
    std::size_t range = 0;
    for (const ParamLayout::Entry& entry : layout.entries) {
        while (entry.offset >= ranges[range].end) ++range;
        const std::int64_t offset = entry.offset - ranges[range].begin;
        Tensor& slot = role_slot(out, entry.at);
        if (units.pieces[range].matrices) {
            slot = Tensor(in_buffer(units.pieces[range], offset), dtype, entry.shape);
        } else {
            slot = Tensor(vectors + (entry.offset - layout.decayed), DType::f32, entry.shape);
        }
    }
    if (units.tied) {
        out.head = Tensor(in_buffer(units.pieces.back(), 0), dtype, out.embedding.shape);
    }
    return out;
}

}  // namespace mr::model
