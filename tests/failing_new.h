// operator new of a whole program that fails when it is told to: for one file of a test program.
#pragma once

#include <cstdlib>
#include <new>

namespace mr::test {

inline thread_local int allocations_left = -1;  // of this thread, before one fails; -1: none does

}  // namespace mr::test

void* operator new(std::size_t size) {
    if (mr::test::allocations_left >= 0 && mr::test::allocations_left-- == 0)
        throw std::bad_alloc();
    if (void* const memory = std::malloc(size > 0 ? size : 1)) return memory;
    throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    return std::malloc(size > 0 ? size : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
