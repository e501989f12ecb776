#include "observe/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/output_file.h"
#include "observe/own_file.h"

namespace mr::observe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kProcess = 1;
constexpr int kHost = 1, kDevice = 2;  // the tracks

double us(double seconds) { return seconds * 1e6; }

Json name_of(const char* what, int track, const std::string& name) {
    return {
        {"ph", "M"}, {"pid", kProcess}, {"tid", track}, {"name", what}, {"args", {{"name", name}}}};
}

Json complete(int track, const std::string& name, const char* category, double begin,
              double seconds) {
    return {{"ph", "X"},       {"pid", kProcess}, {"tid", track},      {"name", name},
            {"cat", category}, {"ts", us(begin)}, {"dur", us(seconds)}};
}

Json counter(const char* name, double at, const char* unit, double value) {
    return {
        {"ph", "C"}, {"pid", kProcess}, {"name", name}, {"ts", us(at)}, {"args", {{unit, value}}}};
}

Json stage_event(const Stage& stage, double begin, double read_ceiling) {
    Json event = complete(kDevice, stage.name, op_name(stage.kind), begin, stage.work.seconds);
    Json& args = event["args"];
    if (stage.layer >= 0) args["layer"] = stage.layer;
    args["bytes_read"] = stage.work.bytes_read;
    args["bytes_written"] = stage.work.bytes_written;
    args["flops"] = stage.work.flops;
    if (stage.work.seconds > 0) {
        const double rate = static_cast<double>(stage.work.bytes()) / stage.work.seconds;
        args["gb_s"] = rate / 1e9;
        if (read_ceiling > 0) args["percent_of_read_ceiling"] = 100 * rate / read_ceiling;
    }
    return event;
}

void add_counters(std::vector<Json>& events, const Step& step) {
    std::uint64_t bytes = 0;
    for (const Stage& stage : step.stages) bytes += stage.work.bytes();
    if (step.seconds > 0) {
        events.push_back(
            counter("memory", step.begin, "GB/s", static_cast<double>(bytes) / step.seconds / 1e9));
    }
    events.push_back(
        counter("host to device", step.begin, "bytes", static_cast<double>(step.to_device)));
    events.push_back(counter("device to host", step.begin, "bytes",
                             static_cast<double>(step.to_host - step.stamps)));
}

}  // namespace

void write_trace(const std::string& path, const RunNames& names, std::span<const HostSpan> spans,
                 std::span<const Step> steps, const Ceilings& ceilings) {
    std::vector<Json> events;
    for (const HostSpan& span : spans) {
        events.push_back(complete(kHost, span.name, "host", span.begin, span.seconds));
    }
    for (const Step& step : steps) {
        for (const Stage& stage : step.stages) {
            events.push_back(stage_event(stage, step.begin + stage.begin, ceilings.read));
        }
        add_counters(events, step);
    }
    if (!steps.empty()) {  // a counter holds until its next value, so the end of the run gets one
        const double end = steps.back().begin + steps.back().seconds;
        events.push_back(counter("memory", end, "GB/s", 0));
        events.push_back(counter("host to device", end, "bytes", 0));
        events.push_back(counter("device to host", end, "bytes", 0));
    }
    // Of two events with the same begin the longer comes first, because it contains the other.
    std::stable_sort(events.begin(), events.end(), [](const Json& a, const Json& b) {
        const double x = a["ts"].get<double>(), y = b["ts"].get<double>();
        return x != y ? x < y : a.value("dur", 0.0) > b.value("dur", 0.0);
    });

    // A name may hold any bytes; JSON allows only UTF-8.
    const auto line = [](const Json& json) {
        return json.dump(-1, ' ', false, Json::error_handler_t::replace);
    };
    require_own_file(path, kTraceMark);
    OutputFile file(path);
    file.write(kTraceMark.begins);
    file.write(line(
        {{"model", names.model}, {"device", names.device}, {"ceilings", ceilings_json(ceilings)}}));
    file.write(",\n\"traceEvents\": [\n");
    file.write(line(name_of("process_name", kHost, "millrace " + names.model)) + ",\n");
    file.write(line(name_of("thread_name", kHost, "host")) + ",\n");
    file.write(line(name_of("thread_name", kDevice, "device: " + names.device)));
    for (const Json& event : events) file.write(",\n" + line(event));
    file.write("\n]}\n");
    file.commit();
}

}  // namespace mr::observe
