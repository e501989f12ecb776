// millrace-lab overlap: how much of a gradient exchange is hidden by the backward pass.
#include <fmt/format.h>

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/next_token_spec.h"
#include "cli/options.h"
#include "cli/peer.h"
#include "cli/rate.h"
#include "cli/terminal.h"
#include "core/arena.h"
#include "core/error.h"
#include "lab/experiments.h"
#include "lab/outcome.h"
#include "lab/overlap/overlap.h"
#include "model/io/source.h"
#include "model/train/params.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct BenchOverlapOptions {
    std::string model;
    std::vector<std::string> links = {"50GB/s", "400GB/s"};
    int bucket = 25;  // MiB
    overlap::Options measure{.occupy = {0, 8, 16, 32}};
    std::string peer;
    OutcomeOptions outcome;
};

overlap::Options checked_measure(const BenchOverlapOptions& options) {
    overlap::Options measure = options.measure;
    measure.bucket_bytes = std::int64_t{options.bucket} << 20;
    for (const std::string& link : options.links) {
        measure.links.push_back(parse_rate(link, "--link"));
    }
    if (!std::has_single_bit(static_cast<unsigned>(measure.ranks))) {
        throw Error::usage({.field = "--ranks",
                            .value = std::to_string(measure.ranks),
                            .problem = "is not a power of two",
                            .remedy = "give one from 2 to 64"});
    }
    return measure;
}

const char* path_of(const overlap::LinkResult& link) {
    return link.host ? "to the host and back" : "on the device";
}

Json link_json(const overlap::LinkResult& link) {
    const overlap::Times& t = link.times;
    return {{"link_gb_s", link.rate / 1e9},
            {"copies", path_of(link)},
            {"copy_engines", link.by_engines},
            {"sent_bytes", link.sent_bytes},
            {"buckets", link.buckets},
            {"link_ms", link.link_seconds * 1e3},
            {"reached_gb_s", link.reached() / 1e9},
            {"compute_ms", t.compute * 1e3},
            {"communication_ms", t.communication * 1e3},
            {"both_ms", t.both * 1e3},
            {"hidden", t.hidden()},
            {"communication_before_last_op_ms", t.ready * 1e3},
            {"communication_of_last_op_ms", t.last * 1e3},
            {"hidden_of_ready", t.ready > 0 ? Json(t.hidden_of_ready()) : Json()},
            {"same_bits", true}};  // different bits are an error
}

Json to_json(const BenchOverlapOptions& options, const overlap::Report& report) {
    const overlap::Options& measure = options.measure;
    Json json = {{"experiment", "overlap"},
                 {"model", options.model},
                 {"parameters", report.parameters},
                 {"device", report.gpu},
                 {"batch", measure.batch},
                 {"seq", measure.seq},
                 {"ranks", measure.ranks},
                 {"bucket_mib", options.bucket},
                 {"steps", measure.steps},
                 {"gradient_bytes", report.bytes.all},
                 {"ready_before_last_op_bytes", report.bytes.before_last},
                 {"links", Json::array()},
                 {"occupied", Json::array()}};
    for (const overlap::LinkResult& link : report.links) json["links"].push_back(link_json(link));
    for (const overlap::OccupiedResult& o : report.occupied) {
        json["occupied"].push_back({{"multiprocessors", o.multiprocessors},
                                    {"step_ms", o.seconds * 1e3},
                                    {"occupied_ms", o.held_seconds * 1e3}});
    }
    return json;
}

std::string link_text(const overlap::LinkResult& link) {
    const overlap::Times& t = link.times;
    std::string text = fmt::format(
        "\n  link {:g} GB/s in each direction, copies {}{}: {:.1f} MB each way, {} buckets, "
        "reached {:.1f} GB/s\n",
        link.rate / 1e9, path_of(link),
        link.by_engines ? "" : " (the driver may use multiprocessors)",
        static_cast<double>(link.sent_bytes) / 1e6, link.buckets, link.reached() / 1e9);
    const auto row = [&](const char* name, double seconds) {
        text += fmt::format("    {:<46}{:>9.3f} ms\n", name, seconds * 1e3);
    };
    row("t_compute, a step without exchange", t.compute);
    row("t_communication, the exchange alone", t.communication);
    row("  of what is ready before the last op", t.ready);
    row("  of what the last op makes, which cannot hide", t.last);
    row("t_both, a step with the exchange", t.both);
    text += fmt::format("    hidden {:.1f}%", 100 * t.hidden());
    if (t.ready > 0) {
        text +=
            fmt::format("; of what is ready before the last op {:.1f}%", 100 * t.hidden_of_ready());
    }
    return text + "; the same bits as the tree over ranks\n";
}

// Runs PyTorch for comparison; its links are in the same order as ours.
std::vector<Json> ask_torch(const BenchOverlapOptions& options, const model::ModelSpec& spec) {
    if (spec.family != "gpt2" && spec.family != "llama") {
        throw Error::usage({.field = "--peer",
                            .value = "torch",
                            .problem = fmt::format("has no {} model", spec.family),
                            .remedy = "compare a Llama or a GPT-2"});
    }
    const overlap::Options& m = options.measure;
    std::string links;
    for (const std::string& link : options.links) {
        links += fmt::format("{}{:g}", links.empty() ? "" : ",", parse_rate(link, "--link"));
    }
    return ask_peer(
        "torch_overlap.py",
        fmt::format("--family {} --dim {} --layers {} --heads {} --kv-heads {} "
                    "--hidden {} --vocab {} --context {} --tied {} --batch {} --seq {} "
                    "--links {} --ranks {} --bucket {} --steps {} --warmup {}",
                    spec.family, spec.dim, spec.layers, spec.heads, spec.kv_heads, spec.hidden,
                    spec.vocab, std::max<std::int64_t>(spec.context, m.seq),
                    spec.tied_embeddings ? 1 : 0, m.batch, m.seq, links, m.ranks, options.bucket,
                    m.steps, m.warmup));
}

std::string peer_text(const std::vector<Json>& peers) {
    std::string text;
    for (const Json& p : peers) {
        const auto number = [&](const char* key) {
            return p.contains(key) && p[key].is_number() ? p[key].get<double>() : 0.0;
        };
        text += fmt::format(
            "\n  {} at {:g} GB/s, {:.0f} buckets: t_compute {:.3f} ms, t_communication {:.3f} ms, "
            "t_both {:.3f} ms\n    hidden {:.1f}%; of what is ready before the last op {:.1f}%\n",
            one_line(p.value("peer", std::string("PyTorch"))), number("link_gb_s"),
            number("buckets"), number("compute_ms"), number("communication_ms"), number("both_ms"),
            100 * number("hidden"), 100 * number("hidden_of_ready"));
    }
    return text;
}

std::string to_text(const BenchOverlapOptions& options, const overlap::Report& report) {
    const overlap::Options& measure = options.measure;
    const auto mb = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
    std::string text = fmt::format(
        "overlap {}: {} parameters, batch {} of {} tokens, 1 of {} ranks, the others ghosts: "
        "{}\n  {:.0f} of {:.0f} MB of gradients are ready before the backward's last operation\n",
        one_line(options.model), observe::short_count(static_cast<double>(report.parameters)),
        measure.batch, measure.seq, measure.ranks, report.gpu, mb(report.bytes.before_last),
        mb(report.bytes.all));
    for (const overlap::LinkResult& link : report.links) text += link_text(link);
    if (report.occupied.empty()) return text;
    text += fmt::format("\n  {:<32}{:>12}{:>16}\n", "occupied during the backward", "step, ms",
                        "occupied, ms");
    for (const overlap::OccupiedResult& o : report.occupied) {
        text += fmt::format(
            "  {:<32}{:>12.3f}{:>16.3f}\n",
            fmt::format("{} of {} multiprocessors", o.multiprocessors, report.multiprocessors),
            o.seconds * 1e3, o.held_seconds * 1e3);
    }
    return text;
}

int overlap_bench(const BenchOverlapOptions& options) {
    check_outcome(options.outcome);
    const InterruptGuard guard;
    const overlap::Options measure = checked_measure(options);
    const model::ModelSpec spec = next_token_spec(options.model, options.measure.seq);
    require_gpu("overlap");
    ProgressLine line;
    const overlap::Report report = overlap::measure(spec, measure, line.callback());
    line.remove();
    std::vector<Json> peers;
    if (!options.peer.empty()) peers = ask_torch(options, spec);
    Json json = to_json(options, report);
    if (!peers.empty()) json["peer"] = peers;
    show(options.outcome, json, to_text(options, report) + peer_text(peers));
    return 0;
}

void add_measure_options(const Command& command, BenchOverlapOptions& options) {
    overlap::Options& measure = options.measure;
    command.add_option("--batch", measure.batch, "Sequences per step, 1 to 65536")
        .range(1, 1 << 16)
        .shows_default();
    command.add_option("--seq", measure.seq, "Tokens per sequence, 2 to 1048576")
        .range(2, 1 << 20)
        .shows_default();
    command
        .add_option("--ranks", measure.ranks,
                    "Ranks that train together, a power of two from 2 to 64: one and its ghosts")
        .range(2, 64)
        .shows_default();
    command.add_option("--bucket", options.bucket, "MiB of gradients per bucket, 1 to 65536")
        .range(1, 1 << 16)
        .shows_default();
    command
        .add_option("--occupy", measure.occupy,
                    "Multiprocessors that a kernel occupies during the backward, 0 to 1024; fewer "
                    "than there are")
        .separated_by(',')
        .range(0, 1024)
        .shows_default();
    command
        .add_option("--steps", measure.steps,
                    "Steps that are measured, 1 to 10000; the median counts")
        .range(1, 10000)
        .shows_default();
    command.add_option("--warmup", measure.warmup, "Warm-up steps before them, 1 to 10000")
        .range(1, 10000)
        .shows_default();
}

}  // namespace

void add_overlap(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchOverlapOptions>();
    const Command command = lab.add_subcommand(
        "overlap", "How much of an exchange of gradients hides behind the backward pass");
    command
        .add_option("model", options->model,
                    "The model's shape: random:SHAPE, or a model's file or folder; weights are new")
        .required();
    command
        .add_option("--link", options->links,
                    "Rates of the link in each direction, as 50GB/s or 400Gb/s; up to 64 GB/s "
                    "copies go to the host and back, above it they stay on the device")
        .shown_as("RATE")
        .separated_by(',')
        .shows_default();
    add_measure_options(command, *options);
    command.add_option("--peer", options->peer, "Measure PyTorch's DistributedDataParallel, too")
        .one_of({"torch"});
    add_outcome_options(command, options->outcome);
    command.footer(
        "One GPU is one rank of data parallel training, the others are ghosts: its shards leave,\n"
        "and shards that ghosts have recorded come back, over the copy engines, at the link's\n"
        "pace. hidden = (t_compute + t_communication - t_both) / the smaller of the two.\n"
        "Gradients after an exchange with other bits than the tree over ranks are an error.\n"
        "docs/streams.md explains the method.\n"
        "Examples:\n"
        "  millrace-lab overlap random:gpt2\n"
        "  millrace-lab overlap random:gpt2 --link 25GB/s,50GB/s,400GB/s --bucket 50 --json");
    command.callback(
        [options, &action] { action = [options] { return overlap_bench(*options); }; });
}

}  // namespace mr::cli
