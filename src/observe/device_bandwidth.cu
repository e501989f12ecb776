#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "observe/device_bandwidth.h"
#include "observe/matrix_peak.h"

namespace mr::observe {
namespace {

using cuda::DeviceArena;
using cuda::Event;
using cuda::Stream;

constexpr int kDeviceBandwidthThreads = 256;
constexpr std::size_t kRow =
    kDeviceBandwidthThreads * sizeof(uint4);  // bytes a block loads at once: 4 KiB
constexpr std::size_t kChunk = 16 * kRow;
constexpr std::size_t kPinned = std::size_t{64} << 20;

// words[i] = i: cache lines that differ, and a known sum.
__global__ void fill_words(std::uint32_t* words, std::size_t count) {
    const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count; i += step) {
        words[i] = static_cast<std::uint32_t>(i);
    }
}

__device__ __forceinline__ uint4 load_once(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// Sums pieces of kLoads rows, dealt to the blocks in turn; every thread has kLoads loads of 16
// bytes in flight. sums[block * kDeviceBandwidthThreads + thread] gets each thread's part.
template <int kLoads>
__global__ void __launch_bounds__(kDeviceBandwidthThreads, 32 / kLoads)
    sum_words(const uint4* __restrict__ data, std::size_t pieces, std::uint64_t* sums) {
    std::uint64_t sum = 0;
    for (std::size_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        const uint4* from = data + piece * (kLoads * kDeviceBandwidthThreads) + threadIdx.x;
        uint4 v[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) v[i] = load_once(from + i * kDeviceBandwidthThreads);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            sum += std::uint64_t{v[i].x} + v[i].y;
            sum += std::uint64_t{v[i].z} + v[i].w;
        }
    }
    sums[blockIdx.x * kDeviceBandwidthThreads + threadIdx.x] = sum;
}

// Seconds of the fastest of `passes`; each runs body() `repeats` times between two events, so that
// the cost of an event does not count.
template <typename Body>
double best_seconds(const Stream& stream, int passes, int repeats, Body&& body) {
    body();  // warm-up: clocks, page tables
    stream.synchronize();
    double best = std::numeric_limits<double>::infinity();
    for (int pass = 0; pass < passes; ++pass) {
        const Event begin(true), end(true);
        stream.record(begin);
        for (int i = 0; i < repeats; ++i) body();
        stream.record(end);
        end.synchronize();
        best = std::min(best, end.seconds_since(begin) / repeats);
    }
    return best;
}

// Bytes per second with the fastest grid shape, which differs between GPUs.
double measure_read(const Stream& stream, const DeviceArena& buffer, int multiprocessors) {
    const std::size_t bytes = buffer.size();
    auto* words = reinterpret_cast<std::uint32_t*>(buffer.data());
    constexpr int kMostBlocks = 32;  // per multiprocessor
    const auto most_sums =
        static_cast<std::size_t>(multiprocessors) * kMostBlocks * kDeviceBandwidthThreads;
    DeviceArena sums_memory("the sums of the bandwidth measurement",
                            most_sums * sizeof(std::uint64_t));
    auto* sums = sums_memory.array<std::uint64_t>(most_sums);

    const std::size_t count = bytes / sizeof(std::uint32_t);
    fill_words<<<static_cast<unsigned>(multiprocessors * 8), kDeviceBandwidthThreads, 0,
                 stream.raw()>>>(words, count);
    MR_CUDA_CALL(cudaGetLastError());
    // 2^30 words at most (4 GiB), so that words[i] is i itself: 0 + 1 + ... + (count - 1).
    const std::uint64_t expected = std::uint64_t{count} * (count - 1) / 2;
    double best = 0;
    const auto try_shape = [&](auto kernel, int loads, int per_sm) {
        const auto grid = static_cast<unsigned>(multiprocessors * per_sm);
        const std::size_t pieces = bytes / (kRow * static_cast<std::size_t>(loads));
        const double seconds = best_seconds(stream, 4, 4, [&] {
            kernel<<<grid, kDeviceBandwidthThreads, 0, stream.raw()>>>(
                reinterpret_cast<const uint4*>(buffer.data()), pieces, sums);
            MR_CUDA_CALL(cudaGetLastError());
        });
        std::vector<std::uint64_t> parts(std::size_t{grid} * kDeviceBandwidthThreads);
        stream.to_host(parts.data(), sums, parts.size() * sizeof(std::uint64_t), nullptr);
        stream.synchronize();
        std::uint64_t sum = 0;
        for (const std::uint64_t part : parts) sum += part;
        MR_CHECK(sum == expected, "the measurement reads every byte");
        best = std::max(best, static_cast<double>(bytes) / seconds);
    };
    for (const int per_sm : {4, 8, 16, kMostBlocks}) {
        try_shape(sum_words<8>, 8, per_sm);
        try_shape(sum_words<16>, 16, per_sm);
    }
    return best;
}

// Reads one half and writes the other.
double measure_copy(const Stream& stream, const DeviceArena& buffer) {
    const std::size_t half = buffer.size() / 2;
    const double seconds = best_seconds(
        stream, 4, 4, [&] { stream.on_device(buffer.data() + half, buffer.data(), half); });
    return 2 * static_cast<double>(half) / seconds;
}

}  // namespace

Ceilings measure_device(std::size_t bytes) {
    const cuda::DeviceInfo info = cuda::require_device();
    const Stream stream;
    Ceilings out;
    // Leave some free memory for the sums' arena and the driver.
    const std::size_t spare = std::size_t{64} << 20;
    const std::size_t room = info.free_bytes > spare ? info.free_bytes - spare : 0;
    bytes = std::min({bytes, room, std::size_t{4} << 30}) / (2 * kChunk) * (2 * kChunk);
    // A buffer that fits in the cache says nothing about memory.
    if (bytes >= 4 * info.l2_bytes && bytes > 0) {
        DeviceArena buffer("the buffer of the bandwidth measurement", bytes);
        out.read = measure_read(stream, buffer, info.multiprocessors);
        out.copy = measure_copy(stream, buffer);
    }
    if (room >= kPinned) {
        DeviceArena device("the buffer of the copy measurement", kPinned);
        const cuda::PinnedBuffer host(kPinned);
        std::fill_n(host.data(), kPinned, std::byte{1});
        const auto rate = [](double seconds) { return static_cast<double>(kPinned) / seconds; };
        out.to_device = rate(best_seconds(
            stream, 5, 2, [&] { stream.to_device(device.data(), host.data(), kPinned, nullptr); }));
        out.to_host = rate(best_seconds(
            stream, 5, 2, [&] { stream.to_host(host.data(), device.data(), kPinned, nullptr); }));
    }
    out.matrix = measure_matrix_peak(stream, info.multiprocessors);
    return out;
}

}  // namespace mr::observe
