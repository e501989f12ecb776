#include "core/error.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

TEST(Error, PrintsItsPartsInOrder) {
    const Error all = Error::input({.file = "m.gguf",
                                    .field = "block_count",
                                    .value = "-3",
                                    .problem = "must be positive",
                                    .remedy = "download it again"});
    EXPECT_STREQ(all.what(), "m.gguf: block_count = -3: must be positive; download it again");
    EXPECT_STREQ(Error::input({.problem = "is bad"}).what(), "is bad");
    EXPECT_STREQ(Error::input({.file = "a", .problem = "is bad"}).what(), "a: is bad");
    EXPECT_STREQ(Error::input({.field = "f", .problem = "is bad"}).what(), "f: is bad");
    EXPECT_STREQ(Error::input({.value = "7", .problem = "is bad"}).what(), "7: is bad");
}

TEST(Error, KindsAreExitCodes) {
    EXPECT_EQ(Error::input({.problem = "x"}).exit_code(), 1);
    EXPECT_EQ(Error::usage({.problem = "x"}).exit_code(), 2);
    EXPECT_EQ(Error::device({.problem = "x"}).exit_code(), 3);
    EXPECT_EQ(Error::device({.problem = "x"}).kind(), ErrorKind::device);
}

// Names and values come from untrusted files.
TEST(Error, IsOneLineWhateverTheFileSays) {
    std::string hostile = "a\nb\r\x1b[31m\x7f";
    hostile += '\0';
    const Error error =
        Error::input({.file = hostile, .field = hostile, .value = hostile, .problem = "p\nq"});
    for (unsigned char c : std::string(error.what())) {
        EXPECT_GE(c, 0x20);
        EXPECT_NE(c, 0x7f);
    }
    EXPECT_NE(std::string(error.what()).find("a\\x0ab\\x0d\\x1b[31m\\x7f\\x00"), std::string::npos);
    EXPECT_EQ(error.info().value, hostile);  // the program still has the original
}

TEST(Error, LongValuesAreCut) {
    const Error error =
        Error::input({.field = "name", .value = std::string(100000, 'x'), .problem = "is long"});
    EXPECT_LT(std::string(error.what()).size(), 500u);
    EXPECT_NE(std::string(error.what()).find("x...: is long"), std::string::npos);
}

TEST(Check, NamesTheContractAndThePlace) {
    EXPECT_NO_THROW(MR_CHECK(1 + 1 == 2, "arithmetic holds"));
    try {
        MR_CHECK(1 + 1 == 3, "arithmetic holds");
        FAIL();
    } catch (const ContractError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("error_test.cpp:"), std::string::npos);
        EXPECT_NE(text.find("arithmetic holds (failed: 1 + 1 == 3)"), std::string::npos);
    }
}

}  // namespace
}  // namespace mr
