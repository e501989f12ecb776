#include "core/comm/launch.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/comm/mpi_module.h"
#include "core/error.h"

#ifndef MR_HAS_MPI
#define MR_HAS_MPI 0
#endif

namespace mr::comm {
namespace {

namespace fs = std::filesystem;

constexpr int kRollChannel = 1000;  // above those any run uses

// Next to the program (build tree), or in ../lib/millrace (installed).
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
        // RTLD_GLOBAL: MPI opens plugins of its own that look for its symbols.
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

namespace {

// The first of these variables whose value is a number of at least `least`; `by` empty: none is.
struct Variable {
    int number = 0;
    std::string by{};
};
Variable number_in(std::initializer_list<const char*> names, int least) {
    for (const char* const name : names) {
        const char* const value = std::getenv(name);
        if (!value) continue;
        int number = 0;
        const auto end = value + std::strlen(value);
        const auto [stopped, problem] = std::from_chars(value, end, number);
        if (problem == std::errc() && stopped == end && number >= least) return {number, name};
    }
    return {};
}

// The GPUs of this node, as its driver lists them.
int devices_here() {
    std::error_code failed;
    int count = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator("/dev", failed)) {
        const std::string name = entry.path().filename().string();
        constexpr std::string_view kBegins = "nvidia";
        count += name.size() > kBegins.size() && name.starts_with(kBegins) &&
                 std::ranges::all_of(name.substr(kBegins.size()),
                                     [](char c) { return c >= '0' && c <= '9'; });
    }
    return count;
}

}  // namespace

Launch launched() {
    const Variable ranks =
        number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"}, 1);
    return ranks.by.empty() ? Launch{} : Launch{ranks.number, ranks.by};
}

std::string device_of_rank(int local, const char* visible, int devices) {
    std::vector<std::string> all;
    if (visible) {
        for (std::string_view rest = visible; !rest.empty();) {
            const std::size_t end = std::min(rest.find(','), rest.size());
            if (end > 0) all.emplace_back(rest.substr(0, end));
            rest.remove_prefix(std::min(end + 1, rest.size()));
        }
    } else {
        for (int i = 0; i < devices; ++i) all.push_back(fmt::format("{}", i));
    }
    return all.empty() ? "" : all[static_cast<std::size_t>(local) % all.size()];
}

void choose_device() {
    if (launched().ranks == 1) return;
    // A stream that waits for another rank must not block other streams in a shared hardware queue.
    // The default is 8 queues.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    const Variable local = number_in(
        {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"}, 0);
    if (local.by.empty()) return;
    const std::string device =
        device_of_rank(local.number, std::getenv("CUDA_VISIBLE_DEVICES"), devices_here());
    if (!device.empty()) setenv("CUDA_VISIBLE_DEVICES", device.c_str(), 1);
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
    auto comm = std::make_unique<Comm>(std::move(messages), timeout);
    comm->call_the_roll(kRollChannel);
    return comm;
}

}  // namespace mr::comm
