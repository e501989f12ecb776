#include "core/out_of_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace mr {
namespace {

// Enough to destroy the JSON of a vocabulary of half a million tokens. It is never touched, so it
// takes address space but no memory.
constexpr std::size_t kHeldBack = std::size_t{16} << 20;
std::atomic<void*> held_back = nullptr;

void let_go() {
    std::free(held_back.exchange(nullptr));
    throw std::bad_alloc();
}

}  // namespace

void hold_back_memory() {
    std::free(held_back.exchange(std::malloc(kHeldBack)));
    std::set_new_handler(let_go);
}

void hold_back_memory_again() {
    if (memory_is_held_back() || std::get_new_handler() != let_go) return;
    std::free(held_back.exchange(std::malloc(kHeldBack)));
}

bool memory_is_held_back() { return held_back.load() != nullptr; }

}  // namespace mr
