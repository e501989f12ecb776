// A memory reserve that lets a program exit cleanly when memory runs out.
#pragma once

namespace mr {

// For a program's main(): from now on some memory is held back, and freed when an allocation fails,
// before std::bad_alloc is thrown. Code on the way out may allocate a little: the destructor of a
// JSON tree does, and a failure there would end the program by a signal.
void hold_back_memory();
// Holds the reserve back again, if memory allows: for code that goes on after a std::bad_alloc.
// Does nothing if hold_back_memory() was not called.
void hold_back_memory_again();
bool memory_is_held_back();

}  // namespace mr
