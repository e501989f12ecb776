#include "lab/context/sequences.h"

#include "core/error.h"

namespace mr::context {

RingSequence::RingSequence(model::Engine& engine, const model::Stream& stream) : Sequence(engine) {
    engine_.cache().set_stream(id_, stream);
    MR_CHECK(engine_.try_reserve(id_, 0, model::Engine::kMostPositions),
             "the engine was made for this stream");
}

PublishedSequence::PublishedSequence(model::Engine& engine, const model::Stream& stream, int prune)
    : Sequence(engine),
      sinks_(stream.sinks),
      prune_(prune),
      capacity_(std::int64_t{stream.sinks} + stream.window - 1 + prune) {
    MR_CHECK(prune >= 1 && stream.window >= 1, "something is kept and something leaves");
    engine_.cache().reserve(id_, capacity_);
    Cache cache;
    cache.capacity = capacity_;
    const model::ModelSpec& spec = engine_.model().spec;
    for (int i = 0; i < spec.layers; ++i) cache.layers.push_back(engine_.cache().layer(i));
    for (std::int64_t at = 0; at < capacity_; at += model::KvCache::kPageTokens) {
        pages_.push_back(engine_.cache().page_at(id_, at));
    }
    cache.pages = pages_;
    add_turns(cache, spec, engine_.options().cuda);
    upkeep_ = make_upkeep(engine_.context(), std::move(cache));
}

void PublishedSequence::reserve() {
    model::KvCache& cache = engine_.cache();
    cache.reserve(id_, capacity_);
    for (std::size_t i = 0; i < pages_.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i) * model::KvCache::kPageTokens;
        MR_CHECK(cache.page_at(id_, at) == pages_[i], "the only sequence finds its pages again");
    }
}

std::uint64_t PublishedSequence::keep() {
    length_ = engine_.cache().length(id_);
    std::uint64_t bytes = upkeep_->take(taken_, length_);
    if (length_ == capacity_) {
        bytes += upkeep_->evict(sinks_, prune_, length_);
        length_ -= prune_;
    }
    taken_ = length_;
    return bytes + upkeep_->rotate(length_);
}

bool PublishedSequence::settle() {
    if (length_ == engine_.cache().length(id_)) return false;
    engine_.cache().truncate(id_, length_);
    reserve();
    return true;
}

}  // namespace mr::context
