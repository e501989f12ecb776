#include "observe/bandwidth.h"

#include <gtest/gtest.h>

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
    EXPECT_GT(measured.median, 50e6);  // slower than any memory, even under a sanitizer
    EXPECT_LT(measured.best, 20e12);   // faster than any: the sum would have been left out
}

TEST(Bandwidth, BufferIsLargerThanTheCacheAndFitsIntoMemory) {
    EXPECT_GT(read_buffer_bytes(), last_level_cache_bytes());
    EXPECT_LE(read_buffer_bytes(), cpu_info().memory_bytes);
}

TEST(Memory, PeakIsAtLeastWhatIsResident) {
    const std::size_t peak = peak_resident_bytes();
    EXPECT_GT(peak, std::size_t{1} << 20);
    // The two are counted differently: the one lags by up to some dozen pages a thread.
    EXPECT_LE(resident_bytes().total, peak + (std::size_t{4} << 20));
    EXPECT_LE(resident_bytes().file, resident_bytes().total);
}

}  // namespace
}  // namespace mr::observe
