// Which instruction path the kernels take. Kernel files are compiled once per path
// (cmake/modules.cmake); the best path this machine can run is chosen at start; tests and
// MILLRACE_ISA=NAME can choose another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr {

enum class Isa {
    portable,   // plain C++; the reference for the tests of the others
    neon_dot,   // Arm NEON with dot-product (sdot)
    neon_i8mm,  // ... and int8 and bf16 matrix instructions (smmla, bfmmla)
    avx2,       // x86 AVX2, FMA, F16C
    avx512,     // x86 AVX-512 F, BW, VL, DQ, VNNI
};

const char* isa_name(Isa isa);
// The paths that were compiled and that this machine can run, plainest first.
std::vector<Isa> available_isas();
// The path in use: the best available, or what MILLRACE_ISA or set_isa() names.
Isa active_isa();
// For tests. Throws Error (usage) where the machine cannot run it.
void set_isa(Isa isa);

struct CpuInfo {
    std::string model;  // as the system reports it; may be "unknown"
    int cores = 1;      // usable by this process
    std::size_t memory_bytes = 0;
};
CpuInfo cpu_info();
// Describes this machine and the cores this process may use; equal text means equal cores.
std::string core_set();

}  // namespace mr
