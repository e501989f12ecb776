// The interface of the MPI module (messages_mpi.cpp) to the program that loads it (launch.cpp). MPI
// is a separate module because a program linked with it needs a dozen more libraries and loads them
// before its first line.
#pragma once

#include <memory>

#include "core/comm/messages.h"

namespace mr::comm {

inline constexpr const char* kMpiModule = "millrace_mpi.so";
inline constexpr const char* kMakeMessages = "millrace_mpi_messages";
// Starts MPI, which ends with the program. Called once.
using MakeMessages = std::unique_ptr<Messages>();

}  // namespace mr::comm
