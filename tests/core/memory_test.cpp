#include "core/memory.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include "core/cpu.h"
#include "temp_folder.h"

namespace mr {
namespace {

using test::TempFolder;

TEST(Memory, VersionTwoGroupsTakeTheSmallestOnTheWay) {
    TempFolder folder;
    std::filesystem::create_directories(folder / "a/b");
    const std::string groups = folder.write("groups", "0::/a/b\n");
    EXPECT_EQ(cgroup_memory_limit(groups, folder / ""), std::nullopt);
    folder.write("a/b/memory.max", "max\n");
    EXPECT_EQ(cgroup_memory_limit(groups, folder / ""), std::nullopt);
    folder.write("a/memory.max", "3000000\n");
    EXPECT_EQ(cgroup_memory_limit(groups, folder / ""), 3000000u);
    folder.write("a/b/memory.max", "4000000\n");
    EXPECT_EQ(cgroup_memory_limit(groups, folder / ""), 3000000u);
    folder.write("memory.max", "2000000\n");  // the root, as a container sees its own
    EXPECT_EQ(cgroup_memory_limit(groups, folder / ""), 2000000u);
}

TEST(Memory, VersionOneGroups) {
    TempFolder folder;
    std::filesystem::create_directories(folder / "memory/a");
    const std::string groups =
        folder.write("groups", "5:cpu:/a\n4:hugetlb,memory:/a\n1:name=x:/memory\n");
    folder.write("memory/a/memory.limit_in_bytes", "5000000\n");
    EXPECT_EQ(cgroup_memory_limit(groups, folder / ""), 5000000u);
    EXPECT_EQ(cgroup_memory_limit(folder / "none", folder / ""), std::nullopt);
}

TEST(Memory, IsAtMostTheMachines) {
    struct sysinfo memory {};
    ASSERT_EQ(::sysinfo(&memory), 0);
    EXPECT_GT(available_memory_bytes(), 0u);
    EXPECT_LE(available_memory_bytes(), std::uint64_t{memory.totalram} * memory.mem_unit);
    EXPECT_EQ(cpu_info().memory_bytes, available_memory_bytes());
}

}  // namespace
}  // namespace mr
