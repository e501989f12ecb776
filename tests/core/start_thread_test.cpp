#include "core/start_thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "core/error.h"

namespace mr {
namespace {

TEST(StartThread, Runs) {
    int value = 0;
    start_thread([&] { value = 7; }, "to count").join();
    EXPECT_EQ(value, 7);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // both reserve addresses
TEST(StartThreadDeathTest, SaysWhyThereIsNone) {
    const auto start_without_room = [] {
        rlimit none{};  // no room for another stack
        none.rlim_cur = none.rlim_max = 1u << 20;
        ::setrlimit(RLIMIT_AS, &none);
        try {
            start_thread([] {}, "to read the data").join();
        } catch (const Error& error) {
            std::fputs(error.info().problem.c_str(), stderr);
            std::_Exit(error.kind() == ErrorKind::device ? 3 : 1);
        }
        std::_Exit(0);
    };
    EXPECT_EXIT(start_without_room(), testing::ExitedWithCode(3),
                "no thread could be started to read the data: ");
}
#endif

}  // namespace
}  // namespace mr
