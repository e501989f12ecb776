// millrace-lab gemm: the GPU's GEMM for many tokens.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "lab/experiments.h"
#include "lab/gemm/gemm_measure.h"
#include "lab/outcome.h"

namespace mr::cli {
namespace {

struct BenchGemmOptions {
    cuda::GemmMeasureOptions measure;
    std::int64_t n = 0, k = 0;  // 0: those of a Llama-2-7B layer
    std::vector<std::string> types = {"bf16", "q8_0", "q4_0"};
    bool no_own = false;
    OutcomeOptions outcome;
};

DType weight_type(const std::string& name) {
    if (name == "q8_0") return DType::q8_0x8;
    if (name == "q4_0") return DType::q4_0x8;
    return *dtype_from_name(name);
}

std::string type_name(DType type) {
    const std::string name = dtype_name(type);
    return name.substr(0, name.find('x'));
}

// The GEMMs of one layer in one type; a whole model has 32 layers.
constexpr int kLayers = 32;
struct Sum {
    DType type;
    double seconds = 0, flops = 0;
};
std::vector<Sum> sums(const cuda::GemmReport& report) {
    std::vector<Sum> out;
    for (const cuda::GemmMeasured& m : report.products) {
        if (out.empty() || out.back().type != m.type) out.push_back({m.type});
        out.back().seconds += m.seconds;
        out.back().flops += m.flops();
    }
    return out;
}

Json to_json(const BenchGemmOptions& options, const cuda::GemmReport& report) {
    const cuda::DeviceInfo gpu = cuda::require_device();
    Json json = {{"experiment", "gemm"},
                 {"gpu", gpu.name},
                 {"tokens", options.measure.tokens},
                 {"ceiling_tflop_s", report.ceiling / 1e12},
                 {"products", Json::array()}};
    for (const cuda::GemmMeasured& m : report.products) {
        Json one = {{"name", m.shape.name},
                    {"type", type_name(m.type)},
                    {"n", m.shape.n},
                    {"k", m.shape.k},
                    {"residual", m.shape.residual},
                    {"us", m.seconds * 1e6},
                    {"tflop_s", m.flops() / m.seconds / 1e12},
                    {"percent_of_ceiling", 100 * m.flops() / m.seconds / report.ceiling},
                    {"product_us", m.product_seconds * 1e6},
                    {"product_tflop_s", m.flops() / m.product_seconds / 1e12},
                    {"dequantize_us", m.dequantize_seconds * 1e6},
                    {"best_product_us", m.best_seconds * 1e6},
                    {"percent_of_best", 100 * m.best_seconds / m.product_seconds},
                    {"best_rank", m.best},
                    {"best_about", m.best_about},
                    {"about", m.about}};
        if (m.own_seconds > 0) one["own_us"] = m.own_seconds * 1e6;
        json["products"].push_back(std::move(one));
    }
    if (options.n == 0) {
        for (const Sum& sum : sums(report)) {
            json["model_ms"][type_name(sum.type)] = kLayers * sum.seconds * 1e3;
        }
    }
    return json;
}

std::string to_text(const BenchGemmOptions& options, const cuda::GemmReport& report) {
    std::string text = fmt::format(
        "gemm on {}: {} tokens; a bf16 product 8192 x 8192 x 8192 reaches {:.0f} TFLOP/s here\n",
        cuda::require_device().name, options.measure.tokens, report.ceiling / 1e12);
    text += fmt::format("  {:<14}{:<6}{:>7}{:>7}{:>9}{:>9}{:>9}{:>11}{:>9}{:>9}{:>8}\n", "product",
                        "type", "n", "k", "us", "TFLOP/s", "% ceil.", "dequantize", "product",
                        "% best", "own");
    for (const cuda::GemmMeasured& m : report.products) {
        text += fmt::format(
            "  {:<14}{:<6}{:>7}{:>7}{:>9.1f}{:>9.1f}{:>9.1f}{:>11.1f}{:>9.1f}{:>9.1f}{:>8}\n",
            m.shape.name, type_name(m.type), m.shape.n, m.shape.k, m.seconds * 1e6,
            m.flops() / m.seconds / 1e12, 100 * m.flops() / m.seconds / report.ceiling,
            m.dequantize_seconds * 1e6, m.product_seconds * 1e6,
            100 * m.best_seconds / m.product_seconds,
            m.own_seconds > 0 ? fmt::format("{:.1f}", m.own_seconds * 1e6) : "-");
    }
    text += "  dequantize, product and own in us; best: the fastest of the library's algorithms\n";
    for (const cuda::GemmMeasured& m : report.products) {
        if (m.best == 0) continue;
        text += fmt::format("  {} {}: number {} would be faster: {}; in use: {}\n", m.shape.name,
                            type_name(m.type), m.best, m.best_about, m.about);
    }
    if (options.n == 0) {
        for (const Sum& sum : sums(report)) {
            const double all = kLayers * sum.seconds;
            text += fmt::format(
                "  {}: {} layers take {:.2f} ms, so that no prefill is faster than {:.0f} tok/s\n",
                type_name(sum.type), kLayers, all * 1e3,
                static_cast<double>(options.measure.tokens) / all);
        }
    }
    return text;
}

int gemm_bench(BenchGemmOptions options) {
    check_outcome(options.outcome);
    if ((options.n == 0) != (options.k == 0)) {
        throw Error::usage({.field = options.n ? "--k" : "--n",
                            .problem = "a shape needs both",
                            .remedy = "give --n and --k, or neither"});
    }
    options.measure.types.clear();
    for (const std::string& name : options.types) {
        options.measure.types.push_back(weight_type(name));
        if (options.measure.types.back() > DType::bf16 && options.k % 32 != 0) {
            throw Error::usage({.field = "--k",
                                .value = std::to_string(options.k),
                                .problem = name + " weights come in blocks of 32",
                                .remedy = "use a multiple of 32, or another --type"});
        }
    }
    if (options.n > 0) options.measure.cases = {{"product", options.n, options.k, false}};
    options.measure.own = !options.no_own;
    require_gpu("gemm");
    const cuda::GemmReport report = cuda::measure_gemm(options.measure);
    show(options.outcome, to_json(options, report), to_text(options, report));
    return 0;
}

}  // namespace

void add_gemm(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchGemmOptions>();
    const Command command = lab.add_subcommand("gemm", "The GPU's matrix product for many tokens");
    command
        .add_option("--n", options->n, "Rows of the weights; default: the products of Llama-2-7B")
        .range(1, 1 << 20);
    command.add_option("--k", options->k, "... and columns").range(1, 1 << 20);
    command.add_option("--tokens", options->measure.tokens, "Rows of the input")
        .range(1, 1 << 20)
        .shows_default();
    command.add_option("--type", options->types, "Types of the weights")
        .one_of({"f32", "f16", "bf16", "q8_0", "q4_0"})
        .separated_by(',')
        .shows_default();
    command
        .add_option("--candidates", options->measure.candidates,
                    "Algorithms of the library to compare with")
        .range(1, 32)
        .shows_default();
    command.add_flag("--no-own", options->no_own, "Leave out Millrace's own kernels");
    add_outcome_options(command, options->outcome);
    command.footer("Example:\n  millrace-lab gemm --type bf16 --tokens 2048");
    command.callback([options, &action] { action = [options] { return gemm_bench(*options); }; });
}

}  // namespace mr::cli
