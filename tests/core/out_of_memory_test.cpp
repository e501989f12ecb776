#include "core/out_of_memory.h"

#include <gtest/gtest.h>

#include <new>

namespace mr {
namespace {

TEST(OutOfMemory, WhatIsHeldBackServesMoreThanOnce) {
    const std::new_handler before = std::get_new_handler();
    hold_back_memory_again();
    EXPECT_FALSE(memory_is_held_back()) << "only a program decides to";
    hold_back_memory();
    for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(memory_is_held_back());
        // What a failing allocation does.
        EXPECT_THROW(std::get_new_handler()(), std::bad_alloc);
        EXPECT_FALSE(memory_is_held_back());
        hold_back_memory_again();
    }
    EXPECT_TRUE(memory_is_held_back());
    EXPECT_THROW(std::get_new_handler()(), std::bad_alloc);
    std::set_new_handler(before);
}

}  // namespace
}  // namespace mr
