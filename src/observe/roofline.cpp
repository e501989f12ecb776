#include "observe/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "observe/run_report.h"
#include "observe/units.h"

namespace mr::observe {
namespace {

OpRecord work_of(const StageSum& sum) {
    return {sum.calls, sum.bytes, 0, sum.flops, sum.seconds, sum.int8_flops};
}

// Share, roof and distance from it, once the sums are there.
void judge(StageSum& sum, double phase_seconds, const LeastTime& least) {
    sum.share = ratio(sum.seconds, phase_seconds);
    sum.roof = least.roof;
    sum.of_ceiling = ratio(least.seconds, sum.seconds);
}

void add_stage(StageSum& sum, const Stage& stage) {
    sum.calls += std::max<std::uint64_t>(stage.work.calls, 1);
    sum.seconds += stage.work.seconds;
    sum.bytes += stage.work.bytes();
    sum.flops += stage.work.flops;
    sum.int8_flops += stage.work.int8_flops;
}

// Adds the time that no stage of the step covers: between stages, and before and after them.
void add_gaps(Roofline& out, const Step& step) {
    double first = 0, last = 0, covered = 0;
    for (std::size_t i = 0; i < step.stages.size(); ++i) {  // in the order of their begins
        const double begin = step.stages[i].begin;
        const double end = begin + step.stages[i].work.seconds;
        if (i == 0) first = last = begin;
        covered += std::max(0.0, end - std::max(begin, last));
        last = std::max(last, end);
    }
    const double seconds = std::max(step.seconds, last - first);
    out.seconds += seconds;
    out.gaps += (last - first) - covered;
    out.outside += seconds - (last - first);
}

nlohmann::ordered_json sum_json(const StageSum& sum) {
    return {{"stage", sum.name},
            {"calls", sum.calls},
            {"seconds", sum.seconds},
            {"share", sum.share},
            {"bytes", sum.bytes},
            {"flops", sum.flops},
            {"int8_flops", sum.int8_flops},
            {"gb_s", sum.bytes_per_second() / 1e9},
            {"gflop_s", sum.flops_per_second() / 1e9},
            {"flops_per_byte", sum.flops_per_byte()},
            {"roof", roof_name(sum.roof)},
            {"percent_of_ceiling", 100 * sum.of_ceiling}};
}

}  // namespace

const char* roof_name(Roof roof) {
    switch (roof) {
        case Roof::none:
            return "";
        case Roof::memory:
            return "memory";
        case Roof::matrix:
            return "matrix";
        case Roof::f32:
            return "f32";
        case Roof::int8:
            return "int8";
    }
    return "?";
}

LeastTime least_time(const OpRecord& work, const Ceilings& ceilings) {
    const auto flops = static_cast<double>(work.flops);
    const auto int8_flops = static_cast<double>(work.int8_flops);
    const double memory = ratio(static_cast<double>(work.bytes()), ceilings.read);
    const double matrix = ratio(flops, ceilings.matrix);
    // A CPU has one set of pipes for both.
    const double f32 = ratio(flops - int8_flops, ceilings.f32);
    const double int8 = ratio(int8_flops, ceilings.int8);
    const double compute = std::max(matrix, f32 + int8);
    if (std::max(memory, compute) <= 0) return {};
    if (memory >= compute) return {memory, Roof::memory};
    return {compute, matrix > 0 ? Roof::matrix : f32 >= int8 ? Roof::f32 : Roof::int8};
}

LeastTime least_time(std::span<const OpRecord> work, const Ceilings& ceilings) {
    LeastTime all;
    std::map<Roof, double> under;  // seconds
    for (const OpRecord& one : work) {
        const LeastTime least = least_time(one, ceilings);
        all.seconds += least.seconds;
        under[least.roof] += least.seconds;
    }
    double most = 0;
    for (const auto& [roof, seconds] : under) {
        if (seconds > most) all.roof = roof;
        most = std::max(most, seconds);
    }
    return all;
}

RooflineSums::RooflineSums(std::string phase) {
    sums_.phase = std::move(phase);
    sums_.all.name = "all stages";
}

void RooflineSums::add(const Step& step) {
    if (step.phase != sums_.phase) return;
    ++sums_.steps;
    sums_.tokens += step.tokens;
    if (step.made) sums_.made = sums_.made.value_or(0) + *step.made;
    to_device_ += static_cast<double>(step.to_device);
    to_host_ += static_cast<double>(step.to_host - step.stamps);
    stamps_ += static_cast<double>(step.stamps);
    for (const Stage& stage : step.stages) {
        auto row = std::find_if(sums_.stages.begin(), sums_.stages.end(),
                                [&](const StageSum& sum) { return sum.name == stage.name; });
        if (row == sums_.stages.end()) {
            sums_.stages.push_back({});
            row = sums_.stages.end() - 1;
            row->name = stage.name;
        }
        add_stage(*row, stage);
        add_stage(sums_.all, stage);
    }
    add_gaps(sums_, step);
}

Roofline RooflineSums::under(const Ceilings& ceilings) const {
    Roofline out = sums_;
    out.ceilings = ceilings;
    std::vector<OpRecord> work;
    for (StageSum& sum : out.stages) {
        work.push_back(work_of(sum));
        judge(sum, out.seconds, least_time(work.back(), ceilings));
    }
    judge(out.all, out.seconds, least_time(work, ceilings));
    const auto tokens = static_cast<double>(out.tokens);
    out.to_device_per_token = ratio(to_device_, tokens);
    out.to_host_per_token = ratio(to_host_, tokens);
    out.stamps_per_token = ratio(stamps_, tokens);
    return out;
}

Roofline make_roofline(std::span<const Step> steps, std::string_view phase,
                       const Ceilings& ceilings) {
    RooflineSums sums{std::string(phase)};
    for (const Step& step : steps) sums.add(step);
    return sums.under(ceilings);
}

double Roofline::made_per_pass() const {
    return ratio(static_cast<double>(made.value_or(0)), static_cast<double>(steps));
}

std::string counts_of(const Roofline& r) {
    if (!r.made) return counted(r.steps, "step") + ", " + counted(r.tokens, "token");
    return fmt::format("{}, {}, {} ({:.2f} per pass)", counted(r.steps, "pass", "passes"),
                       counted(r.tokens, "row"), counted(*r.made, "token"), r.made_per_pass());
}

std::string roofline_table(const Roofline& r) {
    const auto steps = static_cast<double>(std::max<std::int64_t>(r.steps, 1));
    const char* const step = r.made ? "pass" : "step";
    std::string text =
        fmt::format("{}: {}, {} in all\n", r.phase, counts_of(r), short_seconds(r.seconds));
    text += fmt::format("{:<16}{:>8}{:>12}{:>8}{:>12}{:>10}{:>11}{:>9}  {}\n", "stage", "calls",
                        fmt::format("time/{}", step), "share", fmt::format("bytes/{}", step),
                        "GB/s", "GFLOP/s", "ceiling", "roof");
    const auto row = [&](const StageSum& sum) {
        text +=
            fmt::format("{:<16}{:>8}{:>12}{:>8}{:>12}{:>10}{:>11}{:>9}  {}", sum.name, sum.calls,
                        short_seconds(sum.seconds / steps), percent(sum.share),
                        short_bytes(static_cast<double>(sum.bytes) / steps),
                        figure(sum.bytes_per_second() / 1e9), figure(sum.flops_per_second() / 1e9),
                        sum.roof == Roof::none ? "" : percent(sum.of_ceiling), roof_name(sum.roof));
        text.erase(text.find_last_not_of(' ') + 1);
        text += '\n';
    };
    const auto rest = [&](const char* name, double seconds) {
        text += fmt::format("{:<16}{:>8}{:>12}{:>8}\n", name, "", short_seconds(seconds / steps),
                            percent(ratio(seconds, r.seconds)));
    };
    for (const StageSum& sum : r.stages) row(sum);
    row(r.all);
    rest("between stages", r.gaps);
    rest(r.made ? "between passes" : "between steps", r.outside);

    const Ceilings& c = r.ceilings;
    std::string ceilings;
    const auto ceiling = [&](double value, double unit, const char* what) {
        if (value <= 0) return;
        ceilings +=
            fmt::format("{}{} {}", ceilings.empty() ? "" : ", ", figure(value / unit), what);
    };
    ceiling(c.read, 1e9, "GB/s read");
    ceiling(c.copy, 1e9, "GB/s copied");
    ceiling(c.matrix, 1e12, "TFLOP/s");
    ceiling(c.f32, 1e9, "GFLOP/s in f32");
    ceiling(c.int8, 1e9, "GFLOP/s in int8");
    ceiling(c.bf16, 1e9, "GFLOP/s in bf16");
    ceiling(c.to_device, 1e9, "GB/s to the device");
    ceiling(c.to_host, 1e9, "GB/s to the host");
    if (!ceilings.empty()) text += "ceilings measured here: " + ceilings + "\n";
    const bool cached = std::any_of(r.stages.begin(), r.stages.end(), [](const StageSum& sum) {
        return sum.roof == Roof::memory && sum.of_ceiling > 1;
    });
    if (cached) text += "above 100%: its bytes came out of a cache\n";
    if (c.to_device <= 0) return text;  // a CPU: no copies
    const char* const unit = r.made ? "row" : "token";
    text += fmt::format("host to device {:.0f} B per {}, device to host {:.0f} B per {}",
                        r.to_device_per_token, unit, r.to_host_per_token, unit);
    if (r.stamps_per_token > 0) {
        text += fmt::format(" (and {:.0f} B of stamps for this table)", r.stamps_per_token);
    }
    text += '\n';
    return text;
}

nlohmann::ordered_json ceilings_json(const Ceilings& ceilings) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    const auto put = [&](const char* name, double value) {
        if (value > 0) json[name] = value / 1e9;
    };
    put("read_gb_s", ceilings.read);
    put("copy_gb_s", ceilings.copy);
    put("to_device_gb_s", ceilings.to_device);
    put("to_host_gb_s", ceilings.to_host);
    put("matrix_gflop_s", ceilings.matrix);
    put("f32_gflop_s", ceilings.f32);
    put("int8_gflop_s", ceilings.int8);
    put("bf16_gflop_s", ceilings.bf16);
    return json;
}

nlohmann::ordered_json roofline_json(const Roofline& r) {
    nlohmann::ordered_json stages = nlohmann::ordered_json::array();
    for (const StageSum& sum : r.stages) stages.push_back(sum_json(sum));
    nlohmann::ordered_json json = {{"phase", r.phase}, {"steps", r.steps}, {"tokens", r.tokens}};
    if (r.made) {
        json["rows"] = r.tokens;
        json.update(decoded_json(*r.made, r.steps));
    }
    json.update({{"seconds", r.seconds},
                 {"stages", stages},
                 {"all", sum_json(r.all)},
                 {"gap_seconds", r.gaps},
                 {"outside_seconds", r.outside},
                 {"host_to_device_bytes_per_token", r.to_device_per_token},
                 {"device_to_host_bytes_per_token", r.to_host_per_token},
                 {"stamp_bytes_per_token", r.stamps_per_token},
                 {"ceilings", ceilings_json(r.ceilings)}});
    return json;
}

}  // namespace mr::observe
