#include "core/comm/launch.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/comm/mpi_module.h"
#include "core/error.h"

#ifndef MR_HAS_MPI
#define MR_HAS_MPI 0
#endif

namespace mr::comm {
namespace {

namespace fs = std::filesystem;

// Beside the program, where it is built, or where it is installed.
std::vector<fs::path> module_places() {
    std::error_code failed;
    const fs::path program = fs::read_symlink("/proc/self/exe", failed);
    if (failed) return {};
    const fs::path folder = program.parent_path();
    return {folder / kMpiModule, folder / ".." / "lib" / "millrace" / kMpiModule};
}

MakeMessages* mpi_module() {
    std::string why = fmt::format("{} is not beside the program", kMpiModule);
    for (const fs::path& place : module_places()) {
        std::error_code failed;
        if (!fs::exists(place, failed)) continue;
        // Global: MPI opens parts of its own that look for its symbols.
        if (void* const module = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
            if (void* const make = dlsym(module, kMakeMessages)) {
                return reinterpret_cast<MakeMessages*>(make);
            }
        }
        const char* const said = dlerror();
        why = said ? said : "it has no entry";
    }
    throw Error::usage({.field = "MPI",
                        .problem = "cannot be loaded: " + why,
                        .remedy = "build again with MPI installed, or launch one rank"});
}

}  // namespace

Launch launched() {
    for (const char* const name :
         {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        const char* const value = std::getenv(name);
        if (!value) continue;
        int ranks = 0;
        const auto end = value + std::strlen(value);
        const auto [stopped, problem] = std::from_chars(value, end, ranks);
        if (problem == std::errc() && stopped == end && ranks > 0) return {ranks, name};
    }
    return {};
}

bool has_mpi() { return MR_HAS_MPI != 0; }

std::unique_ptr<Comm> join(Comm::Seconds timeout) {
    const Launch launch = launched();
    if (launch.ranks == 1) return std::make_unique<Comm>();
    if (!has_mpi()) {
        throw Error::usage({.field = launch.by,
                            .value = fmt::format("{}", launch.ranks),
                            .problem = "this program was built without MPI and runs as one rank",
                            .remedy = "install MPI (Debian: libopenmpi-dev openmpi-bin) and build "
                                      "again, or launch one rank"});
    }
    std::unique_ptr<Messages> messages = mpi_module()();
    if (messages->size() != launch.ranks) {
        throw Error::usage(
            {.field = launch.by,
             .value = fmt::format("{}", launch.ranks),
             .problem = fmt::format("MPI itself has {} ranks", messages->size()),
             .remedy = "launch with the mpirun of the MPI that the program was built with"});
    }
    return std::make_unique<Comm>(std::move(messages), timeout);
}

}  // namespace mr::comm
