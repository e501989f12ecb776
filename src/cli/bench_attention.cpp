// millrace bench attention: the attention kernels of the GPU alone.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "observe/device_bandwidth.h"
#include "ops/attention/attention_measure.h"

namespace mr::cli {
namespace {

struct Options {
    cuda::AttentionShape shape;
    std::string type = "bf16";
    std::vector<int> keys{128, 512, 4096, 32768};
    std::vector<int> prompts{2048};
    bool json = false;
};

int bench(Options options) {
    cuda::AttentionShape& shape = options.shape;
    shape.dtype = *dtype_from_name(options.type);
    if (shape.heads % shape.kv_heads != 0) {
        throw Error::usage({.field = "--kv-heads",
                            .value = std::to_string(shape.kv_heads),
                            .problem = "does not divide --heads " + std::to_string(shape.heads)});
    }
    if (shape.head_dim % 8 != 0) {
        throw Error::usage({.field = "--head-dim",
                            .value = std::to_string(shape.head_dim),
                            .problem = "is not a multiple of 8"});
    }
    const double read = observe::device_ceilings().read;
    const cuda::AttentionMeasured m = cuda::measure_attention(shape, options.keys, options.prompts);
    Json json{{"bench", "attention"},       {"gpu", m.device.name},
              {"heads", shape.heads},       {"kv_heads", shape.kv_heads},
              {"head_dim", shape.head_dim}, {"batch", shape.batch},
              {"type", options.type},       {"read_bandwidth_gb_s", read / 1e9},
              {"decode", Json::array()},    {"prefill", Json::array()}};
    std::string text = fmt::format(
        "attention on {}: {} heads, {} kv heads of {}, batch {}, {}\n"
        "  reads {:.0f} GB/s\n  {:>9} {:>11} {:>9} {:>9} {:>6}\n",
        m.device.name, shape.heads, shape.kv_heads, shape.head_dim, shape.batch, options.type,
        read / 1e9, "keys", "us a call", "MB", "GB/s", "%");
    for (const auto& row : m.decode) {
        const double rate = static_cast<double>(row.bytes) / row.seconds;
        json["decode"].push_back({{"keys", row.keys},
                                  {"us", row.seconds * 1e6},
                                  {"bytes", row.bytes},
                                  {"gb_s", rate / 1e9},
                                  {"percent_of_bandwidth", 100 * rate / read}});
        text += fmt::format("  {:>9} {:>11.2f} {:>9.2f} {:>9.0f} {:>6.1f}\n", row.keys,
                            row.seconds * 1e6, static_cast<double>(row.bytes) / 1e6, rate / 1e9,
                            100 * rate / read);
    }
    for (const auto& row : m.prefill) {
        json["prefill"].push_back({{"tokens", row.rows},
                                   {"us", row.seconds * 1e6},
                                   {"tflop_s", row.flops / row.seconds / 1e12}});
        text += fmt::format("  prefill of {}, causal: {:.1f} us, {:.1f} TFLOP/s\n", row.rows,
                            row.seconds * 1e6, row.flops / row.seconds / 1e12);
    }
    out(options.json ? json_text(json) : text);
    return 0;
}

}  // namespace

void add_bench_attention(CLI::App& bench_app, Action& action) {
    auto options = std::make_shared<Options>();
    CLI::App* command =
        bench_app.add_subcommand("attention", "The GPU's attention alone, decode and prefill");
    command->add_option("--keys", options->keys, "Keys a decoded token sees")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 22))
        ->capture_default_str();
    command->add_option("--prefill", options->prompts, "Tokens of a prompt; 0: none")
        ->delimiter(',')
        ->check(CLI::Range(0, 1 << 20))
        ->capture_default_str();
    command->add_option("--heads", options->shape.heads, "Query heads")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    command->add_option("--kv-heads", options->shape.kv_heads, "... that share a key head")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    command->add_option("--head-dim", options->shape.head_dim, "A multiple of 8")
        ->check(CLI::Range(32, 256))
        ->capture_default_str();
    command->add_option("--batch", options->shape.batch, "Sequences that decode together")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    command->add_option("--type", options->type, "Of q and the cache")
        ->check(CLI::IsMember({"f32", "f16", "bf16"}))
        ->capture_default_str();
    command->add_flag("--json", options->json, "Print JSON");
    command->footer("Example:\n  millrace bench attention --keys 128,4096 --heads 32 --batch 8");
    command->callback([options, &action] {
        action = [options] {
            std::erase(options->prompts, 0);
            return bench(*options);
        };
    });
}

}  // namespace mr::cli
