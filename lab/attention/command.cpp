// millrace-lab attention: only the attention kernels of the GPU, over the paged cache (decode and
// prefill of the engine) and over plain tensors (training).
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "lab/attention/attention_measure.h"
#include "lab/attention/flash_command.h"
#include "lab/experiments.h"
#include "lab/outcome.h"
#include "observe/device_bandwidth.h"

namespace mr::cli {
namespace {

struct BenchAttentionOptions {
    cuda::AttentionShape shape;
    std::string type = "bf16";
    std::vector<int> keys{128, 512, 4096, 32768};
    std::vector<int> prompts{2048};
    FlashTables plain;
    std::string only, grid, peer, disable;
    OutcomeOptions outcome;
};

// Decode and prefill over the paged cache.
std::string paged_table(const BenchAttentionOptions& options, double read, Json& json) {
    const cuda::AttentionShape& shape = options.shape;
    const cuda::AttentionMeasured m = cuda::measure_attention(shape, options.keys, options.prompts);
    json.update(Json{{"heads", shape.heads},
                     {"kv_heads", shape.kv_heads},
                     {"head_dim", shape.head_dim},
                     {"batch", shape.batch},
                     {"type", options.type},
                     {"window", shape.window},
                     {"sinks", shape.sinks},
                     {"decode", Json::array()},
                     {"prefill", Json::array()}});
    std::string text = fmt::format(
        "paged cache: {} heads, {} kv heads of {}, batch {}, {}\n"
        "  reads {:.0f} GB/s\n  {:>9} {:>11} {:>9} {:>9} {:>6}\n",
        shape.heads, shape.kv_heads, shape.head_dim, shape.batch, options.type, read / 1e9, "keys",
        "us per call", "MB", "GB/s", "%");
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
                                   {"keys", row.keys},
                                   {"us", row.seconds * 1e6},
                                   {"tflop_s", row.flops / row.seconds / 1e12}});
        text += fmt::format("  prefill of {}{}, causal: {:.1f} us, {:.1f} TFLOP/s\n", row.rows,
                            row.keys > row.rows ? fmt::format(" over {} keys", row.keys) : "",
                            row.seconds * 1e6, row.flops / row.seconds / 1e12);
    }
    return text;
}

void check(const BenchAttentionOptions& options) {
    const cuda::AttentionShape& shape = options.shape;
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
    if (shape.sinks > 0 && shape.window == 0) {
        throw Error::usage({.field = "--sinks",
                            .value = std::to_string(shape.sinks),
                            .problem = "only applies with --window"});
    }
    check_shapes(options.plain);
    const bool shapes = !options.plain.shapes.empty() || options.plain.list != "targets";
    if (options.only == "paged" && (!options.peer.empty() || shapes)) {
        throw Error::usage(
            {.field = shapes ? "--shape, --shapes" : "--peer",
             .value = shapes ? "" : options.peer,
             .problem = "only applies to plain tensors, which --only paged leaves out"});
    }
}

int bench(BenchAttentionOptions options) {
    check(options);
    check_outcome(options.outcome);
    options.shape.dtype = *dtype_from_name(options.type);
    options.shape.resident = options.disable.empty();
    options.plain.torch = options.peer == "torch";
    require_gpu("attention");
    const std::string gpu = observe::device_name(true);
    const observe::Ceilings& ceilings = observe::device_ceilings();
    Json json{{"experiment", "attention"},
              {"gpu", gpu},
              {"read_bandwidth_gb_s", ceilings.read / 1e9},
              {"matrix_tflop_s", ceilings.matrix / 1e12}};
    const Say say = [&options](const std::string& text) {  // a long table is read as it grows
        if (!options.outcome.json) out(text);
    };
    say(fmt::format("attention on {}\n", gpu));
    if (options.grid == "cs336") {
        cs336_table(options.plain, ceilings.matrix, json, say);
    } else {
        if (options.only != "paged") flash_table(options.plain, ceilings.matrix, json, say);
        if (options.only != "plain") say(paged_table(options, ceilings.read, json));
    }
    show(options.outcome, json, {});
    return 0;
}

}  // namespace

void add_attention(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchAttentionOptions>();
    const Command command = lab.add_subcommand("attention", "The GPU's attention alone");
    const Option only =
        command.add_option("--only", options->only, "One of the tables: plain tensors, paged cache")
            .one_of({"plain", "paged"});
    const Option shapes =
        command
            .add_option("--shapes", options->plain.list,
                        "Plain tensors: the targets' (heads of 128 and 64, bf16, full and causal), "
                        "a wide list (other head sizes, groups, packed, f16, masks), or all")
            .one_of({"targets", "wide", "all"})
            .shows_default();
    const Option shape =
        command
            .add_option(
                "--shape", options->plain.shapes,
                "Plain tensors: only these, BATCH:TOKENS:HEADS:KV_HEADS:HEAD_DIM:MASK[:TYPE]; "
                "TOKENS may be lengths of a packed batch, 300+700 (BATCH is 1); MASK full, causal, "
                "block-causal/BLOCK, window/WINDOW[/SINKS]")
            .separated_by(',')
            .shown_as("SHAPE")
            .excludes(shapes);
    command
        .add_option("--tokens", options->plain.tokens,
                    "Plain tensors: lengths of sequences (512,2048,8192,16384; of the grid 128 "
                    "to 65536), as many as make 16384 tokens")
        .separated_by(',')
        .excludes(shapes)
        .excludes(shape)
        .range(1, 1 << 20);
    command.add_flag("!--no-backward", options->plain.backward, "Plain tensors: only the forward");
    const Option peer =
        command.add_option("--peer", options->peer, "Plain tensors: also PyTorch's kernels")
            .one_of({"torch"});
    command
        .add_option("--grid", options->grid,
                    "cs336: one head, 128 to 65536 tokens, against the unfused version")
        .one_of({"cs336"})
        .excludes(only)  // a table of its own, which has no column for others' kernels
        .excludes(shape)
        .excludes(shapes)
        .excludes(peer);
    command.add_option("--keys", options->keys, "Keys a decoded token sees")
        .separated_by(',')
        .range(1, 1 << 22)
        .shows_default();
    command.add_option("--prefill", options->prompts, "Tokens of a prompt; 0: none")
        .separated_by(',')
        .range(0, 1 << 20)
        .shows_default();
    command
        .add_option("--chunk", options->shape.chunk,
                    "Compute only the last N tokens of a prompt; 0: all")
        .range(0, 1 << 20)
        .shows_default();
    command.add_option("--window", options->shape.window, "Paged cache: keys a token sees; 0: all")
        .range(0, 1 << 22)
        .shows_default();
    command.add_option("--sinks", options->shape.sinks, "... and how many of the first keys, too")
        .range(0, 1 << 22)
        .shows_default();
    command
        .add_option("--disable", options->disable,
                    "Paged cache: without resident blocks (prefill: mma.sync instead of wgmma)")
        .one_of({"resident-attention"});
    command.add_option("--heads", options->shape.heads, "Query heads")
        .range(1, 1024)
        .shows_default();
    command.add_option("--kv-heads", options->shape.kv_heads, "Key and value heads")
        .range(1, 1024)
        .shows_default();
    command.add_option("--head-dim", options->shape.head_dim, "Size of a head, a multiple of 8")
        .range(32, 256)
        .shows_default();
    command.add_option("--batch", options->shape.batch, "Sequences that decode together")
        .range(1, 256)
        .shows_default();
    const Option type = command
                            .add_option("--type", options->type,
                                        "Type of q and the cache; with --grid: measure only this "
                                        "type, instead of bf16 and f32")
                            .one_of({"f32", "f16", "bf16"})
                            .shows_default();
    add_outcome_options(command, options->outcome);
    command.footer(
        "Examples:\n  millrace-lab attention --only plain --peer torch\n"
        "  millrace-lab attention --only plain --peer torch --shape 32:1024:12:12:64:causal\n"
        "  millrace-lab attention --only paged --keys 128,4096 --heads 32 --batch 8");
    command.callback([options, type, &action] {
        if (type.given()) options->plain.type = dtype_from_name(options->type);
        action = [options] {
            std::erase(options->prompts, 0);
            return bench(*options);
        };
    });
}

}  // namespace mr::cli
