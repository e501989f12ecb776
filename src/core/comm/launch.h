// How this process was launched: alone, or by mpirun or srun beside other ranks.
#pragma once

#include <memory>
#include <string>

#include "core/comm/comm.h"

namespace mr::comm {

struct Launch {
    int ranks = 1;
    std::string by{};  // the variable that told: "OMPI_COMM_WORLD_SIZE"
};
// Read from the variables that launchers set in the environment.
Launch launched();

// The ranks of a node take its GPUs in turn: CUDA_VISIBLE_DEVICES is set so that this process sees
// only its own, and each of its streams gets a hardware queue. Call it before anything touches a
// GPU. The visible GPUs stay as they are if the launcher does not tell the rank within the node, or
// shows only one GPU.
void choose_device();
// Which of `devices` GPUs, or of the list already in CUDA_VISIBLE_DEVICES (null: unset), the
// `local`-th rank of a node takes; empty: there is nothing to choose from.
std::string device_of_rank(int local, const char* visible, int devices);

// Whether this program was built with MPI.
bool has_mpi();

// The ranks of this launch; a single rank without a launcher. MPI is loaded only here, so a program
// that runs alone starts without it. Throws Error (usage) where there are other ranks and the build
// has no MPI. Call it once per process, before starting threads that communicate.
std::unique_ptr<Comm> join(Comm::Seconds timeout);

}  // namespace mr::comm
