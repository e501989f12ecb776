// Figures of this process for /metrics, from /proc.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/read_double.h"
#include "serve/metrics.h"

namespace mr::serve {
namespace {

// Fields of /proc/self/stat, counted from 1 as in proc(5). The second is the program's name in
// parentheses, which may hold spaces and parentheses.
struct ProcessStat {
    double cpu_seconds = 0, start_seconds = 0;  // start: since the machine's
    double virtual_bytes = 0, resident_bytes = 0;
    long threads = 0;
};

std::optional<ProcessStat> process_stat() {
    std::ifstream file("/proc/self/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const std::size_t name = text.rfind(')');
    if (name == std::string::npos) return std::nullopt;
    std::istringstream rest(text.substr(name + 1));
    std::vector<std::string> fields(3);  // 0 to 2
    for (std::string field; rest >> field;) fields.push_back(std::move(field));
    constexpr std::size_t kUser = 14, kSystem = 15, kThreads = 20, kStart = 22, kVirtual = 23,
                          kResident = 24;
    if (fields.size() <= kResident) return std::nullopt;
    const auto number = [&](std::size_t field) { return read_double(fields[field]).value_or(0); };
    const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    return ProcessStat{
        .cpu_seconds = (number(kUser) + number(kSystem)) / ticks,
        .start_seconds = number(kStart) / ticks,
        .virtual_bytes = number(kVirtual),
        .resident_bytes = number(kResident) * static_cast<double>(::sysconf(_SC_PAGESIZE)),
        .threads = static_cast<long>(number(kThreads))};
}

// When the machine started, in seconds since 1970.
std::optional<double> boot_seconds() {
    std::ifstream file("/proc/stat");
    for (std::string word; file >> word;) {
        double seconds = 0;
        if (word == "btime" && file >> seconds) return seconds;
    }
    return std::nullopt;
}

std::optional<std::size_t> open_descriptors() {
    std::error_code unknown;
    std::filesystem::directory_iterator at("/proc/self/fd", unknown);
    std::size_t count = 0;
    for (; !unknown && at != std::filesystem::directory_iterator(); at.increment(unknown)) ++count;
    if (unknown || count == 0) return std::nullopt;
    return count - 1;  // the folder's own
}

}  // namespace

std::string process_metrics() {
    std::string out;
    const auto one = [&](const char* name, const char* kind, const char* about, auto value) {
        out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, about, kind, value);
    };
    if (const auto stat = process_stat()) {
        one("process_cpu_seconds_total", "counter", "Time of the processor, user and system.",
            stat->cpu_seconds);
        one("process_resident_memory_bytes", "gauge", "Memory that is resident.",
            static_cast<std::uint64_t>(stat->resident_bytes));
        one("process_virtual_memory_bytes", "gauge", "Memory that is mapped.",
            static_cast<std::uint64_t>(stat->virtual_bytes));
        one("process_threads", "gauge", "Threads.", stat->threads);
        if (const auto boot = boot_seconds()) {
            one("process_start_time_seconds", "gauge", "When it started, since 1970.",
                fmt::format("{:.2f}", *boot + stat->start_seconds));
        }
    }
    if (const auto count = open_descriptors()) {
        one("process_open_fds", "gauge", "Open descriptors.", *count);
    }
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        one("process_max_fds", "gauge", "Descriptors that may be open.",
            static_cast<std::uint64_t>(limit.rlim_cur));
    }
    return out;
}

}  // namespace mr::serve
