// A hook where a test may end or disturb a run while it saves.
#pragma once

namespace mr::train {

// Called at every point of saving a checkpoint: before and after every file, between parts of a
// file, before and after the rename, while old ones are removed. Null (a branch never taken) in all
// programs except one for tests, which sets it before a run (tests/cli/faulty.cpp).
inline void (*save_point)() = nullptr;

}  // namespace mr::train
