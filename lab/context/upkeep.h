// The cache as in the published StreamingLLM: unrotated keys are kept (the masters), an eviction
// copies the rest, and all keys are rotated anew for their places in the cache. An engine's pages
// hold the rotated keys and the values, so that its steps attend to them as usual; everything else
// is done here. The engine itself streams in another way (docs/streaming.md): this is the
// comparison.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/context.h"
#include "model/spec.h"
#include "ops/attention/paged/attention.h"

namespace mr::context {

// The rotation of some layers' keys. Tables are f32 [capacity, rotary/2, 2], from f64 angles:
// `forward` has (cos, sin) times the magnitude, `back` is its inverse.
struct Turn {
    int rotary = 0;
    ops::RopeStyle style = ops::RopeStyle::interleaved;
    std::vector<float> forward, back;
};

// One sequence's places 0 to capacity - 1 in an engine's pages.
struct Cache {
    std::vector<ops::PagedKv> layers;
    std::vector<std::int32_t> pages;  // of the places, kPageTokens each
    std::int64_t capacity = 0;
    std::vector<Turn> turns;
    std::vector<int> turn_of;  // [layers], into `turns`; -1: no rotary positions

    int heads() const { return layers.front().kv_heads(); }
    int head_dim() const { return layers.front().head_dim(); }
    // Bytes of the keys of one place in all layers; values have as many.
    std::uint64_t place_bytes() const;
};
// Adds the rotations of a model's layers; on a GPU pairs are always neighbours.
void add_turns(Cache& cache, const model::ModelSpec& spec, bool cuda);

// All calls return the bytes that they read and write. On a GPU they are launched without waiting.
class Upkeep {
  public:
    virtual ~Upkeep();
    Upkeep(const Upkeep&) = delete;
    Upkeep& operator=(const Upkeep&) = delete;

    // masters[from, to) = the pages' keys, rotated back.
    std::uint64_t take(std::int64_t from, std::int64_t to);
    // Removes places [first, first + count) from a cache of `length`; later places move down.
    // Masters are copied to new memory, as a concatenation does; values move inside the pages, each
    // read and written once, which is the cost of a concatenation without its allocation.
    std::uint64_t evict(std::int64_t first, std::int64_t count, std::int64_t length);
    // The pages' keys of places [0, length) = masters, rotated for their places.
    std::uint64_t rotate(std::int64_t length);

  protected:
    explicit Upkeep(Cache cache) : cache_(std::move(cache)) {}
    virtual void do_take(std::int64_t from, std::int64_t to) = 0;
    virtual void do_evict(std::int64_t first, std::int64_t count, std::int64_t length) = 0;
    virtual void do_rotate(std::int64_t length) = 0;

    const Cache cache_;
};

// The pages, f32, f16 or bf16, lie in the memory of `ctx`: on the host or on the GPU. Both give the
// same bits.
std::unique_ptr<Upkeep> make_upkeep(const Context& ctx, Cache cache);
std::unique_ptr<Upkeep> make_host_upkeep(const Context& ctx, Cache cache);
std::unique_ptr<Upkeep> make_device_upkeep(const Context& ctx, Cache cache);  // only with CUDA

}  // namespace mr::context
