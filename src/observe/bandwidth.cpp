#include "observe/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/median.h"
#include "core/memory.h"

namespace mr::observe {
namespace {

constexpr const char* kPurpose = "the buffer of the bandwidth measurement";
constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes a thread takes at a time

// 16 bytes at a time into eight sums, so that loads never wait for an addition.
std::uint64_t sum_bytes(const std::byte* data, std::size_t bytes) {
    using Lane = std::uint64_t __attribute__((vector_size(16)));
    Lane sums[8] = {};
    const auto* in = reinterpret_cast<const Lane*>(data);
    const std::size_t lanes = bytes / sizeof(Lane);
    for (std::size_t i = 0; i + 8 <= lanes; i += 8) {
        for (std::size_t k = 0; k < 8; ++k) sums[k] += in[i + k];
    }
    Lane total{};
    for (const Lane& sum : sums) total += sum;
    return total[0] + total[1];
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::size_t last_level_cache_bytes() {
    std::size_t largest = 0;
    for (int index = 0; index < 8; ++index) {
        std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                         "/size");
        std::size_t value = 0;
        char unit = 0;
        if (!(in >> value >> unit)) continue;
        if (unit == 'K') value <<= 10;
        if (unit == 'M') value <<= 20;
        largest = std::max(largest, value);
    }
    return largest;
}

std::size_t read_buffer_bytes() {
    const std::size_t cache = last_level_cache_bytes();
    const std::size_t wanted =
        cache > 0 ? std::max(std::size_t{64} << 20, 4 * cache) : std::size_t{256} << 20;
    const std::size_t memory = available_memory_bytes();
    return memory ? std::min(wanted, std::max(memory / 8, 16 * kPiece)) : wanted;
}

namespace {

// The usual buffer, or a smaller one that still exceeds the cache; empty if there is no memory.
Arena usual_buffer(std::size_t most) {
    const std::size_t wanted = std::min(read_buffer_bytes(), most);
    const std::size_t least = std::max(16 * kPiece, 2 * last_level_cache_bytes());
    for (const std::size_t bytes : {wanted, std::min(wanted, least)}) {
        try {
            return Arena(kPurpose, std::max(bytes / kPiece, std::size_t{1}) * kPiece);
        } catch (const Error&) {
            continue;
        }
    }
    return Arena();
}

}  // namespace

Bandwidth measure_read_bandwidth(ThreadPool& wanted, std::size_t bytes, double seconds,
                                 std::size_t most) {
    std::optional<ThreadPool> fewer;
    if (const int cores = cpu_info().cores; wanted.size() > cores) fewer.emplace(cores);
    ThreadPool& pool = fewer ? *fewer : wanted;
    Arena arena = bytes == 0 ? usual_buffer(most)
                             : Arena(kPurpose, std::max(bytes / kPiece, std::size_t{1}) * kPiece);
    const std::size_t size = arena.size();
    if (size == 0) return {};
    const auto pieces = static_cast<std::int64_t>(size / kPiece);
    auto* data = static_cast<std::byte*>(arena.alloc(size));
    // Written first: untouched pages all map to one page of zeros, which a cache holds.
    pool.parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
            std::memset(data + static_cast<std::size_t>(i) * kPiece, static_cast<int>(i & 0xff),
                        kPiece);
        }
    });

    std::atomic<std::uint64_t> sink{0};
    const auto one_pass = [&] {
        const auto start = std::chrono::steady_clock::now();
        pool.parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end, int) {
            std::uint64_t sum = 0;
            for (std::int64_t i = begin; i < end; ++i) {
                sum += sum_bytes(data + static_cast<std::size_t>(i) * kPiece, kPiece);
            }
            sink.fetch_add(sum, std::memory_order_relaxed);
        });
        return seconds_since(start);
    };

    constexpr int kFewest = 3;
    std::vector<double> times;
    const auto start = std::chrono::steady_clock::now();
    while (times.size() < kFewest || seconds_since(start) < seconds) times.push_back(one_pass());
    Bandwidth result;
    result.best = static_cast<double>(size) / *std::ranges::min_element(times);
    result.median = static_cast<double>(size) / median(times);
    result.passes = static_cast<int>(times.size());
    result.buffer_bytes = size;
    result.threads = pool.size();
    return result;
}

}  // namespace mr::observe
