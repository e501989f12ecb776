#include "core/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace mr {
namespace {

constexpr Isa kAll[] = {Isa::portable, Isa::neon_dot, Isa::neon_i8mm, Isa::avx2, Isa::avx512};

TEST(Cpu, PortableIsAlwaysThereAndFirst) {
    const std::vector<Isa> paths = available_isas();
    ASSERT_FALSE(paths.empty());
    EXPECT_EQ(paths.front(), Isa::portable);
    EXPECT_TRUE(std::is_sorted(paths.begin(), paths.end()));
    EXPECT_NE(std::find(paths.begin(), paths.end(), active_isa()), paths.end());
}

TEST(Cpu, ThePathInUseIsTheOneThatWasSet) {
    const Isa before = active_isa();
    const std::vector<Isa> paths = available_isas();
    for (Isa isa : kAll) {
        if (std::find(paths.begin(), paths.end(), isa) != paths.end()) {
            set_isa(isa);
            EXPECT_EQ(active_isa(), isa);
        } else {
            const Isa current = active_isa();
            try {
                set_isa(isa);
                ADD_FAILURE() << isa_name(isa) << " was taken";
            } catch (const Error& error) {
                EXPECT_EQ(error.kind(), ErrorKind::usage);
                EXPECT_EQ(error.info().value, isa_name(isa));
            }
            EXPECT_EQ(active_isa(), current);
        }
    }
    set_isa(before);
}

TEST(Cpu, NamesDiffer) {
    std::set<std::string> names;
    for (Isa isa : kAll) EXPECT_TRUE(names.insert(isa_name(isa)).second);
    EXPECT_EQ(names.count("?"), 0u);
}

TEST(Cpu, SaysWhatTheMachineIs) {
    const CpuInfo info = cpu_info();
    EXPECT_FALSE(info.model.empty());
    EXPECT_GE(info.cores, 1);
    EXPECT_GT(info.memory_bytes, std::size_t{64} << 20);
}

}  // namespace
}  // namespace mr
