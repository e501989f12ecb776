// millrace bench norm: norm + residual on the GPU against what its memory allows.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/terminal.h"
#include "ops/norm/norm_measure.h"

namespace mr::cli {
namespace {

struct Options {
    std::int64_t hidden = 2560;
    std::vector<std::int64_t> tokens{1, 256, 1024, 32768};
    std::string type = "f16";
    std::string kind = "layer";
    bool json = false;
};

int norm_bench(const Options& options) {
    const cuda::NormMeasurement m =
        cuda::measure_norm(options.hidden, options.tokens, *dtype_from_name(options.type),
                           options.kind == "rms" ? ops::NormKind::rms : ops::NormKind::layer);
    Json json = {{"bench", "norm"},          {"device", m.device},
                 {"hidden", options.hidden}, {"type", options.type},
                 {"kind", options.kind},     {"gb_s", m.bytes_per_second / 1e9},
                 {"sizes", Json::array()}};
    std::string text = fmt::format(
        "norm: {} norm + residual, hidden {}, {}, on {}\n"
        "  memory gives {:.0f} GB/s to two arrays read and one written\n"
        "  {:>7}  {:>11}  {:>11}  {:>9}  {:>7}  {:>8}\n",
        options.kind, options.hidden, options.type, m.device, m.bytes_per_second / 1e9, "tokens",
        "graph us", "launched us", "floor us", "x floor", "GB/s");
    for (const cuda::NormMeasured& size : m.sizes) {
        const double ratio = size.graph_seconds / size.floor_seconds;
        const double rate = static_cast<double>(size.bytes) / size.graph_seconds / 1e9;
        json["sizes"].push_back({{"tokens", size.tokens},
                                 {"graph_us", size.graph_seconds * 1e6},
                                 {"launched_us", size.launched_seconds * 1e6},
                                 {"floor_us", size.floor_seconds * 1e6},
                                 {"times_floor", ratio},
                                 {"bytes", size.bytes},
                                 {"gb_s", rate}});
        text += fmt::format("  {:>7}  {:>11.2f}  {:>11.2f}  {:>9.2f}  {:>7.2f}  {:>8.0f}\n",
                            size.tokens, size.graph_seconds * 1e6, size.launched_seconds * 1e6,
                            size.floor_seconds * 1e6, ratio, rate);
    }
    out(options.json ? json_text(json) : text);
    return 0;
}

}  // namespace

void add_bench_norm(CLI::App& bench, Action& action) {
    auto options = std::make_shared<Options>();
    CLI::App* command =
        bench.add_subcommand("norm", "Norm + residual on the GPU, against its memory");
    command->add_option("--hidden", options->hidden, "Columns")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--tokens", options->tokens, "Rows, one measurement each")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 22))
        ->capture_default_str();
    command->add_option("--type", options->type, "Type of input and output")
        ->check(CLI::IsMember({"f32", "f16", "bf16"}))
        ->capture_default_str();
    command->add_option("--kind", options->kind, "Which norm")
        ->check(CLI::IsMember({"layer", "rms"}))
        ->capture_default_str();
    command->add_flag("--json", options->json, "Print JSON");
    command->footer(
        "Example:\n"
        "  millrace bench norm --hidden 2560 --tokens 1,32768");
    command->callback([options, &action] { action = [options] { return norm_bench(*options); }; });
}

}  // namespace mr::cli
