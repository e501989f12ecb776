// millrace-lab norms: norm + residual on the GPU compared with its memory bandwidth, and its
// accuracy.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cpu.h"
#include "core/cuda/device.h"
#include "lab/experiments.h"
#include "lab/norms/norm_error.h"
#include "lab/norms/norm_measure.h"
#include "lab/outcome.h"
#include "model/cuda/device_engine.h"
#include "model/io/source.h"

namespace mr::cli {
namespace {

struct BenchNormOptions {
    std::string model;  // empty: none
    std::int64_t hidden = 2560;
    std::vector<std::int64_t> tokens{1, 256, 1024, 32768};
    std::string type = "f16";
    std::string kind = "layer";
    // Given as options.
    bool own_hidden = false, own_type = false, own_kind = false, own_device = false;
    bool few_rows = false;
    std::string device = "cuda";
    OutcomeOptions outcome;
};

// Takes the norms of a model, except for values given as options.
void take_shape(BenchNormOptions& options) {
    if (options.model.empty()) return;
    const model::Model model = model::planned_model(named_model(options.model));
    if (!options.own_hidden) options.hidden = model.spec.dim;
    if (!options.own_type) options.type = dtype_name(model::device_kv_type(model));
    if (!options.own_kind) {
        options.kind = model.spec.norm == model::NormKind::rms ? "rms" : "layer";
    }
}

ops::NormKind kind_of(const BenchNormOptions& options) {
    return options.kind == "rms" ? ops::NormKind::rms : ops::NormKind::layer;
}

// Errors against f64, of the GPU's kernel and of the CPU's f32 ops; added to `json` and returned as
// text.
std::string errors(const BenchNormOptions& options, bool cuda, Json& json) {
    std::vector<DType> types{DType::f32, DType::f16};
    if (options.type == "bf16") types.push_back(DType::bf16);
    std::string text = fmt::format("  errors against f64\n  {:>10}  {:>5}  {:>5}  {:>10}  {:>10}\n",
                                   "rows", "type", "on", "largest", "relative");
    json["errors"] = Json::array();
    ThreadPool pool(cpu_info().cores);
    for (const ops::NormErrorShape& shape : ops::kNormErrorShapes) {
        for (const DType type : types) {
            const ops::NormCase of =
                ops::norm_case(shape.rows(), options.hidden, type, kind_of(options));
            const auto add = [&](const char* on, const ops::NormError& error) {
                json["errors"].push_back({{"batch", shape.batch},
                                          {"tokens", shape.tokens},
                                          {"type", dtype_name(type)},
                                          {"on", on},
                                          {"largest", error.largest},
                                          {"relative", error.relative}});
                text += fmt::format("  {:>10}  {:>5}  {:>5}  {:>10.2e}  {:>10.2e}\n",
                                    fmt::format("[{},{}]", shape.batch, shape.tokens),
                                    dtype_name(type), on, error.largest, error.relative);
            };
            if (cuda) add("GPU", cuda::norm_error(of, type, !options.few_rows));
            if (type == DType::f32) add("CPU", ops::norm_error(pool, of));
        }
    }
    return text;
}

// Without a GPU: only the errors.
int cpu_bench(const BenchNormOptions& options) {
    Json json = {{"experiment", "norms"},    {"model", options.model}, {"device", "cpu"},
                 {"hidden", options.hidden}, {"type", options.type},   {"kind", options.kind},
                 {"sizes", Json::array()}};
    const std::string text =
        fmt::format("norm: {} norm + residual, hidden {}, on the CPU\n{}", options.kind,
                    options.hidden, errors(options, false, json));
    show(options.outcome, json, text);
    return 0;
}

int norm_bench(BenchNormOptions options) {
    check_outcome(options.outcome);
    take_shape(options);
    if (options.device == "cpu" || (options.device == "auto" && !cuda::device())) {
        return cpu_bench(options);
    }
    if (!options.own_device) require_gpu("norms");
    const cuda::NormMeasurement m =
        cuda::measure_norm(options.hidden, options.tokens, *dtype_from_name(options.type),
                           kind_of(options), !options.few_rows);
    Json json = {{"experiment", "norms"},
                 {"model", options.model},
                 {"device", m.device},
                 {"hidden", options.hidden},
                 {"type", options.type},
                 {"kind", options.kind},
                 {"many_rows_kernel", !options.few_rows},
                 {"gb_s", m.bytes_per_second / 1e9},
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
    text += errors(options, true, json);
    show(options.outcome, json, text);
    return 0;
}

}  // namespace

void add_norms(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchNormOptions>();
    const Command command = lab.add_subcommand(
        "norms", "Norm + residual on the GPU: speed against memory bandwidth, error against f64");
    command
        .add_option("model", options->model,
                    "The model whose norms are measured: a file or folder, or random:SHAPE[:TYPE]")
        .shown_as("MODEL");
    command.add_option("--hidden", options->hidden, "Columns, instead of the model's")
        .range(1, 1 << 20)
        .shows_default();
    command.add_option("--tokens", options->tokens, "Rows, one measurement each")
        .separated_by(',')
        .range(1, 1 << 22)
        .shows_default();
    command.add_option("--type", options->type, "Type of input and output")
        .one_of({"f32", "f16", "bf16"})
        .shows_default();
    command.add_option("--kind", options->kind, "Which norm")
        .one_of({"layer", "rms"})
        .shows_default();
    command.add_flag("--no-many-rows", options->few_rows,
                     "Without the kernel for thousands of rows");
    command
        .add_option("--device", options->device,
                    "cpu: only errors, no speed; auto: the GPU, or cpu without one")
        .one_of({"auto", "cpu", "cuda"})
        .shows_default();
    add_outcome_options(command, options->outcome);
    command.footer(
        "Examples:\n"
        "  millrace-lab norms --hidden 2560 --tokens 1,32768\n"
        "  millrace-lab norms random:llama-2-7b:bf16\n"
        "  millrace-lab norms --device cpu --json\n"
        "A model of 8 or 4 bits computes in bf16, and so do its norms here. Errors are of [batch,\n"
        "tokens] = [2,128], [1,1], [4,256] and [1,2048] rows: the largest, and relative the root "
        "of\nthe squared errors over that of the squared results.");
    command.callback([options, command, &action] {
        options->own_hidden = command.given("--hidden");
        options->own_type = command.given("--type");
        options->own_kind = command.given("--kind");
        options->own_device = command.given("--device");
        action = [options] { return norm_bench(*options); };
    });
}

}  // namespace mr::cli
