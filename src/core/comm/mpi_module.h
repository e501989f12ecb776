// What the module with MPI in it (messages_mpi.cpp) gives to the program that loads it
// (launch.cpp). MPI is apart because every program that is linked with it loads a dozen libraries
// before its first line, and needs them to be there.
#pragma once

#include <memory>

#include "core/comm/messages.h"

namespace mr::comm {

inline constexpr const char* kMpiModule = "millrace_mpi.so";
inline constexpr const char* kMakeMessages = "millrace_mpi_messages";
// Begins MPI; it ends with the program. Called once.
using MakeMessages = std::unique_ptr<Messages>();

}  // namespace mr::comm
