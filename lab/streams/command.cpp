// millrace-lab streams: copies and kernels on one stream and on several, compared with the
// longest part.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cpu.h"
#include "lab/experiments.h"
#include "lab/outcome.h"
#include "lab/streams/page.h"
#include "lab/streams/streams.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct BenchStreamsOptions {
    std::int64_t size = 4'194'304;  // floats
    streams::Options measure;
    OutcomeOptions outcome;
};

// The memory of a schedule, for the table and JSON.
const char* memory_of(const streams::Schedule& schedule) {
    return schedule.pinned ? "pinned" : "pageable";
}

Json parts_json(const streams::Parts& parts, double bytes) {
    const auto copy = [&](double seconds) {
        return Json{{"ms", seconds * 1e3}, {"gb_s", observe::ratio(bytes, seconds) / 1e9}};
    };
    return {{"copy_in", copy(parts.copy_in)},
            {"copy_in_three_streams", copy(parts.copy_in_streams)},
            {"compute", {{"ms", parts.compute * 1e3}}},
            {"copy_out", copy(parts.copy_out)},
            {"duplex_in", copy(parts.duplex_in)},
            {"duplex_out", copy(parts.duplex_out)},
            {"limit_ms", parts.limit() * 1e3}};
}

Json rung_json(const streams::Report& report, const streams::Rung& rung) {
    const streams::Schedule& s = rung.schedule;
    return {{"rung", s.name},
            {"streams", s.streams},
            {"chunks", s.cut.chunks},
            {"chunks_on_device", s.slots},
            {"memory", memory_of(s)},
            {"graph", s.graph},
            {"ms", rung.seconds * 1e3},
            {"ms_best", rung.best * 1e3},
            {"speed_up", report.speed_up(rung)},
            {"of_limit", report.of_limit(rung)},
            {"same_bits", true}};  // different bits are an error
}

Json to_json(const BenchStreamsOptions& options, const streams::Report& report) {
    const double bytes = static_cast<double>(options.size) * sizeof(float);
    Json json = {{"experiment", "streams"},
                 {"device", report.gpu},
                 {"size", options.size},
                 {"bytes", options.size * static_cast<std::int64_t>(sizeof(float))},
                 {"iterations", report.iterations},
                 {"repetitions", options.measure.repetitions},
                 {"copy_engines", report.copy_engines},
                 {"priorities", {report.least_priority, report.greatest_priority}},
                 {"parts", parts_json(report.parts, bytes)},
                 {"rungs", Json::array()},
                 {"best", rung_json(report, report.best())},
                 {"short_job", Json::array()},
                 {"log",
                  {{"size", streams::Log::kCount},
                   {"streams", streams::Log::kStreams},
                   {"synchronous_ms", streams::Log::kSynchronousMs},
                   {"streams_ms", streams::Log::kStreamsMs},
                   {"speed_up", streams::Log::kSpeedUp}}}};
    for (const streams::Rung& rung : report.rungs) {
        json["rungs"].push_back(rung_json(report, rung));
    }
    for (const streams::Latency& l : report.priorities) {
        json["short_job"].push_back(
            {{"where", l.name}, {"us", l.seconds * 1e6}, {"long_ms", l.long_seconds * 1e3}});
    }
    return json;
}

std::string parts_text(const streams::Parts& parts, double bytes) {
    std::string text =
        fmt::format("  {:<38}{:>10}{:>10}\n", "part, the whole array, pinned", "ms", "GB/s");
    for (const auto& [name, seconds, copies] : parts.rows()) {
        text +=
            fmt::format("  {:<38}{:>10.3f}{:>10}\n", name, seconds * 1e3,
                        copies ? fmt::format("{:.1f}", observe::ratio(bytes, seconds) / 1e9) : "-");
    }
    return text + fmt::format("  {:<38}{:>10.3f}\n",
                              "limit: the longest of the last two and compute",
                              parts.limit() * 1e3);
}

std::string to_text(const BenchStreamsOptions& options, const streams::Report& report) {
    const double bytes = static_cast<double>(options.size) * sizeof(float);
    std::string text =
        fmt::format("streams on {}: {} floats ({}), a kernel of {} iterations, {} copy engines\n",
                    report.gpu, options.size, format_bytes(static_cast<std::uint64_t>(bytes)),
                    report.iterations, report.copy_engines);
    text += parts_text(report.parts, bytes);
    text += fmt::format("\n  {:<38}{:>8}{:>8}{:>10}{:>10}{:>10}{:>14}  {}\n", "rung", "streams",
                        "chunks", "memory", "ms", "speed-up", "of the limit", "bits");
    for (const streams::Rung& rung : report.rungs) {
        const streams::Schedule& s = rung.schedule;
        text += fmt::format("  {:<38}{:>8}{:>8}{:>10}{:>10.3f}{:>9.2f}x{:>13.1f}%  same\n", s.name,
                            s.streams, s.cut.chunks, memory_of(s), rung.seconds * 1e3,
                            report.speed_up(rung), 100 * report.of_limit(rung));
    }
    const streams::Rung& best = report.best();
    text += fmt::format(
        "  fastest: {}, {:.2f}x, {:.1f}% of the limit; the log had {:.2f}x from {} streams, "
        "pinned\n",
        best.schedule.name, report.speed_up(best), 100 * report.of_limit(best),
        streams::Log::kSpeedUp, streams::Log::kStreams);
    text += fmt::format("\n  {:<38}{:>10}{:>16}\n", "a short job", "us", "long job, ms");
    for (const streams::Latency& l : report.priorities) {
        text += fmt::format("  {:<38}{:>10.1f}{:>16}\n", l.name, l.seconds * 1e6,
                            l.long_seconds > 0 ? fmt::format("{:.2f}", l.long_seconds * 1e3) : "-");
    }
    return text;
}

int streams_bench(const BenchStreamsOptions& options) {
    require_gpu("streams");
    streams::Options measure = options.measure;
    measure.count = static_cast<std::size_t>(options.size);
    measure.timelines = !options.outcome.html.empty();
    streams::host_plan(measure).require(cpu_info().memory_bytes, "use a smaller --size");
    check_outcome(options.outcome);
    ProgressLine line;
    const streams::Report report = streams::measure(measure, line.callback());
    line.remove();
    show(options.outcome, to_json(options, report), to_text(options, report),
         streams::report_page(report));
    return 0;
}

}  // namespace

void add_streams(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchStreamsOptions>();
    const Command command = lab.add_subcommand(
        "streams", "Copies and kernels on one stream and on several, each result compared");
    command.add_option("--size", options->size, "Floats of the array, 1 to 268435456")
        .range(std::int64_t{1}, std::int64_t{1} << 28)
        .shows_default();
    command
        .add_option("--streams", options->measure.streams,
                    "Numbers of streams, 1 to 64, each with a chunk of the array")
        .separated_by(',')
        .range(1, 64)
        .shows_default();
    command
        .add_option("--chunks", options->measure.chunks,
                    "Numbers of chunks, 1 to 4096, of the other rungs; the fastest is taken")
        .separated_by(',')
        .range(1, 4096)
        .shows_default();
    command.add_option("--reps", options->measure.repetitions, "Repetitions; the median counts")
        .range(1, 1000)
        .shows_default();
    add_outcome_options(command, options->outcome);
    command.footer(
        "The kernel is made as long as a copy in; the limit is the longest of copy in, compute "
        "and\n"
        "copy out, copies of both directions running at once. A result with other bits than the\n"
        "synchronous one is an error. docs/streams.md explains the rungs.\n"
        "Examples:\n"
        "  millrace-lab streams\n"
        "  millrace-lab streams --size 67108864 --html streams.html");
    command.callback(
        [options, &action] { action = [options] { return streams_bench(*options); }; });
}

}  // namespace mr::cli
