#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/plan.h"
#include "core/arena.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

using plan::Candidate;
using plan::Layout;
using plan::StageMemory;
using plan::Traffic;

// What the trainer lacks or has not measured; update it with the trainer.
constexpr const char* kNotMeasured =
    "'millrace train' has not been measured on more than one GPU yet";
// What GPU-hours leave out: docs/parallel.md, "What is not counted".
constexpr const char* kNotCounted[] = {"restarts after failures",
                                       "steps done again",
                                       "checkpoints",
                                       "validation",
                                       "reading data",
                                       "slow nodes",
                                       "power limits",
                                       "idle GPUs",
                                       "trial runs"};
constexpr const char* kPublishedHours =
    "the published totals of Llama 2 7B, Llama 3 8B and 70B are 1.7 to 3.5 times the plan's";
constexpr const char* kToCompare =
    "'millrace train' will have neither --tensor nor --interleave: this is for comparison with "
    "other programs";

std::int64_t sequences_of(const plan::Job& job, const Layout& layout) {
    return job.batch / layout.data / layout.micro_batches;
}

double tokens_per_second(const PlanReport& report, const Candidate& one) {
    return report.job.tokens() / one.cost.step();
}

double gpu_hours(const PlanReport& report, const Candidate& one, double tokens) {
    return tokens / tokens_per_second(report, one) * report.cluster.gpus / 3600;
}

std::vector<const char*> notes(const PlanReport& report, const Layout& layout) {
    std::vector<const char*> out;
    if (report.cluster.gpus > 1) out.push_back(kNotMeasured);
    if (layout.only_to_compare()) out.push_back(kToCompare);
    return out;
}

struct TimePart {
    const char* key;
    const char* name;
    double seconds;
};
std::vector<TimePart> time_parts(const plan::Cost& cost) {
    return {{"forward", "forward", cost.forward.sum()},
            {"backward", "backward", cost.backward.sum()},
            {"recompute", "recompute", cost.again.sum()},
            {"optimizer", "optimizer, sums", cost.optimizer},
            {"bubble", "bubble", cost.bubble},
            {"data", "gradients, parameters", cost.data.exposed},
            {"tensor", "inside of layers", cost.tensor.exposed},
            {"pipeline", "between stages", cost.pipeline.exposed}};
}

struct MemoryPart {
    const char* name;
    double StageMemory::*bytes;
};
constexpr MemoryPart kMemory[] = {
    {"weights", &StageMemory::weights},         {"masters", &StageMemory::masters},
    {"gradients", &StageMemory::gradients},     {"optimizer", &StageMemory::optimizer},
    {"activations", &StageMemory::activations}, {"workspace", &StageMemory::workspace},
    {"buffers", &StageMemory::buffers},
};

std::uint64_t whole(double bytes) { return static_cast<std::uint64_t>(bytes); }

Json traffic_json(const Traffic& traffic) {
    return {{"sent_bytes", whole(traffic.sent)},
            {"seconds", traffic.seconds},
            {"exposed_seconds", traffic.exposed}};
}

Json candidate_json(const PlanReport& report, const Candidate& one) {
    const Layout& layout = one.layout;
    const plan::Cost& cost = one.cost;
    const plan::Band band =
        plan::band_of(report.cluster, report.job, layout, report.compute_uncertainty);
    Json seconds = Json::object();
    for (const TimePart& part : time_parts(cost)) seconds[part.key] = part.seconds;
    Json stages = Json::array();
    for (const StageMemory& stage : cost.stages) {
        Json row = {{"layers", stage.layers}, {"parameters", whole(stage.parameters)}};
        for (const MemoryPart& part : kMemory) {
            row[std::string(part.name) + "_bytes"] = whole(stage.*part.bytes);
        }
        row["total_bytes"] = whole(stage.total());
        stages.push_back(std::move(row));
    }
    const double bubble_of = layout.pipeline - 1.0;
    Json json = {
        {"data", layout.data},
        {"pipeline", layout.pipeline},
        {"tensor", layout.tensor},
        {"interleave", layout.interleave},
        {"zero", layout.zero},
        {"micro_batches", layout.micro_batches},
        {"micro_batch", sequences_of(report.job, layout)},
        {"recompute", model::recompute_name(layout.recompute)},
        {"step_seconds", cost.step()},
        {"step_seconds_low", band.low},
        {"step_seconds_high", band.high},
        {"tok_s", tokens_per_second(report, one)},
        {"tok_s_per_gpu", tokens_per_second(report, one) / report.cluster.gpus},
        {"mfu", plan::flops_share(report.cluster, report.job, cost.step())},
        {"gpu_hours_per_billion_tokens", gpu_hours(report, one, 1e9)},
        {"gpu_hours", report.tokens > 0 ? Json(gpu_hours(report, one, report.tokens)) : Json()},
        {"binds", cost.binds()},
        {"seconds", seconds},
        {"products_seconds", cost.forward.products + cost.backward.products},
        {"attention_seconds", cost.forward.attention + cost.backward.attention},
        {"passes_seconds", cost.forward.passes + cost.backward.passes},
        {"bubble_share",
         bubble_of / (layout.interleave * static_cast<double>(layout.micro_batches) + bubble_of)},
        {"communication",
         {{"data", traffic_json(cost.data)},
          {"tensor", traffic_json(cost.tensor)},
          {"pipeline", traffic_json(cost.pipeline)}}},
        {"memory_bytes", whole(cost.most_memory())},
        {"stages", stages}};
    json["notes"] = notes(report, layout);
    return json;
}

std::string gib(double bytes) { return fmt::format("{:.1f}", bytes / 0x1p30); }

// One row per stage. With many stages: the first, the last, and the fullest between them.
std::string memory_text(const PlanReport& report, const plan::Cost& cost) {
    constexpr std::size_t kAll = 8;
    std::string text = fmt::format(
        "memory      GiB per GPU, of {} ({:.0f}% of it may be planned)\n            {:>6}{:>8}",
        gib(static_cast<double>(report.cluster.device.memory)), 100 * plan::kMemoryShare, "stage",
        "layers");
    for (const MemoryPart& part : kMemory) text += fmt::format("{:>13}", part.name);
    text += fmt::format("{:>9}\n", "in all");
    std::size_t fullest = 0;
    for (std::size_t i = 0; i < cost.stages.size(); ++i) {
        if (cost.stages[i].total() > cost.stages[fullest].total()) fullest = i;
    }
    for (std::size_t i = 0; i < cost.stages.size(); ++i) {
        const bool shown =
            cost.stages.size() <= kAll || i == 0 || i + 1 == cost.stages.size() || i == fullest;
        if (!shown) continue;
        const StageMemory& stage = cost.stages[i];
        text += fmt::format("            {:>6}{:>8}", i + 1, stage.layers);
        for (const MemoryPart& part : kMemory)
            text += fmt::format("{:>13}", gib(stage.*part.bytes));
        text += fmt::format("{:>9}\n", gib(stage.total()));
    }
    return text;
}

std::string time_text(const plan::Cost& cost) {
    std::string text = "time        of a step, in the slowest stage\n";
    for (const TimePart& part : time_parts(cost)) {
        if (part.seconds <= 0) continue;
        text += fmt::format("            {:<24}{:>11}{:>7.1f}%\n", part.name,
                            observe::short_seconds(part.seconds), 100 * part.seconds / cost.step());
    }
    const auto traffic = [&](const char* name, const Traffic& t) {
        if (t.sent <= 0) return;
        text += fmt::format("            {:<24}{:>11} per GPU, {} alone, {} of it exposed\n", name,
                            observe::short_bytes(t.sent), observe::short_seconds(t.seconds),
                            observe::short_seconds(t.exposed));
    };
    if (cost.data.sent + cost.tensor.sent + cost.pipeline.sent > 0) text += "sent\n";
    traffic("gradients, parameters", cost.data);
    traffic("inside of layers", cost.tensor);
    traffic("between stages", cost.pipeline);
    return text;
}

std::string others_text(const PlanReport& report) {
    if (report.layouts.size() < 2) return "";
    std::string text = fmt::format("\n{:>4}{:>6}{:>10}{:>6}{:>15}{:>11}{:>12}{:>14}{:>7}{:>12}\n",
                                   "", "data", "pipeline", "ZeRO", "micro-batches", "recompute",
                                   "step", "tok/s", "MFU", "memory");
    for (std::size_t i = 0; i < report.layouts.size(); ++i) {
        const Candidate& one = report.layouts[i];
        const Layout& l = one.layout;
        text += fmt::format("{:>4}{:>6}{:>10}{:>6}{:>15}{:>11}{:>12}{:>14.0f}{:>6.1f}%{:>12}\n",
                            i + 1, l.data, l.pipeline, l.zero,
                            fmt::format("{} of {}", l.micro_batches, sequences_of(report.job, l)),
                            model::recompute_name(l.recompute),
                            observe::short_seconds(one.cost.step()), tokens_per_second(report, one),
                            100 * plan::flops_share(report.cluster, report.job, one.cost.step()),
                            format_bytes(whole(one.cost.most_memory())));
    }
    return text;
}

std::string rate_text(double bytes) { return observe::short_bytes(bytes) + "/s"; }

}  // namespace

std::string layout_text(const plan::Job& job, const Layout& layout) {
    std::string text = fmt::format("data {} x pipeline {}", layout.data, layout.pipeline);
    if (layout.tensor > 1) text += fmt::format(" x tensor {}", layout.tensor);
    if (layout.interleave > 1) text += fmt::format(", {} parts per stage", layout.interleave);
    return text +
           fmt::format(", ZeRO {}, {} of {}, recompute {}", layout.zero,
                       observe::counted(layout.micro_batches, "micro-batch", "micro-batches"),
                       sequences_of(job, layout), model::recompute_name(layout.recompute));
}

Json plan_json(const PlanReport& report) {
    const plan::ClusterSpec& cluster = report.cluster;
    Json layouts = Json::array();
    for (const Candidate& one : report.layouts) layouts.push_back(candidate_json(report, one));
    return {{"plan", report.model},
            {"parameters", report.job.spec.parameters()},
            {"device", cluster.device.name},
            {"gpus", cluster.gpus},
            {"node", cluster.node},
            {"link_node_bytes_s", cluster.link_node},  // both per direction
            {"link_net_bytes_s", cluster.link_net},
            {"memory_bytes", cluster.device.memory},
            {"peak_tflop_s", cluster.device.peak / 1e12},
            {"calibration", report.calibration},
            {"pace", cluster.pace},
            {"compute_uncertainty", report.compute_uncertainty},
            {"link_uncertainty", plan::kLinkUncertainty},
            {"seq", report.job.seq},
            {"batch", report.job.batch},
            {"tokens_per_step", report.job.tokens()},
            {"masters", report.job.bf16_masters ? "bf16" : "f32"},
            {"reduce", report.job.exact ? "exact" : "fast"},
            {"tokens", report.tokens > 0 ? Json(report.tokens) : Json()},
            {"gpu_hours_not_counted", Json(kNotCounted)},
            {"layouts", layouts}};
}

std::string plan_text(const PlanReport& report) {
    const plan::ClusterSpec& cluster = report.cluster;
    const plan::Job& job = report.job;
    const Candidate& best = report.layouts.front();
    const double step = best.cost.step(), speed = tokens_per_second(report, best);
    const plan::Band band = plan::band_of(cluster, job, best.layout, report.compute_uncertainty);
    std::string text = fmt::format(
        "model       {}: {} parameters, {} layers of {}\n"
        "cluster     {} x {}, {} in a node; each direction {} in a node, {} between nodes\n"
        "step        {} of {}, {:.0f} tokens\n"
        "layout      {}\n",
        report.model, observe::short_count(static_cast<double>(job.spec.parameters())),
        job.spec.layers, job.spec.dim, cluster.gpus, cluster.device.name,
        std::min(cluster.node, cluster.gpus), rate_text(cluster.link_node),
        rate_text(cluster.link_net), observe::counted(job.batch, "sequence"),
        observe::counted(job.seq, "token"), job.tokens(), layout_text(job, best.layout));
    text += memory_text(report, best.cost) + time_text(best.cost);
    text += fmt::format(
        "speed       {} per step ({} to {}), {:.0f} tok/s, {:.0f} per GPU, {:.1f}% of the peak "
        "(MFU)\n"
        "            bound by {}\n",
        observe::short_seconds(step), observe::short_seconds(band.low),
        observe::short_seconds(band.high), speed, speed / cluster.gpus,
        100 * plan::flops_share(cluster, job, step), best.cost.binds());
    const double tokens = report.tokens > 0 ? report.tokens : 1e9;
    const double hours = gpu_hours(report, best, tokens);
    text += fmt::format(
        "cost        {} GPU-hours for {} tokens ({} to {}): {} on all GPUs\n",
        observe::figure(hours), report.tokens > 0 ? fmt::format("{:g}", tokens) : "a billion",
        observe::figure(hours * band.low / step), observe::figure(hours * band.high / step),
        observe::long_seconds(tokens / speed));
    text += fmt::format("not counted {};\n            {}\n", fmt::join(kNotCounted, ", "),
                        kPublishedHours);
    text += fmt::format("error       computing off by {:.0f}%{}: {}\n", 100 * band.computing,
                        band.links > 0 ? fmt::format(", links by {:.0f}%", 100 * band.links) : "",
                        report.calibration);
    for (const char* note : notes(report, best.layout))
        text += fmt::format("note        {}\n", note);
    return text + others_text(report);
}

}  // namespace mr::cli
