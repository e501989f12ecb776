#include "core/memory.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include <vector>

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

TEST(Memory, IsFreeOrHeldByPrograms) {
    EXPECT_GT(free_memory_bytes(), 0u);
    EXPECT_LT(free_memory_bytes(), available_memory_bytes());
    const std::uint64_t before = own_memory_bytes();
    EXPECT_GT(before, 0u);
    const std::vector<char> held(64 << 20, 'x');
    EXPECT_GT(own_memory_bytes(), before + held.size() / 2);
}

}  // namespace
}  // namespace mr
