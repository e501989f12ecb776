#include "model/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace mr::model {
namespace {

std::int64_t pages_for(std::int64_t tokens) {
    return (tokens + KvCache::kPageTokens - 1) / KvCache::kPageTokens;
}

Shape layer_shape(const ModelSpec& spec, std::int64_t pages) {
    return {pages, spec.kv_heads, KvCache::kPageTokens, spec.head_dim};
}

// Every sequence may leave its last page part empty.
std::int64_t pool_pages(std::int64_t tokens, int sequences) {
    return pages_for(tokens) + sequences - 1;
}

}  // namespace

std::uint64_t KvCache::bytes(const ModelSpec& spec, std::int64_t tokens, int sequences,
                             DType dtype) {
    const Shape shape = layer_shape(spec, pool_pages(tokens, sequences));
    return 2 * static_cast<std::uint64_t>(spec.layers) * Arena::tensor_bytes(dtype, shape);
}

KvCache::KvCache(const ModelSpec& spec, std::int64_t tokens, int sequences, DType dtype,
                 std::byte* memory)
    : dtype_(dtype), arena_("KV cache", memory ? 0 : bytes(spec, tokens, sequences, dtype)) {
    MR_CHECK(memory || dtype == DType::f32 || dtype == DType::f16, "the KV cache is f32 or f16");
    MR_CHECK(tokens > 0 && sequences > 0, "a cache has room for one token of one sequence");
    const std::int64_t pages = pool_pages(tokens, sequences);
    for (int i = 0; i < spec.layers; ++i) {
        const Shape shape = layer_shape(spec, pages);
        const auto take = [&]() -> Tensor {
            if (!memory) return arena_.tensor(dtype, shape);
            const Tensor tensor(memory, dtype, shape);
            memory += Arena::tensor_bytes(dtype, shape);
            return tensor;
        };
        const Tensor keys = take();
        layers_.push_back({keys, take()});
    }
    sequences_.resize(static_cast<std::size_t>(sequences));
    for (Sequence& sequence : sequences_) {
        sequence.pages.reserve(static_cast<std::size_t>(pages));  // nothing allocates in a step
    }
    free_pages_.reserve(static_cast<std::size_t>(pages));
    for (std::int64_t page = pages; page-- > 0;) {
        free_pages_.push_back(static_cast<std::int32_t>(page));
    }
}

KvCache::Sequence& KvCache::at(SeqId id) {
    MR_CHECK(id >= 0 && id < static_cast<SeqId>(sequences_.size()) &&
                 sequences_[static_cast<std::size_t>(id)].open,
             "the sequence is open");
    return sequences_[static_cast<std::size_t>(id)];
}

const KvCache::Sequence& KvCache::at(SeqId id) const { return const_cast<KvCache*>(this)->at(id); }

SeqId KvCache::open() {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
        if (sequences_[i].open) continue;
        sequences_[i].open = true;
        sequences_[i].length = 0;
        return static_cast<SeqId>(i);
    }
    throw Error::device({.field = "sequences",
                         .value = std::to_string(sequences_.size()),
                         .problem = "all of them are in use",
                         .remedy = "start the engine with a larger --batch"});
}

void KvCache::close(SeqId id) {
    truncate(id, 0);
    at(id).open = false;
}

void KvCache::reserve(SeqId id, std::int64_t length) {
    Sequence& sequence = at(id);
    while (static_cast<std::int64_t>(sequence.pages.size()) < pages_for(length)) {
        if (free_pages_.empty()) {
            throw Error::device({.field = "context",
                                 .value = std::to_string(length),
                                 .problem = "the KV cache has no free page left",
                                 .remedy = "use a larger --ctx"});
        }
        sequence.pages.push_back(free_pages_.back());
        free_pages_.pop_back();
    }
}

void KvCache::truncate(SeqId id, std::int64_t length) {
    Sequence& sequence = at(id);
    MR_CHECK(length >= 0, "a length is not negative");
    sequence.length = std::min(sequence.length, length);
    while (static_cast<std::int64_t>(sequence.pages.size()) > pages_for(sequence.length)) {
        free_pages_.push_back(sequence.pages.back());
        sequence.pages.pop_back();
    }
}

std::int64_t KvCache::length(SeqId id) const { return at(id).length; }

void KvCache::advance(SeqId id, std::int64_t count) {
    Sequence& sequence = at(id);
    sequence.length += count;
    MR_CHECK(pages_for(sequence.length) <= static_cast<std::int64_t>(sequence.pages.size()),
             "room was reserved before the sequence advanced");
}

std::span<const std::int32_t> KvCache::pages(SeqId id) const { return at(id).pages; }

ops::PagedKv KvCache::layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }

std::int64_t KvCache::free_tokens() const {
    return static_cast<std::int64_t>(free_pages_.size()) * kPageTokens;
}

}  // namespace mr::model
