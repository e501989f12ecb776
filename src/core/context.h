// What every op is given besides its tensors: who works, where to write it down, and scratch.
#pragma once

#include <cstddef>
#include <span>

#include "core/ledger.h"
#include "core/thread_pool.h"

namespace mr {

struct Context {
    ThreadPool* pool = nullptr;         // required
    Ledger* ledger = nullptr;           // may be null: nothing is recorded
    std::span<std::byte> scratch = {};  // planned by the caller; ops say how much they want
};

}  // namespace mr
