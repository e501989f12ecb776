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

TEST(Cgroup, FreeMemoryOfVersionTwoIsTheLeastOnTheWay) {
    TempFolder folder;
    std::filesystem::create_directories(folder / "a/b");
    const std::string groups = folder.write("groups", "0::/a/b\n");
    const auto free = [&] { return cgroup_memory_free(groups, folder / ""); };
    folder.write("a/b/memory.max", "max\n");
    folder.write("a/b/memory.current", "1000\n");
    EXPECT_EQ(free(), std::nullopt) << "without a limit";
    folder.write("a/memory.max", "9000\n");
    EXPECT_EQ(free(), std::nullopt) << "without what is used of it";
    folder.write("a/memory.current", "6000\n");
    EXPECT_EQ(free(), 3000u);
    folder.write("a/memory.stat", "anon 2000\nfile 4000\ninactive_file 700\nactive_file 300\n");
    EXPECT_EQ(free(), 4000u) << "files' pages are given back";
    folder.write("a/b/memory.max", "500\n");
    EXPECT_EQ(free(), 0u) << "above its limit for a moment";
}

TEST(Cgroup, FreeMemoryOfVersionOne) {
    TempFolder folder;
    std::filesystem::create_directories(folder / "memory/a");
    const std::string groups = folder.write("groups", "4:memory:/a\n");
    folder.write("memory/a/memory.limit_in_bytes", "9000\n");
    folder.write("memory/a/memory.usage_in_bytes", "6000\n");
    folder.write("memory/a/memory.stat", "inactive_file 900\ntotal_inactive_file 500\n");
    EXPECT_EQ(cgroup_memory_free(groups, folder / ""), 3500u);
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
