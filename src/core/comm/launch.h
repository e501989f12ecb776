// How this process was launched: alone, or by mpirun or srun beside other ranks.
#pragma once

#include <memory>
#include <string>

#include "core/comm/comm.h"

namespace mr::comm {

struct Launch {
    int ranks = 1;
    std::string by{};  // the variable that says so: "OMPI_COMM_WORLD_SIZE"
};
// By what the launchers put into the environment.
Launch launched();

// The ranks of a node take its GPUs in turn: this process sees its own alone, as the first one
// (CUDA_VISIBLE_DEVICES), with a queue for each of its streams. Called before anything asks for a
// GPU. It sees what it saw where the launcher does not say which rank of its node this is, or has
// given it one GPU.
void choose_device();
// Which of `devices` GPUs, or of the list that the variable already has (null: none), the
// `local`-th rank of a node takes; empty: there is nothing to choose from.
std::string device_of_rank(int local, const char* visible, int devices);

// Whether this program was built with MPI.
bool has_mpi();

// The ranks of this launch; one rank alone without one. MPI is loaded here and nowhere else, so a
// program that runs alone starts without it. Throws Error (usage) where there are other ranks and
// the build has no MPI. Call it once in a process, before threads that communicate.
std::unique_ptr<Comm> join(Comm::Seconds timeout);

}  // namespace mr::comm
