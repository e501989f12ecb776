#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/half.h"
#include "lab/context/upkeep.h"

namespace mr::context {
namespace {

constexpr std::int64_t kPage = ops::kPageTokens;

struct F16 {
    std::uint16_t bits;
};
struct Bf16 {
    std::uint16_t bits;
};
float load(float x) { return x; }
float load(F16 x) { return f16_to_f32(x.bits); }
float load(Bf16 x) { return bf16_to_f32(x.bits); }
void store(float& to, float x) { to = x; }
void store(F16& to, float x) { to.bits = f32_to_f16(x); }
void store(Bf16& to, float x) { to.bits = f32_to_bf16(x); }

template <typename T>
class HostUpkeep final : public Upkeep {
  public:
    HostUpkeep(const Context& ctx, Cache cache) : Upkeep(std::move(cache)), pool_(*ctx.pool) {
        masters_.resize(cache_.layers.size() *
                        static_cast<std::size_t>(cache_.heads() * cache_.capacity * dim()));
        next_.resize(masters_.size());
    }

  private:
    std::int64_t dim() const { return cache_.head_dim(); }
    // The elements of one place of a head of a layer.
    T* in_pages(const Tensor& of, std::int64_t head, std::int64_t place) const {
        const std::int64_t page = cache_.pages[static_cast<std::size_t>(place / kPage)];
        return of.row<T>((page * cache_.heads() + head) * kPage + place % kPage);
    }
    static T* place_of(T* masters, std::int64_t place, std::int64_t dim) {
        return masters + place * dim;
    }

    // body(layer, head, first master of that head in `masters_`, the same in `next_`)
    template <typename Body>
    void each_head(Body&& body) {
        const auto heads = static_cast<std::int64_t>(cache_.heads());
        const auto count = static_cast<std::int64_t>(cache_.layers.size()) * heads;
        pool_.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t at = i * cache_.capacity * dim();
                body(i / heads, i % heads, masters_.data() + at, next_.data() + at);
            }
        });
    }

    // to = from, rotated by the row of the place.
    void turn(T* to, const T* from, std::int64_t layer, std::int64_t place, bool back) const {
        const int index = cache_.turn_of[static_cast<std::size_t>(layer)];
        const int rotary = index < 0 ? 0 : cache_.turns[static_cast<std::size_t>(index)].rotary;
        if (rotary > 0) {
            const Turn& turn = cache_.turns[static_cast<std::size_t>(index)];
            const float* row = (back ? turn.back : turn.forward).data() + place * rotary;
            const bool neighbours = turn.style == ops::RopeStyle::interleaved;
            for (int i = 0; i < rotary / 2; ++i) {
                const int a = neighbours ? 2 * i : i, b = neighbours ? a + 1 : i + rotary / 2;
                const float x = load(from[a]), y = load(from[b]);
                store(to[a], x * row[2 * i] - y * row[2 * i + 1]);
                store(to[b], x * row[2 * i + 1] + y * row[2 * i]);
            }
        }
        std::copy(from + rotary, from + dim(), to + rotary);
    }

    void do_take(std::int64_t from, std::int64_t to) override {
        each_head([&](std::int64_t layer, std::int64_t head, T* masters, T*) {
            const Tensor& keys = cache_.layers[static_cast<std::size_t>(layer)].keys;
            for (std::int64_t p = from; p < to; ++p) {
                turn(place_of(masters, p, dim()), in_pages(keys, head, p), layer, p, true);
            }
        });
    }

    void do_evict(std::int64_t first, std::int64_t count, std::int64_t length) override {
        each_head([&](std::int64_t layer, std::int64_t head, T* masters, T* next) {
            std::copy(masters, place_of(masters, first, dim()), next);
            std::copy(place_of(masters, first + count, dim()), place_of(masters, length, dim()),
                      place_of(next, first, dim()));
            const Tensor& values = cache_.layers[static_cast<std::size_t>(layer)].values;
            for (std::int64_t p = first; p + count < length; ++p) {
                std::memcpy(in_pages(values, head, p), in_pages(values, head, p + count),
                            static_cast<std::size_t>(dim()) * sizeof(T));
            }
        });
        masters_.swap(next_);
    }

    void do_rotate(std::int64_t length) override {
        each_head([&](std::int64_t layer, std::int64_t head, T* masters, T*) {
            const Tensor& keys = cache_.layers[static_cast<std::size_t>(layer)].keys;
            for (std::int64_t p = 0; p < length; ++p) {
                turn(in_pages(keys, head, p), place_of(masters, p, dim()), layer, p, false);
            }
        });
    }

    ThreadPool& pool_;
    std::vector<T> masters_, next_;  // [layers, kv_heads, capacity, head_dim]
};

}  // namespace

std::unique_ptr<Upkeep> make_host_upkeep(const Context& ctx, Cache cache) {
    switch (cache.layers.front().keys.dtype) {
        case DType::f32:
            return std::make_unique<HostUpkeep<float>>(ctx, std::move(cache));
        case DType::f16:
            return std::make_unique<HostUpkeep<F16>>(ctx, std::move(cache));
        case DType::bf16:
            return std::make_unique<HostUpkeep<Bf16>>(ctx, std::move(cache));
        default:
            MR_CHECK(false, "a cache is f32, f16 or bf16");
    }
}

}  // namespace mr::context
