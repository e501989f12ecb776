#include "lab/context/upkeep.h"

#include <cmath>

#include "core/error.h"

namespace mr::context {

std::uint64_t Cache::place_bytes() const {
    const Tensor& keys = layers.front().keys;
    return layers.size() * static_cast<std::uint64_t>(heads()) * keys.row_bytes();
}

void add_turns(Cache& cache, const model::ModelSpec& spec, bool cuda) {
    const model::LayerRopes ropes = model::layer_ropes(spec);
    cache.turn_of = ropes.of_layer;
    cache.turns.clear();
    for (const model::RopeSpec& rope : ropes.ropes) {
        const model::RopeFrequencies speeds = model::rope_frequencies(rope);
        Turn turn;
        turn.rotary = rope.rotary;
        turn.style = cuda ? ops::RopeStyle::interleaved : rope.style;
        for (std::int64_t place = 0; place < cache.capacity; ++place) {
            for (const double speed : speeds.inv_freq) {
                const double angle = static_cast<double>(place) * speed;
                const double c = std::cos(angle), s = std::sin(angle);
                turn.forward.push_back(static_cast<float>(c * speeds.magnitude));
                turn.forward.push_back(static_cast<float>(s * speeds.magnitude));
                turn.back.push_back(static_cast<float>(c / speeds.magnitude));
                turn.back.push_back(static_cast<float>(-s / speeds.magnitude));
            }
        }
        cache.turns.push_back(std::move(turn));
    }
}

Upkeep::~Upkeep() = default;

std::uint64_t Upkeep::take(std::int64_t from, std::int64_t to) {
    MR_CHECK(0 <= from && from <= to && to <= cache_.capacity, "the places are the cache's");
    if (from == to) return 0;
    do_take(from, to);
    return 2 * static_cast<std::uint64_t>(to - from) * cache_.place_bytes();
}

std::uint64_t Upkeep::evict(std::int64_t first, std::int64_t count, std::int64_t length) {
    MR_CHECK(first >= 0 && count >= 0 && first + count <= length && length <= cache_.capacity,
             "what leaves is in the cache");
    if (count == 0) return 0;
    do_evict(first, count, length);
    const std::int64_t keys = length - count, values = length - count - first;
    return 2 * static_cast<std::uint64_t>(keys + values) * cache_.place_bytes();
}

std::uint64_t Upkeep::rotate(std::int64_t length) {
    MR_CHECK(length >= 0 && length <= cache_.capacity, "the places are the cache's");
    if (length == 0) return 0;
    do_rotate(length);
    return 2 * static_cast<std::uint64_t>(length) * cache_.place_bytes();
}

std::unique_ptr<Upkeep> make_upkeep(const Context& ctx, Cache cache) {
    if (!ctx.cuda) return make_host_upkeep(ctx, std::move(cache));
#ifdef MR_CUDA
    return make_device_upkeep(ctx, std::move(cache));
#else
    MR_CHECK(false, "a build without CUDA has no engine there");
#endif
}

}  // namespace mr::context
