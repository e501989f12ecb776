#include "core/cgroup.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/cpu.h"
#include "temp_folder.h"

namespace mr {
namespace {

using test::TempFolder;

TEST(Cgroup, MemoryOfVersionTwoIsTheSmallestOnTheWay) {
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

TEST(Cgroup, MemoryOfVersionOne) {
    TempFolder folder;
    std::filesystem::create_directories(folder / "memory/a");
    const std::string groups =
        folder.write("groups", "5:cpu:/a\n4:hugetlb,memory:/a\n1:name=x:/memory\n");
    folder.write("memory/a/memory.limit_in_bytes", "5000000\n");
    EXPECT_EQ(cgroup_memory_limit(groups, folder / ""), 5000000u);
    EXPECT_EQ(cgroup_memory_limit(folder / "none", folder / ""), std::nullopt);
}

TEST(Cgroup, CpuQuotaOfVersionTwoIsTheSmallestOnTheWay) {
    TempFolder folder;
    std::filesystem::create_directories(folder / "a/b");
    const std::string groups = folder.write("groups", "0::/a/b\n");
    const auto quota = [&] { return cgroup_cpu_quota(groups, folder / ""); };
    EXPECT_EQ(quota(), std::nullopt);
    folder.write("a/b/cpu.max", "max 100000\n");
    EXPECT_EQ(quota(), std::nullopt);
    folder.write("a/cpu.max", "200000 100000\n");
    EXPECT_EQ(quota(), 2.0);
    folder.write("a/b/cpu.max", "300000 100000\n");
    EXPECT_EQ(quota(), 2.0);
    folder.write("cpu.max", "75000 50000\n");  // the root, as a container sees its own
    EXPECT_EQ(quota(), 1.5);
    folder.write("cpu.max", "75000\n");
    EXPECT_EQ(quota(), 2.0) << "without a period there is no quota";
    folder.write("cpu.max", "75000 0\n");
    EXPECT_EQ(quota(), 2.0);
}

TEST(Cgroup, CpuQuotaOfVersionOne) {
    TempFolder folder;
    std::filesystem::create_directories(folder / "cpu/a");
    const std::string groups = folder.write("groups", "5:cpu,cpuacct:/a\n4:cpuset:/b\n0::/\n");
    const auto quota = [&] { return cgroup_cpu_quota(groups, folder / ""); };
    folder.write("cpu/a/cpu.cfs_period_us", "100000\n");
    folder.write("cpu/a/cpu.cfs_quota_us", "-1\n");
    EXPECT_EQ(quota(), std::nullopt);
    folder.write("cpu/a/cpu.cfs_quota_us", "50000\n");
    EXPECT_EQ(quota(), 0.5);
    EXPECT_EQ(cgroup_cpu_quota(folder / "none", folder / ""), std::nullopt);
}

TEST(Cgroup, CoresAreWhatTheQuotaPays) {
    const int cores = cpu_info().cores;
    EXPECT_GE(cores, 1);
    if (const auto quota = cgroup_cpu_quota()) {
        EXPECT_LE(cores, std::max(1, static_cast<int>(std::ceil(*quota))));
    }
}

}  // namespace
}  // namespace mr
