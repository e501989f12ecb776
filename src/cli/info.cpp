// millrace info: the machine.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/arena.h"
#include "core/cpu.h"
#include "core/thread_pool.h"
#include "observe/bandwidth.h"

namespace mr::cli {
namespace {

using Json = nlohmann::ordered_json;

Json machine(const SharedOptions& options) {
    const CpuInfo cpu = cpu_info();
    ThreadPool pool(thread_count(options));
    const observe::Bandwidth bandwidth = observe::measure_read_bandwidth(pool, 0, 0.3);
    Json paths = Json::array();
    for (const Isa isa : available_isas()) paths.push_back(isa_name(isa));
    return {{"version", MR_VERSION},
            {"cpu", cpu.model},
            {"cores", cpu.cores},
            {"threads", pool.size()},
            {"memory_bytes", cpu.memory_bytes},
            {"cache_bytes", observe::last_level_cache_bytes()},
            {"isa", isa_name(active_isa())},
            {"isas", paths},
            {"read_bandwidth_gb_s", bandwidth.best / 1e9},
            {"devices", {"cpu"}}};
}

int info(const SharedOptions& options) {
    check_device(options);
    const Json m = machine(options);
    if (options.json) {
        out(Json{{"machine", m}}.dump(2) + "\n");
        return 0;
    }
    out(fmt::format(
        "machine     {}, {} cores, {} memory\n"
        "            kernels {}, reads {:.1f} GB/s with {} threads\n",
        m["cpu"].get<std::string>(), m["cores"].get<int>(),
        format_bytes(m["memory_bytes"].get<std::uint64_t>()), m["isa"].get<std::string>(),
        m["read_bandwidth_gb_s"].get<double>(), m["threads"].get<int>()));
    return 0;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
    auto options = std::make_shared<SharedOptions>();
    CLI::App* command = app.add_subcommand("info", "Describe this machine");
    add_machine_options(*command, *options);
    add_json_option(*command, *options);
    command->footer("Example:\n  millrace info");
    command->callback([options, &action] { action = [options] { return info(*options); }; });
}

}  // namespace mr::cli
