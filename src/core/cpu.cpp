#include "core/cpu.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>

#include "core/cgroup.h"
#include "core/error.h"
#include "core/memory.h"
#if defined(__aarch64__) && !defined(MR_PORTABLE_ONLY)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__) && !defined(MR_PORTABLE_ONLY)
#include <cpuid.h>
#endif

namespace mr {
namespace {

bool machine_can_run(Isa isa) {
    if (isa == Isa::portable) return true;
#if defined(__aarch64__) && !defined(MR_PORTABLE_ONLY)
    const unsigned long caps = ::getauxval(AT_HWCAP);
    const unsigned long caps2 = ::getauxval(AT_HWCAP2);
    const bool dot = (caps & HWCAP_ASIMDDP) != 0 && (caps & HWCAP_ASIMDHP) != 0;
    if (isa == Isa::neon_dot) return dot;
    if (isa == Isa::neon_i8mm) {
        return dot && (caps2 & HWCAP2_I8MM) != 0 && (caps2 & HWCAP2_BF16) != 0;
    }
#elif defined(__x86_64__) && !defined(MR_PORTABLE_ONLY)
    // Clang 14's __builtin_cpu_supports() does not know f16c.
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool f16c = ::__get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
    const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == Isa::avx2) return avx2;
    if (isa == Isa::avx512) {
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
    }
#endif
    return false;
}

Isa choose() {
    const std::vector<Isa> all = available_isas();
    const char* wish = std::getenv("MILLRACE_ISA");
    if (!wish || !*wish) return all.back();
    for (Isa isa : all) {
        if (std::string_view(wish) == isa_name(isa)) return isa;
    }
    std::string names;
    for (Isa isa : all) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
    throw Error::usage({.field = "MILLRACE_ISA",
                        .value = wish,
                        .problem = "this machine does not support that instruction set",
                        .remedy = "use one of: " + names});
}

// The cores that this process may run on; empty if the system does not say. The kernel's set may be
// larger than one cpu_set_t, which holds 1024 cores: then it refuses a small one with EINVAL.
std::vector<std::size_t> own_cores() {
    constexpr std::size_t kMostSets = 1024;
    for (std::size_t sets = 1; sets <= kMostSets; sets *= 2) {
        std::vector<cpu_set_t> set(sets);
        const std::size_t bytes = sets * sizeof(cpu_set_t);
        if (::sched_getaffinity(0, bytes, set.data()) != 0) {
            if (errno == EINVAL) continue;
            break;
        }
        std::vector<std::size_t> cores;
        for (std::size_t core = 0; core < 8 * bytes; ++core) {
            if (CPU_ISSET_S(core, bytes, set.data())) cores.push_back(core);
        }
        return cores;
    }
    return {};
}

std::atomic<int> g_isa{-1};  // -1: not chosen yet. Chosen once, then constant.

}  // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::portable:
            return "portable";
        case Isa::neon_dot:
            return "neon_dot";
        case Isa::neon_i8mm:
            return "neon_i8mm";
        case Isa::avx2:
            return "avx2";
        case Isa::avx512:
            return "avx512";
    }
    return "?";
}

std::vector<Isa> available_isas() {
    std::vector<Isa> out;
    for (Isa isa : {Isa::portable, Isa::neon_dot, Isa::neon_i8mm, Isa::avx2, Isa::avx512}) {
        if (machine_can_run(isa)) out.push_back(isa);
    }
    return out;
}

Isa active_isa() {
    int isa = g_isa.load(std::memory_order_relaxed);
    if (isa < 0) {
        isa = static_cast<int>(choose());
        g_isa.store(isa, std::memory_order_relaxed);
    }
    return static_cast<Isa>(isa);
}

void set_isa(Isa isa) {
    if (!machine_can_run(isa)) {
        throw Error::usage({.field = "isa",
                            .value = isa_name(isa),
                            .problem = "this machine does not support that instruction set"});
    }
    g_isa.store(static_cast<int>(isa), std::memory_order_relaxed);
}

CpuInfo cpu_info() {
    CpuInfo info;
    info.cores = std::max(1, static_cast<int>(own_cores().size()));
    // More threads than a quota pays for would spin until the group is stopped for the period.
    if (const auto quota = cgroup_cpu_quota(); quota && *quota < info.cores) {
        info.cores = std::max(1, static_cast<int>(std::ceil(*quota)));
    }
    info.memory_bytes = available_memory_bytes();
    std::ifstream file("/proc/cpuinfo");
    std::map<std::string, std::string> fields;
    for (std::string line; std::getline(file, line);) {
        const std::size_t colon = line.find(':');
        if (colon == std::string::npos) continue;
        std::string key = line.substr(0, colon);
        key.erase(key.find_last_not_of(" \t") + 1);
        fields.try_emplace(key, line.substr(std::min(colon + 2, line.size())));
    }
    if (fields.count("model name")) {
        info.model = fields["model name"];
    } else if (fields.count("CPU part")) {  // Arm gives part numbers only; these are common servers
        static const std::map<std::string, const char*> kParts = {
            {"0xd0c", "Arm Neoverse-N1"}, {"0xd40", "Arm Neoverse-V1"},
            {"0xd49", "Arm Neoverse-N2"}, {"0xd4f", "Arm Neoverse-V2"},
            {"0xd08", "Arm Cortex-A72"},  {"0xd0b", "Arm Cortex-A76"}};
        const auto part = kParts.find(fields["CPU part"]);
        info.model = part != kParts.end() ? part->second : "Arm part " + fields["CPU part"];
    } else {
        info.model = "unknown";
    }
    return info;
}

std::string core_set() {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    std::string out = name;
    for (const std::size_t core : own_cores()) out += ' ' + std::to_string(core);
    return out;
}

}  // namespace mr
