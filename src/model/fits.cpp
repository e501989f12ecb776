#include "model/fits.h"

#include <algorithm>

#include "core/arena.h"
#include "model/kv_cache.h"
#include "model/names.h"
#include "ops/linear/linear.h"

namespace mr::model {
namespace {

// The largest context whose cache takes at most `room` bytes.
std::int64_t largest_context(const ModelSpec& spec, std::uint64_t room, DType kv) {
    const std::int64_t most =
        spec.learned_positions ? std::int64_t{spec.context} : std::int64_t{kMostContext};
    const auto fits = [&](std::int64_t tokens) {
        return KvCache::bytes(spec, KvCache::pages_for(tokens), kv) <= room;
    };
    constexpr std::int64_t kPage = KvCache::kPageTokens;
    std::int64_t low = 0, high = most / kPage + 1;  // pages: low fit, high do not
    while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        (fits(middle * kPage) ? low : high) = middle;
    }
    // The model's last page may be partial.
    if (low == most / kPage && fits(most)) return most;
    return low * kPage;
}

DType stored_type(const Shape& shape, DType type) {
    return shape[1] % dtype_info(type).block == 0 ? type : DType::f16;
}

}  // namespace

std::uint64_t weight_bytes(const ModelSpec& spec, DType type) {
    std::uint64_t bytes = 0;
    for (const RoleAt at : roles_of(spec)) {
        const Shape shape = role_shape(spec, at.role);
        const DType stored = is_matrix(at.role) ? stored_type(shape, type) : DType::f32;
        bytes += Arena::tensor_bytes(stored, shape);
    }
    return bytes;
}

std::uint64_t repacked_weight_bytes(const ModelSpec& spec, DType type) {
    const std::uint64_t bytes = weight_bytes(spec, type);
    const Shape head = role_shape(spec, Role::head);
    const DType stored = stored_type(head, type);
    const bool copied = spec.tied_embeddings && ops::linear_fastest_type(stored, head[0]) != stored;
    return bytes + (copied ? Arena::tensor_bytes(stored, head) : 0);
}

std::vector<Fit> what_fits(const ModelSpec& spec, std::uint64_t memory, std::uint64_t other,
                           std::span<const DType> kv_types, WeightBytes bytes) {
    std::vector<Fit> fits;
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        const std::uint64_t weights = bytes(spec, type);
        for (const DType kv : kv_types) {
            const std::uint64_t taken = weights + other;
            fits.push_back({type, kv, weights,
                            taken < memory ? largest_context(spec, memory - taken, kv) : 0});
        }
    }
    return fits;
}

}  // namespace mr::model
