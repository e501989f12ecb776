// millrace plan: what training a model on a cluster would take, before renting it.
#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/rate.h"
#include "cli/terminal.h"
#include "core/arena.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "model/io/source.h"
#include "train/plan/measured.h"

namespace mr::cli {
namespace {

struct PlanOptions {
    SharedOptions shared;  // --json
    std::string model, device = "h100", link_node, link_net, measured;
    int gpus = 1, node = 8, seq = 0, layouts = 1;
    std::int64_t batch = 0;
    double tokens = 0, pace = 1;
    int data = 0, pipeline = 0, zero = 0, micro_batches = 0, tensor = 1, interleave = 1;
    std::string recompute, masters = "f32", reduce = "exact";
};

constexpr int kUsualSeq = 8192;               // default: at most this
constexpr std::int64_t kUsualTokens = 16384;  // default: per GPU and step

model::ModelSpec spec_of(const std::string& model) {
    model::ModelSpec spec = model::planned_model(named_model(model)).spec;
    if (spec.diffusion) {
        throw Error::usage(
            {.field = "MODEL",
             .value = model,
             .problem = "is a diffusion model; plan only supports autoregressive ones",
             .remedy = "plan an autoregressive model of the same shape"});
    }
    return spec;
}

plan::DeviceSpec device_of(const std::string& name) {
    const auto device = plan::find_device(name);
    if (device) return *device;
    throw Error::usage({.field = "--device",
                        .value = name,
                        .problem = "is not a known device",
                        .remedy = fmt::format("use one of {}", plan::known_devices())});
}

// Sets the device and its speed, from the file of --measured if given.
void calibrate(PlanReport& report, const PlanOptions& options, const Command& command) {
    plan::ClusterSpec& cluster = report.cluster;
    cluster.device = device_of(options.device);
    cluster.pace = options.pace;
    report.compute_uncertainty = cluster.device.uncertainty;
    report.calibration = cluster.device.measured
                             ? "shares of the peak from our own steps on an H200"
                             : "shares of the peak that were not measured on this device";
    if (command.given("--pace")) {
        report.calibration = fmt::format("--pace {:g}", options.pace);
        report.compute_uncertainty = plan::kMeasuredUncertainty;
    }
    if (options.measured.empty()) return;
    constexpr std::size_t kMostBytes = 64u << 20;
    const plan::Measured measured =
        plan::read_measured(read_text_file(options.measured, kMostBytes), options.measured);
    const auto on = plan::device_of_driver_name(measured.device);
    const bool other = on && command.given("--device") && on->name != cluster.device.name;
    if (!on || other) {
        throw Error::input(
            {.file = options.measured,
             .field = "device",
             .value = measured.device,
             .problem = other ? fmt::format("is not the {} of --device", cluster.device.name)
                              : "is not a known device",
             .remedy = other ? "leave --device out, or measure on that one"
                             : fmt::format("use one of {}", plan::known_devices())});
    }
    cluster.device = *on;
    cluster.pace = plan::pace_of(measured, spec_of(measured.model), cluster.device);
    report.compute_uncertainty = plan::kMeasuredUncertainty;
    report.calibration = fmt::format(
        "{} measured, {} x {} tokens: {:.2f} times as long as by our shares", measured.model,
        measured.batch * measured.accumulate, measured.seq, cluster.pace);
}

PlanReport make_report(const PlanOptions& options, const Command& command) {
    PlanReport report;
    report.model = options.model;
    report.tokens = options.tokens;
    calibrate(report, options, command);
    plan::ClusterSpec& cluster = report.cluster;
    cluster.gpus = options.gpus;
    cluster.node = options.node;
    // NVLink is specified for both directions together, networks for one.
    cluster.link_node = options.link_node.empty()
                            ? cluster.device.link_node
                            : parse_rate(options.link_node, "--link-node") / 2;
    cluster.link_net = options.link_net.empty() ? cluster.device.link_net
                                                : parse_rate(options.link_net, "--link-net");
    plan::Job& job = report.job;
    job.spec = spec_of(options.model);
    job.seq = options.seq > 0 ? options.seq : std::min(job.spec.context, kUsualSeq);
    if (job.seq > job.spec.context) {
        throw Error::usage(
            {.field = "--seq",
             .value = std::to_string(job.seq),
             .problem = fmt::format("is beyond the model's context of {}", job.spec.context),
             .remedy = "use at most that"});
    }
    job.batch = options.batch > 0
                    ? options.batch
                    : options.gpus * std::max<std::int64_t>(1, kUsualTokens / job.seq);
    job.bf16_masters = options.masters == "bf16";
    job.exact = options.reduce == "exact";
    return report;
}

int run(const PlanOptions& options, const Command& command) {
    PlanReport report = make_report(options, command);
    plan::Wanted wanted;
    if (command.given("--data")) wanted.data = options.data;
    if (command.given("--pipeline")) wanted.pipeline = options.pipeline;
    if (command.given("--zero")) wanted.zero = options.zero;
    if (command.given("--micro-batches")) wanted.micro_batches = options.micro_batches;
    wanted.recompute = model::recompute_of(options.recompute);
    wanted.tensor = options.tensor;
    wanted.interleave = options.interleave;
    plan::Found found = plan::find_layouts(report.cluster, report.job, wanted,
                                           static_cast<std::size_t>(options.layouts));
    if (found.fitting.empty() && found.nearest) {
        const auto bytes = [](double value) {
            return format_bytes(static_cast<std::uint64_t>(value));
        };
        const double least = found.nearest->cost.most_memory();
        throw Error::device(
            {.field = "layout",
             .value = layout_text(report.job, found.nearest->layout),
             .problem = fmt::format(
                 "needs {} per GPU, the least of all layouts tried, and {} of the {} may be "
                 "planned",
                 bytes(least),
                 bytes(plan::kMemoryShare * static_cast<double>(report.cluster.device.memory)),
                 bytes(static_cast<double>(report.cluster.device.memory))),
             .remedy = fmt::format("take more GPUs, a shorter --seq, or GPUs of {} or more",
                                   bytes(least / plan::kMemoryShare))});
    }
    if (found.fitting.empty()) {
        throw Error::usage({.field = "layout",
                            .problem = "there is none: " + found.fault,
                            .remedy = "change one of the options that are given"});
    }
    report.layouts = std::move(found.fitting);
    out(options.shared.json ? json_text(plan_json(report)) : plan_text(report));
    return 0;
}

}  // namespace

void add_plan(const Command& app, Action& action) {
    auto options = std::make_shared<PlanOptions>();
    PlanOptions& o = *options;
    const Command c =
        app.add_subcommand("plan", "Estimate memory, time and cost of training on many GPUs");
    c.add_option("model", o.model, "The model's shape: random:SHAPE, or a model's file or folder")
        .required();
    add_json_option(c, o.shared);
    c.group("The cluster");
    c.add_option("--gpus", o.gpus, "GPUs in all").range(1, 1 << 20).shows_default();
    c.add_option("--node", o.node, "GPUs per node").range(1, 1 << 10).shows_default();
    c.add_option("--device", o.device, "h100, h200, a100 or rtx-4090")
        .shown_as("NAME")
        .shows_default();
    c.add_option("--link-node", o.link_node,
                 "Link rate of a GPU inside its node, both directions together, as NVLink is sold; "
                 "default: the device's")
        .shown_as("RATE");
    c.add_option("--link-net", o.link_net,
                 "... to other nodes, each direction, as networks are sold; default: the device's")
        .shown_as("RATE");
    c.add_option("--measured", o.measured,
                 "Output of 'bench train --json' on such a GPU, for its measured speed")
        .shown_as("FILE");
    c.add_option("--pace", o.pace,
                 "Compute time of this GPU as a multiple of the estimate for Millrace's kernels")
        .range(0.01, 100.0)
        .rare();
    c.group("The run");
    c.add_option("--seq", o.seq, "Tokens per sequence; default: the context, at most 8192")
        .range(2, 1 << 20);
    c.add_option("--batch", o.batch,
                 "Sequences per step over all GPUs: train's --batch x --accumulate; default: "
                 "16384 tokens per GPU")
        .range(std::int64_t{1}, std::int64_t{1} << 32);
    c.add_option("--tokens", o.tokens, "Tokens of the whole run, for the GPU-hours: 15e12")
        .range(1.0, 1e18);
    c.add_option("--masters", o.masters, "Type of the matrices between steps")
        .one_of({"f32", "bf16"})
        .shows_default();
    c.add_option("--reduce", o.reduce,
                 "exact: gradients in f32, the same bits on any number of GPUs; fast: in bf16")
        .one_of({"exact", "fast"})
        .shows_default();
    c.group("The layout (searched where it is not given)");
    c.add_option("--data", o.data, "Replicas").range(1, 1 << 20);
    c.add_option("--pipeline", o.pipeline, "Stages that the layers are cut into").range(1, 1 << 12);
    c.add_option("--zero", o.zero,
                 "What to shard over the replicas: 1: the optimizer's moments; 2: and gradients; "
                 "3: and parameters")
        .range(0, 3);
    c.add_option("--micro-batches", o.micro_batches, "Passes of a replica per step")
        .range(1, 1 << 20);
    c.add_option("--recompute", o.recompute, "What to recompute in the backward pass")
        .one_of({"none", "light", "full"});
    c.add_option("--tensor", o.tensor,
                 "GPUs that share every matrix; for comparison only: train cannot do this")
        .range(1, 1 << 10)
        .rare();
    c.add_option("--interleave", o.interleave,
                 "Parts of the layers that a stage takes in turn; for comparison only")
        .range(1, 1 << 10)
        .rare();
    c.add_option("--layouts", o.layouts, "Number of layouts to list, fastest first")
        .range(1, 1000)
        .shows_default();
    c.footer(
        "Examples:\n"
        "  millrace plan random:llama-3-70b --gpus 1024 --node 8 --link-node 900GB/s --link-net "
        "400Gb/s\n"
        "  millrace plan random:llama-3-8b --gpus 64 --tokens 1e12 --layouts 10\n"
        "  millrace plan random:gpt2 --gpus 8 --batch 512 --measured bench.json");
    c.callback([options, c, &action] { action = [options, c] { return run(*options, c); }; });
}

}  // namespace mr::cli
