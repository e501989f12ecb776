// How an experiment shows what it found: as text, as JSON, as a page, and as a run that is kept to
// be compared with others.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/json.h"
#include "cli/parser.h"
#include "observe/page.h"

namespace mr::cli {

struct OutcomeOptions {
    bool json = false;
    std::string html, save;
};
// --json, --html and --save.
void add_outcome_options(const Command& command, OutcomeOptions& options);
// Before the work: throws Error where a file could not be written after it.
void check_outcome(const OutcomeOptions& options);
// `result` begins with "experiment"; `text` says the same for people. `page`: the experiment's own;
// without one the page has the tables of `result`.
void show(const OutcomeOptions& options, const Json& result, const std::string& text,
          const std::optional<observe::Page>& page = {});

// Kept runs: FOLDER/DATE_TIME_NAME.json, with the result, its command, the date, the program's
// version and the machine. FOLDER is lab-runs, or $MILLRACE_LAB_RUNS.
struct KeptRun {
    std::string path, name, date, program, command, machine;
    Json result;
};
// `which`: the path of such a file, or a NAME, of which the newest run is meant. Throws Error
// (input).
KeptRun kept_run(const std::string& which);

// The numbers of a result by their place in it: {"rungs[host].tok_s", 104.2}. An element of a list
// is named by its first text, or by its place.
std::vector<std::pair<std::string, double>> numbers_of(const Json& result);

}  // namespace mr::cli
