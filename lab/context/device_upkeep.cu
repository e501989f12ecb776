// The upkeep on the GPU: one kernel each for all layers and heads, 16 bytes per load.
#include <utility>

#include "core/cuda/kernel.cuh"
#include "lab/context/upkeep.h"

namespace mr::context {
namespace {

using cuda::from_f32;
using cuda::to_f32;

constexpr int kPage = ops::kPageTokens;
constexpr int kThreads = 512;
constexpr int kInFlight = 4;  // 16-byte loads per thread

// The cache as the kernels see it. A head has rows of `vectors` times 16 bytes.
struct Places {
    uint4* const* keys;    // [layers]
    uint4* const* values;  // [layers]
    const std::int32_t* pages;
    int heads, vectors, capacity;

    __device__ std::int64_t in_pages(int head, int place) const {
        const std::int64_t page = pages[place / kPage];
        return ((page * heads + head) * kPage + place % kPage) * vectors;
    }
    // blockIdx.y: layer * heads + head
    __device__ int layer() const { return static_cast<int>(blockIdx.y) / heads; }
    __device__ int head() const { return static_cast<int>(blockIdx.y) % heads; }
    __device__ std::int64_t masters_of_head() const {
        return static_cast<std::int64_t>(blockIdx.y) * capacity * vectors;
    }
};

// Rotates pairs of neighbours, in the host's order of operations: the same bits. `pairs`: rotated
// pairs of the vector; row: their (cos, sin).
template <typename T>
__device__ uint4 turned(uint4 vector, const float2* row, int pairs) {
    constexpr int kElements = 16 / sizeof(T);
    T x[kElements];
    memcpy(x, &vector, sizeof vector);
#pragma unroll
    for (int i = 0; i < kElements / 2; ++i) {
        if (i >= pairs) break;
        const float2 by = row[i];
        const float a = to_f32(x[2 * i]), b = to_f32(x[2 * i + 1]);
        x[2 * i] = from_f32<T>(__fsub_rn(__fmul_rn(a, by.x), __fmul_rn(b, by.y)));
        x[2 * i + 1] = from_f32<T>(__fadd_rn(__fmul_rn(a, by.y), __fmul_rn(b, by.x)));
    }
    memcpy(&vector, x, sizeof vector);
    return vector;
}

// kTake: masters of places [from, to) from the pages; else the pages from the masters. table
// [capacity, pairs]; pairs 0: no rotation.
template <typename T, bool kTake>
__global__ void __launch_bounds__(kThreads)
    turn_kernel(const Places at, uint4* masters, const float2* table, int pairs, int from, int to) {
    cuda::wait_for_previous();
    constexpr int kPairs = 16 / sizeof(T) / 2;  // of a vector
    uint4* const keys = at.keys[at.layer()];
    uint4* const own = masters + at.masters_of_head();
    const int count = (to - from) * at.vectors;
    const int first =
        static_cast<int>(blockIdx.x) * kThreads * kInFlight + static_cast<int>(threadIdx.x);
    uint4 loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
        const int v = first + i * kThreads;
        if (v >= count) break;
        const int place = from + v / at.vectors, part = v % at.vectors;
        loaded[i] = kTake ? keys[at.in_pages(at.head(), place) + part]
                          : own[static_cast<std::int64_t>(place) * at.vectors + part];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
        const int v = first + i * kThreads;
        if (v >= count) break;
        const int place = from + v / at.vectors, part = v % at.vectors;
        const float2* row = table + static_cast<std::int64_t>(place) * pairs + part * kPairs;
        const uint4 done = turned<T>(loaded[i], row, pairs - part * kPairs);
        if (kTake) {
            own[static_cast<std::int64_t>(place) * at.vectors + part] = done;
        } else {
            keys[at.in_pages(at.head(), place) + part] = done;
        }
    }
}

// next = masters without places [first, first + gone); `kept` places stay.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const Places at, uint4* next, const uint4* masters, int first, int gone, int kept) {
    cuda::wait_for_previous();
    const std::int64_t own = at.masters_of_head();
    const int count = kept * at.vectors;
    const int begin =
        static_cast<int>(blockIdx.x) * kThreads * kInFlight + static_cast<int>(threadIdx.x);
    uint4 loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
        const int v = begin + i * kThreads;
        if (v >= count) break;
        loaded[i] = masters[own + v + (v < first * at.vectors ? 0 : gone * at.vectors)];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
        const int v = begin + i * kThreads;
        if (v < count) next[own + v] = loaded[i];
    }
}

// Values of places [first + gone, length) move down by `gone`, in place: a block owns one head of a
// layer and goes from front to back. A tile is in registers before any of its places is written,
// and later tiles only read places after those.
__global__ void __launch_bounds__(kThreads)
    move_kernel(const Places at, int first, int gone, int length) {
    cuda::wait_for_previous();
    uint4* const values = at.values[at.layer()];
    const int count = (length - gone - first) * at.vectors;
    for (int tile = 0; tile < count; tile += kThreads * kInFlight) {
        uint4 loaded[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            const int v = tile + i * kThreads + static_cast<int>(threadIdx.x);
            if (v >= count) break;
            const int place = first + gone + v / at.vectors;
            loaded[i] = values[at.in_pages(at.head(), place) + v % at.vectors];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            const int v = tile + i * kThreads + static_cast<int>(threadIdx.x);
            if (v >= count) break;
            const int place = first + v / at.vectors;
            values[at.in_pages(at.head(), place) + v % at.vectors] = loaded[i];
        }
    }
}

class DeviceUpkeep final : public Upkeep {
  public:
    DeviceUpkeep(const Context& ctx, Cache cache) : Upkeep(std::move(cache)), ctx_(ctx) {
        const std::size_t row = cache_.layers.front().keys.row_bytes();
        MR_CHECK(row % sizeof(uint4) == 0, "heads on the GPU are multiples of 16 bytes");
        for (const int turn : cache_.turn_of) {
            MR_CHECK(turn == cache_.turn_of.front(), "all layers turn alike on the GPU");
        }
        const std::size_t layers = cache_.layers.size();
        const std::size_t bytes = cache_.place_bytes() * static_cast<std::size_t>(cache_.capacity);
        const Turn* turn = cache_.turn_of.front() < 0
                               ? nullptr
                               : &cache_.turns[static_cast<std::size_t>(cache_.turn_of.front())];
        MR_CHECK(!turn || turn->style == ops::RopeStyle::interleaved, "neighbours turn on the GPU");
        const std::size_t table = turn ? turn->forward.size() * sizeof(float) : 0;
        const auto padded = cuda::DeviceArena::padded;
        memory_ = cuda::DeviceArena("masters of keys",
                                    2 * padded(bytes) + 2 * padded(table) +
                                        2 * padded(layers * sizeof(void*)) +
                                        padded(cache_.pages.size() * sizeof(std::int32_t)));
        masters_ = static_cast<uint4*>(memory_.alloc(bytes));
        next_ = static_cast<uint4*>(memory_.alloc(bytes));
        const auto sent = [&](const auto& values) {
            using Value = std::remove_cvref_t<decltype(values[0])>;
            auto* to = memory_.array<Value>(values.size());
            ctx_.cuda->to_device(to, values.data(), values.size() * sizeof(Value), nullptr);
            return to;
        };
        if (turn) {
            pairs_ = turn->rotary / 2;
            forward_ = reinterpret_cast<const float2*>(sent(turn->forward));
            back_ = reinterpret_cast<const float2*>(sent(turn->back));
        }
        std::vector<uint4*> keys, values;
        for (const ops::PagedKv& layer : cache_.layers) {
            keys.push_back(static_cast<uint4*>(layer.keys.data));
            values.push_back(static_cast<uint4*>(layer.values.data));
        }
        at_.keys = sent(keys);
        at_.values = sent(values);
        at_.pages = sent(cache_.pages);
        at_.heads = cache_.heads();
        at_.vectors = static_cast<int>(row / sizeof(uint4));
        at_.capacity = static_cast<int>(cache_.capacity);
        ctx_.cuda->synchronize();  // the data sent lies on this stack
    }
    ~DeviceUpkeep() override {
        try {
            ctx_.cuda->synchronize();      // before the memory is freed
        } catch (const std::exception&) {  // a lost device was reported by the call that met it
        }
    }

  private:
    unsigned heads_of_layers() const {
        return static_cast<unsigned>(cache_.layers.size()) * static_cast<unsigned>(at_.heads);
    }
    dim3 grid(std::int64_t places) const {
        constexpr std::int64_t kTile = kThreads * kInFlight;
        return dim3(static_cast<unsigned>((places * at_.vectors + kTile - 1) / kTile),
                    heads_of_layers());
    }
    template <bool kTake>
    void turn(std::int64_t from, std::int64_t to) {
        cuda::with_float_type(cache_.layers.front().keys.dtype, [&](auto value) {
            using T = decltype(value);
            cuda::launch(ctx_, grid(to - from), dim3(kThreads), 0, turn_kernel<T, kTake>, at_,
                         masters_, kTake ? back_ : forward_, pairs_, static_cast<int>(from),
                         static_cast<int>(to));
        });
    }

    void do_take(std::int64_t from, std::int64_t to) override { turn<true>(from, to); }
    void do_evict(std::int64_t first, std::int64_t count, std::int64_t length) override {
        const auto at = static_cast<int>(first), gone = static_cast<int>(count);
        if (length > count) {
            cuda::launch(ctx_, grid(length - count), dim3(kThreads), 0, copy_kernel, at_, next_,
                         static_cast<const uint4*>(masters_), at, gone,
                         static_cast<int>(length - count));
        }
        std::swap(masters_, next_);
        cuda::launch(ctx_, dim3(1, heads_of_layers()), dim3(kThreads), 0, move_kernel, at_, at,
                     gone, static_cast<int>(length));
    }
    void do_rotate(std::int64_t length) override { turn<false>(0, length); }

    const Context& ctx_;
    cuda::DeviceArena memory_;
    uint4 *masters_ = nullptr, *next_ = nullptr;  // [layers, kv_heads, capacity, vectors]
    const float2 *forward_ = nullptr, *back_ = nullptr;
    int pairs_ = 0;
    Places at_{};
};

}  // namespace

std::unique_ptr<Upkeep> make_device_upkeep(const Context& ctx, Cache cache) {
    return std::make_unique<DeviceUpkeep>(ctx, std::move(cache));
}

}  // namespace mr::context
