#include "core/memory.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include "core/cpu.h"

namespace mr {
namespace {

TEST(Memory, IsAtMostTheMachines) {
    struct sysinfo memory {};
    ASSERT_EQ(::sysinfo(&memory), 0);
    EXPECT_GT(available_memory_bytes(), 0u);
    EXPECT_LE(available_memory_bytes(), std::uint64_t{memory.totalram} * memory.mem_unit);
    EXPECT_EQ(cpu_info().memory_bytes, available_memory_bytes());
}

}  // namespace
}  // namespace mr
