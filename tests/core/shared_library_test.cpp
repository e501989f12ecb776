#include "core/shared_library.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

constexpr const char* kVariable = "MILLRACE_SHARED_LIBRARY_TEST";  // not set

TEST(SharedLibrary, FunctionsAreFoundAndTheMissingOnesNamed) {
    const auto [file, why] =
        open_shared_library("libm", kVariable, {"libmillrace_nowhere.so", "libm.so.6"});
    ASSERT_TRUE(file) << why;
    double (*root)(double) = nullptr;
    void (*first)() = nullptr;
    void (*second)() = nullptr;
    std::string missing;
    find_function(file, "sqrt", root, missing);
    EXPECT_EQ(missing, "");
    ASSERT_NE(root, nullptr);
    EXPECT_EQ(root(9), 3);
    find_function(file, "mr_first", first, missing);
    find_function(file, "mr_second", second, missing);
    EXPECT_EQ(missing, "mr_first, mr_second");
    EXPECT_EQ(first, nullptr);
    EXPECT_EQ(second, nullptr);
}

TEST(SharedLibrary, SaysWhyThereIsNone) {
    const auto [file, why] = open_shared_library("Nowhere", kVariable, {"libmillrace_nowhere.so"});
    EXPECT_EQ(file, nullptr);
    EXPECT_NE(why.find("Nowhere was not found: libmillrace_nowhere.so"), std::string::npos) << why;
}

}  // namespace
}  // namespace mr
