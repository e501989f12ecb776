#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "core/cuda/kernel.cuh"
#include "core/cuda/timer.h"
#include "lab/attention/attention_measure.h"
#include "ops/attention/paged/attention_cuda.h"
#include "ops/attention/paged/fill.cuh"

namespace mr::cuda {
namespace {

constexpr int kPage = 32;
constexpr int kMostCalls = 256;

template <typename T>
T* upload(const Stream& stream, DeviceArena& memory, const std::vector<T>& values) {
    T* to = memory.array<T>(values.size());
    stream.to_device(to, values.data(), values.size() * sizeof(T), nullptr);
    stream.synchronize();
    return to;
}

// A batch of `batch` sequences with `count` rows each, the last at position keys - 1.
struct Case {
    ops::DeviceBatch batch;
    Tensor q, out;
    std::int64_t pages = 0;
    std::size_t cache_bytes = 0;  // of keys only
};

Case make_case(const Stream& stream, DeviceArena& memory, const AttentionShape& shape, int batch,
               int count, int keys) {
    Case c;
    const int held = (keys + kPage - 1) / kPage;  // pages per sequence
    const int max_pages = static_cast<int>(std::bit_ceil(static_cast<unsigned>(held)));
    std::vector<std::int32_t> first, positions, sequence,
        deal(static_cast<std::size_t>(batch) * static_cast<std::size_t>(held)),
        pages(static_cast<std::size_t>(batch) * static_cast<std::size_t>(max_pages));
    for (int s = 0; s < batch; ++s) {
        first.push_back(s * count);
        for (int t = 0; t < count; ++t) {
            positions.push_back(keys - count + t);
            sequence.push_back(s);
        }
    }
    first.push_back(batch * count);
    std::iota(deal.begin(), deal.end(), 0);
    std::shuffle(deal.begin(), deal.end(), std::mt19937(7));
    for (int s = 0; s < batch; ++s) {
        std::copy_n(deal.begin() + s * held, held, pages.begin() + s * max_pages);
    }
    c.pages = static_cast<std::int64_t>(deal.size());
    c.batch.tokens = batch * count;
    c.batch.sequences = batch;
    c.batch.max_count = count;
    c.batch.max_keys = keys;
    c.batch.max_pages = max_pages;
    c.batch.first = upload(stream, memory, first);
    c.batch.positions = upload(stream, memory, positions);
    c.batch.sequence = upload(stream, memory, sequence);
    c.batch.pages = upload(stream, memory, pages);
    c.q = memory.tensor(shape.dtype, {batch * count, shape.heads, shape.head_dim});
    c.out = memory.tensor(shape.dtype, {batch * count, shape.heads, shape.head_dim});
    c.cache_bytes = dtype_bytes(
        shape.dtype, static_cast<std::size_t>(c.pages * shape.kv_heads * kPage * shape.head_dim));
    return c;
}

}  // namespace

AttentionMeasured measure_attention(const AttentionShape& shape, const std::vector<int>& keys,
                                    const std::vector<int>& prompts) {
    AttentionMeasured out;
    out.device = require_device();
    Stream stream;
    Context ctx;
    ctx.cuda = &stream;
    ctx.resident_attention = shape.resident;
    const ops::AttentionMask mask{ops::AttentionMask::Kind::causal, 1, shape.window, shape.sinks};
    const auto seen = [&](int position) {  // keys that it sees
        return ops::visible_keys(mask, position, position + 1).count();
    };
    const float scale = ops::default_scale(shape.head_dim);

    // One allocation for the cache of every measurement; the largest case twice, so that a call
    // never finds the data of the last one in a cache, and never less than any cache can hold.
    const auto cache_bytes = [&](int batch, int count) {
        const std::int64_t pages = std::int64_t{batch} * ((count + kPage - 1) / kPage);
        return 2 * dtype_bytes(shape.dtype, static_cast<std::size_t>(pages * shape.kv_heads *
                                                                     kPage * shape.head_dim));
    };
    std::size_t most = std::max<std::size_t>(std::size_t{1} << 30, 8 * out.device.l2_bytes);
    for (const int n : keys) most = std::max(most, 2 * cache_bytes(shape.batch, n));
    for (const int n : prompts) most = std::max(most, cache_bytes(1, n));
    const DeviceArena cache("attention benchmark", most);
    fill_with<BetweenOnes>(
        ctx, {cache.data(),
              shape.dtype,
              {static_cast<std::int64_t>(cache.size() / dtype_bytes(shape.dtype, 1))}});

    const auto measure = [&](int batch, int count, int n) {
        const bool decodes = count <= kDecodeRows;
        std::size_t scratch_bytes =
            decodes ? attention_scratch_bytes(batch * count, shape.heads, shape.head_dim, n) : 0;
        if (mask.sinks > 0) {
            scratch_bytes = attention_stream_scratch_bytes(decodes ? batch * count : 1, shape.heads,
                                                           shape.head_dim, n, mask.sinks,
                                                           mask.window, batch * count);
        }
        const std::size_t rows = static_cast<std::size_t>(batch) * static_cast<std::size_t>(count);
        const std::size_t row_bytes =
            dtype_bytes(shape.dtype, static_cast<std::size_t>(shape.heads) *
                                         static_cast<std::size_t>(shape.head_dim));
        const std::size_t tables = 4 * (2 * rows + static_cast<std::size_t>(batch) *
                                                       static_cast<std::size_t>(n / kPage + 3));
        DeviceArena memory("attention benchmark",
                           scratch_bytes + 2 * rows * row_bytes + tables + 16384);
        const Case c = make_case(stream, memory, shape, batch, count, n);
        fill_with<BetweenOnes>(ctx, c.q);
        if (scratch_bytes > 0) {
            ctx.scratch = {memory.array<std::byte>(scratch_bytes), scratch_bytes};
            attention_prepare_scratch(stream, ctx.scratch, batch * count, shape.heads);
        }
        const std::size_t places = cache.size() / (2 * c.cache_bytes);
        const int calls = static_cast<int>(
            std::clamp<std::size_t>(places, 2, count <= kDecodeRows ? std::size_t{kMostCalls} : 8));
        const Shape dims{c.pages, shape.kv_heads, kPage, shape.head_dim};
        return seconds_per_call(stream, calls, [&](int i) {
            std::byte* at = cache.data() + static_cast<std::size_t>(i) % places * 2 * c.cache_bytes;
            const ops::PagedKv kv{{at, shape.dtype, dims}, {at + c.cache_bytes, shape.dtype, dims}};
            attention(ctx, c.out, c.q, kv, c.batch, mask, scale);
        });
    };
    const auto width = static_cast<std::uint64_t>(shape.heads * shape.head_dim);
    const std::uint64_t element = shape.dtype == DType::f32 ? 4 : 2;
    for (const int n : keys) {
        const auto rows = static_cast<std::uint64_t>(shape.batch);
        const std::uint64_t kv = 2 * static_cast<std::uint64_t>(seen(n - 1)) *
                                 static_cast<std::uint64_t>(shape.kv_heads * shape.head_dim);
        out.decode.push_back({n, measure(shape.batch, 1, n), rows * (kv + 2 * width) * element});
    }
    for (const int n : prompts) {
        const int rows = shape.chunk > 0 ? std::min(shape.chunk, n) : n;
        double pairs = 0;
        for (int position = n - rows; position < n; ++position) pairs += seen(position);
        out.prefill.push_back(
            {rows, n, measure(1, rows, n), 4 * pairs * static_cast<double>(width)});
    }
    return out;
}

}  // namespace mr::cuda
