#include "observe/bandwidth.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/cpu.h"
#include "observe/memory.h"

namespace mr::observe {
namespace {

TEST(Bandwidth, IsPlausible) {
    ThreadPool pool(cpu_info().cores);
    const Bandwidth measured = measure_read_bandwidth(pool, std::size_t{64} << 20, 0.05);
    EXPECT_GE(measured.passes, 3);
    EXPECT_EQ(measured.buffer_bytes, std::size_t{64} << 20);
    EXPECT_GE(measured.best, measured.median);
    EXPECT_EQ(measured.threads, cpu_info().cores);
    EXPECT_GT(measured.median, 50e6);  // slower than any memory, even under a sanitizer
    EXPECT_LT(measured.best, 20e12);   // more than any: the sum would have been optimised away
}

TEST(Bandwidth, ThreadsBeyondTheCoresDoNotRead) {
    ThreadPool pool(cpu_info().cores + 3);
    EXPECT_EQ(measure_read_bandwidth(pool, std::size_t{1} << 20, 0.01).threads, cpu_info().cores);
    ThreadPool one(1);
    EXPECT_EQ(measure_read_bandwidth(one, std::size_t{1} << 20, 0.01).threads, 1);
}

TEST(Bandwidth, BufferIsLargerThanTheCacheAndFitsIntoMemory) {
    EXPECT_GT(read_buffer_bytes(), last_level_cache_bytes());
    EXPECT_LE(read_buffer_bytes(), cpu_info().memory_bytes);
}

TEST(Bandwidth, BufferIsNoLargerThanTold) {
    ThreadPool pool(1);
    constexpr std::size_t kMost = std::size_t{8} << 20;
    ASSERT_GT(read_buffer_bytes(), kMost);
    EXPECT_EQ(measure_read_bandwidth(pool, 0, 0.01, kMost).buffer_bytes, kMost);
    EXPECT_LE(measure_read_bandwidth(pool, 0, 0.01, kQuickLookBytes).buffer_bytes, kQuickLookBytes);
}

TEST(Memory, PeakGrowsWithWhatIsTouched) {
    const std::size_t before = peak_resident_bytes();
    EXPECT_GT(before, std::size_t{1} << 20);
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    const std::vector<char> touched(before + kBytes, 1);  // more than the peak so far
    EXPECT_GE(peak_resident_bytes(), before + kBytes);
    EXPECT_EQ(touched.back(), 1);
}

}  // namespace
}  // namespace mr::observe
