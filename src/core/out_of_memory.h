// What a program keeps to leave in order when there is no memory left.
#pragma once

namespace mr {

// For a program's main(): from here on some memory is held back, and given free when an allocation
// fails, before std::bad_alloc is thrown. What runs on the way out may allocate a little: the
// destructor of a tree does, and a failure there would end the program by a signal.
void hold_back_memory();
// What was given free is held back again, if it can be had: for places that go on after a
// std::bad_alloc. Does nothing where hold_back_memory() was not called.
void hold_back_memory_again();
bool memory_is_held_back();

}  // namespace mr
