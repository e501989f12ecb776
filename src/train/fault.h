// Where a test may end a run, or disturb it, while it saves.
#pragma once

namespace mr::train {

// Called at every point of saving a checkpoint: before and after every file, between parts of a
// file, before and after the rename, while old ones are removed. Null, and a branch that is never
// taken, in every program but the tests' own, which sets it before a run (tests/cli/faulty.cpp).
inline void (*save_point)() = nullptr;

}  // namespace mr::train
