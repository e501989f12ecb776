#include "lab/outcome.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "core/output_file.h"
#include "observe/own_file.h"

namespace mr::cli {
namespace {

namespace fs = std::filesystem;

// Tells a kept run from other JSON.
constexpr const char* kFormat = "millrace-lab run";

fs::path folder_of_runs() {
    const char* const named = std::getenv("MILLRACE_LAB_RUNS");
    return named && *named ? named : "lab-runs";
}

bool is_name(const std::string& text) {
    return !text.empty() && text.front() != '.' && std::ranges::all_of(text, [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    });
}

std::string machine() {
    const CpuInfo& cpu = cpu_info();
    const auto gpu = cuda::device();
    return fmt::format("{}, {} cores, {}{}", cpu.model, cpu.cores, isa_name(active_isa()),
                       gpu ? ", " + gpu->name : "");
}

void make_folder_of_runs() {
    const fs::path folder = folder_of_runs();
    std::error_code failed;
    fs::create_directories(folder, failed);
    if (!failed) return;
    throw Error::input({.file = folder.string(),
                        .problem = "cannot be made: " + failed.message(),
                        .remedy = "name another folder in MILLRACE_LAB_RUNS"});
}

void keep(const std::string& name, const Json& result) {
    const std::time_t now = std::time(nullptr);
    const std::tm utc = *std::gmtime(&now);
    const fs::path folder = folder_of_runs();
    const std::string path = (folder / fmt::format("{:%Y%m%d_%H%M%S}_{}.json", utc, name)).string();
    OutputFile file(path);
    file.write(json_text({{"format", kFormat},
                          {"name", name},
                          {"date", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", utc)},
                          {"program", version_line()},
                          {"command", command_line()},
                          {"machine", machine()},
                          {"result", result}}));
    file.commit();
    note("kept: " + one_line(path));
}

observe::Cell cell_of(const Json& value) {
    if (value.is_number()) return value.get<double>();
    if (value.is_string()) return value.get<std::string>();
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
    return {};
}

// Members that are no list, with those of objects as "outer.inner".
void flatten(const Json& object, const std::string& before,
             std::vector<std::pair<std::string, Json>>& out) {
    for (const auto& [key, value] : object.items()) {
        if (value.is_object()) {
            flatten(value, before + key + ".", out);
        } else if (!value.is_array()) {
            out.emplace_back(before + key, value);
        }
    }
}

bool is_table(const Json& value) {
    return value.is_array() && !value.empty() &&
           std::ranges::all_of(value, [](const Json& row) { return row.is_object(); });
}

observe::Table table_of(const std::string& title, const Json& rows) {
    observe::Table table{.title = title, .columns = {}};
    std::vector<std::vector<std::pair<std::string, Json>>> flat;
    for (const Json& row : rows) flatten(row, "", flat.emplace_back());
    const auto column = [&](const std::string& name) {
        return std::ranges::find(table.columns, name, &observe::Table::Column::name);
    };
    for (const auto& row : flat) {
        for (const auto& [name, value] : row) {
            if (column(name) == table.columns.end()) table.columns.push_back({name});
        }
    }
    for (const auto& row : flat) {
        std::vector<observe::Cell> cells(table.columns.size());
        for (const auto& [name, value] : row) {
            cells[static_cast<std::size_t>(column(name) - table.columns.begin())] = cell_of(value);
        }
        table.rows.push_back({std::move(cells)});
    }
    return table;
}

// The figures of any experiment: a table for what it was asked, and one for each of its lists.
observe::Page page_of(const Json& result) {
    observe::Page page("millrace-lab " + result.value("experiment", std::string()));
    page.add_line(machine() + "; " + version_line());
    std::vector<std::pair<std::string, Json>> facts;
    flatten(result, "", facts);
    observe::Table about{.title = "The run", .columns = {{"what"}, {"value"}}};
    about.rows.push_back({{"command", command_line()}});
    for (const auto& [name, value] : facts) about.rows.push_back({{name, cell_of(value)}});
    for (const auto& [key, value] : result.items()) {
        if (is_table(value)) page.add(table_of(key, value));
    }
    page.add(about);
    return page;
}

// How the elements of a list are called: by their first text, with their first whole number or all
// their texts where that is needed to tell them apart; else by their places.
std::vector<std::string> names_of(const Json& list) {
    std::vector<std::string> texts(list.size()), numbers(list.size()), places(list.size());
    std::vector<std::string> all(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
        places[i] = std::to_string(i);
        if (!list[i].is_object()) continue;
        for (const auto& [key, value] : list[i].items()) {
            if (value.is_string()) {
                if (texts[i].empty()) texts[i] = value.get<std::string>();
                all[i] += (all[i].empty() ? "" : ", ") + value.get<std::string>();
            }
            if (numbers[i].empty() && value.is_number_integer()) {
                numbers[i] = fmt::format("{} {}", key, value.get<std::int64_t>());
            }
        }
    }
    const auto apart = [](const std::vector<std::string>& names) {
        const std::set<std::string> each(names.begin(), names.end());
        return each.size() == names.size() && !each.contains("");
    };
    if (apart(texts)) return texts;
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (!texts[i].empty() && !numbers[i].empty()) texts[i] += ", ";
        texts[i] += numbers[i];
    }
    if (apart(texts)) return texts;
    return apart(all) ? all : places;
}

void add_numbers(const Json& value, const std::string& at,
                 std::vector<std::pair<std::string, double>>& out) {
    if (value.is_number()) {
        out.emplace_back(at, value.get<double>());
    } else if (value.is_object()) {
        for (const auto& [key, inner] : value.items()) {
            add_numbers(inner, at.empty() ? key : at + "." + key, out);
        }
    } else if (value.is_array()) {
        const std::vector<std::string> names = names_of(value);
        for (std::size_t i = 0; i < value.size(); ++i) {
            add_numbers(value[i], fmt::format("{}[{}]", at, names[i]), out);
        }
    }
}

std::string found_run(const std::string& which) {
    std::string newest;
    std::error_code failed;
    if (fs::is_regular_file(which, failed)) return which;
    if (is_name(which)) {
        for (const fs::directory_entry& entry : fs::directory_iterator(folder_of_runs(), failed)) {
            // DATE_TIME_NAME.json: the date and the time have no letters and one '_' each.
            const std::string file = entry.path().filename().string();
            constexpr std::size_t kDate = sizeof("20261119_195400_") - 1;
            if (file.size() <= kDate || file.substr(kDate) != which + ".json") continue;
            newest = std::max(newest, entry.path().string());
        }
    }
    if (!newest.empty()) return newest;
    throw Error::input(
        {.file = which,
         .problem = fmt::format("is no file, and no kept run in {}", folder_of_runs().string()),
         .remedy = "keep one with --save NAME"});
}

}  // namespace

void add_outcome_options(const Command& command, OutcomeOptions& options) {
    command.group("Output");
    command.add_flag("--json", options.json, "Print one JSON object instead of text");
    command.add_option("--html", options.html, "Write the figures as a page to this file")
        .shown_as("FILE");
    command
        .add_option("--save", options.save,
                    "Keep the run under this name, with date, machine, version and command, in "
                    "lab-runs/ or $MILLRACE_LAB_RUNS; 'compare' reads it")
        .shown_as("NAME");
}

void check_outcome(const OutcomeOptions& options) {
    if (!options.save.empty() && !is_name(options.save)) {
        throw Error::usage({.field = "--save",
                            .value = one_line(options.save),
                            .problem = "is no name for a run",
                            .remedy = "use letters, digits, '-', '_' and '.'"});
    }
    if (!options.save.empty()) {
        make_folder_of_runs();
        const OutputFile probe((folder_of_runs() / (options.save + ".json")).string());
    }
    if (options.html.empty()) return;
    observe::require_own_file(options.html, observe::kPageMark);
    const OutputFile probe(options.html);
}

void show(const OutcomeOptions& options, const Json& result, const std::string& text,
          const std::optional<observe::Page>& page) {
    out(options.json ? json_text(result) : text);
    if (!options.save.empty()) keep(options.save, result);
    if (options.html.empty()) return;
    observe::write_page(options.html, page ? *page : page_of(result));
    note("page: " + one_line(options.html));
}

KeptRun kept_run(const std::string& which) {
    KeptRun run;
    run.path = found_run(which);
    const std::optional<Json> json = object_of_line(read_input(run.path));
    if (!json || json->value("format", Json()) != kFormat || !json->contains("result") ||
        !(*json)["result"].is_object() ||
        !(*json)["result"].value("experiment", Json()).is_string()) {
        throw Error::input({.file = run.path,
                            .problem = "is no kept run of millrace-lab",
                            .remedy = "keep one with --save NAME"});
    }
    for (const auto& [key, to] :
         {std::pair{"name", &run.name}, std::pair{"date", &run.date},
          std::pair{"program", &run.program}, std::pair{"command", &run.command},
          std::pair{"machine", &run.machine}}) {
        if (json->contains(key) && (*json)[key].is_string()) *to = (*json)[key].get<std::string>();
    }
    run.result = (*json)["result"];
    return run;
}

std::vector<std::pair<std::string, double>> numbers_of(const Json& result) {
    std::vector<std::pair<std::string, double>> out;
    add_numbers(result, "", out);
    return out;
}

}  // namespace mr::cli
