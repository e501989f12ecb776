// millrace-lab compare: two kept runs of one experiment, number by number.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "lab/experiments.h"
#include "lab/outcome.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct CompareOptions {
    std::string a, b;
    bool all = false;
    SharedOptions shared;  // only --json
};

Json described(const KeptRun& run) {
    return {{"file", run.path},
            {"date", run.date},
            {"program", run.program},
            {"command", run.command},
            {"machine", run.machine}};
}

int compare(const CompareOptions& options) {
    const KeptRun a = kept_run(options.a), b = kept_run(options.b);
    const std::string kind = a.result.value("experiment", std::string());
    if (const std::string other = b.result.value("experiment", std::string()); other != kind) {
        throw Error::usage({.field = options.b,
                            .problem = fmt::format("is a run of '{}', and {} one of '{}'",
                                                   one_line(other), options.a, one_line(kind)),
                            .remedy = "compare two runs of one experiment"});
    }
    std::map<std::string, double> after;
    for (const auto& [name, value] : numbers_of(b.result)) after.emplace(name, value);
    Json json = {{"experiment", kind},       {"a", described(a)}, {"b", described(b)},
                 {"numbers", Json::array()}, {"equal", 0},        {"only_a", Json::array()},
                 {"only_b", Json::array()}};
    std::string text;
    for (const auto& [side, run] : {std::pair{"A", &a}, std::pair{"B", &b}}) {
        text += fmt::format("{}  {}: {}, {}\n   {}\n   {}\n", side, one_line(run->path),
                            one_line(run->date), one_line(run->program), one_line(run->machine),
                            one_line(run->command));
    }
    std::size_t width = 6;
    for (const auto& [name, value] : numbers_of(a.result)) width = std::max(width, name.size());
    text += fmt::format("  {:<{}}{:>14}{:>14}{:>10}\n", one_line(kind), width, "A", "B", "B / A");
    int equal = 0;
    for (const auto& [name, value] : numbers_of(a.result)) {
        const auto found = after.extract(name);
        if (!found) {
            json["only_a"].push_back(name);
            continue;
        }
        const bool same = value == found.mapped();
        equal += same;
        const double ratio = value != 0 ? found.mapped() / value : std::nan("");
        json["numbers"].push_back({{"name", name},
                                   {"a", value},
                                   {"b", found.mapped()},
                                   {"ratio", std::isfinite(ratio) ? Json(ratio) : Json()}});
        if (same && !options.all) continue;
        text +=
            fmt::format("  {:<{}}{:>14.6g}{:>14.6g}{:>10}\n", one_line(name), width, value,
                        found.mapped(), std::isfinite(ratio) ? fmt::format("{:.3f}", ratio) : "-");
    }
    for (const auto& [name, value] : after) json["only_b"].push_back(name);
    json["equal"] = equal;
    if (equal > 0 && !options.all) {
        text += fmt::format("  {} equal; --all shows them\n",
                            observe::counted(equal, "number is", "numbers are"));
    }
    for (const auto& [side, key] : {std::pair{"A", "only_a"}, std::pair{"B", "only_b"}}) {
        if (!json[key].empty()) {
            text += fmt::format("  only in {}: {}\n", side, json[key].size());
        }
    }
    out(options.shared.json ? json_text(json) : text);
    return 0;
}

}  // namespace

void add_compare(const Command& lab, Action& action) {
    auto options = std::make_shared<CompareOptions>();
    const Command command =
        lab.add_subcommand("compare", "Two runs that --save has kept, number by number");
    for (const auto& [name, to] : {std::pair{"a", &options->a}, std::pair{"b", &options->b}}) {
        command.add_option(name, *to, "The name of a run (the newest of it), or its file")
            .required()
            .shown_as("RUN");
    }
    command.add_flag("--all", options->all, "Show the numbers that are equal, too");
    add_json_option(command, options->shared);
    command.footer(
        "Example:\n"
        "  millrace-lab sampler --save before\n"
        "  millrace-lab sampler --save after\n"
        "  millrace-lab compare before after");
    command.callback([options, &action] { action = [options] { return compare(*options); }; });
}

}  // namespace mr::cli
