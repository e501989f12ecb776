// The cache as StreamingLLM was published: keys are kept as they were before their rotation (the
// masters), an eviction copies what stays, and all keys are rotated anew for their places in the
// cache. An engine's pages hold the rotated keys and the values, so that its steps attend to them
// as they always do; everything else is done here. The engine itself streams otherwise
// (docs/streaming.md): this is what it is compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/context.h"
#include "model/spec.h"
#include "ops/attention/paged/attention.h"

namespace mr::context {

// How the keys of some layers turn. Tables are f32 [capacity, rotary/2, 2], made from f64 angles:
// `forward` has (cos, sin) times the magnitude, `back` undoes it.
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
    // Keys of one place in all layers; values are as many.
    std::uint64_t place_bytes() const;
};
// The turns of a model's layers; on a GPU neighbours turn, whatever the file has.
void add_turns(Cache& cache, const model::ModelSpec& spec, bool cuda);

// All calls give the bytes that they read and write. On a GPU they are launched, not awaited.
class Upkeep {
  public:
    virtual ~Upkeep();
    Upkeep(const Upkeep&) = delete;
    Upkeep& operator=(const Upkeep&) = delete;

    // masters[from, to) = the pages' keys, rotated back.
    std::uint64_t take(std::int64_t from, std::int64_t to);
    // Places [first, first + count) leave a cache of `length`: what lies behind them moves down.
    // Masters are copied to new memory, as a concatenation does; values move inside of the pages,
    // each read and written once, which is what a concatenation costs without its allocation.
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

// The pages, f32, f16 or bf16, lie where `ctx` computes: in host memory or on the GPU. Both give
// the same bits.
std::unique_ptr<Upkeep> make_upkeep(const Context& ctx, Cache cache);
std::unique_ptr<Upkeep> make_host_upkeep(const Context& ctx, Cache cache);
std::unique_ptr<Upkeep> make_device_upkeep(const Context& ctx, Cache cache);  // with CUDA alone

}  // namespace mr::context
