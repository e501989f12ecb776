// millrace data check: what share of the stories in a text is well-formed.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "observe/units.h"
#include "story/story_check.h"

namespace mr::cli {
namespace {

struct DataCheckOptions {
    std::string file;
    std::size_t show = 10;
    SharedOptions shared;  // only --json
};

constexpr std::size_t kMostListed = 1000;

double share(std::uint64_t part, std::uint64_t all) {
    return all ? static_cast<double>(part) / static_cast<double>(all) : 0;
}

Json census_json(const std::string& file, const story::StoryCensus& census) {
    Json faults = Json::object(), bad = Json::array();
    for (std::size_t i = 0; i < census.faults.size(); ++i) {
        faults[story::story_fault_name(static_cast<story::StoryFault>(i))] = census.faults[i];
    }
    for (const auto& story : census.bad) {
        Json problems = Json::array();
        for (const story::StoryProblem& p : story.problems) {
            problems.push_back({{"fault", story::story_fault_name(p.fault)}, {"what", p.what}});
        }
        bad.push_back({{"story", story.index}, {"problems", problems}});
    }
    return {{"file", file},
            {"stories", census.stories},
            {"well_formed", census.well_formed},
            {"well_formed_share", share(census.well_formed, census.stories)},
            {"by_grammar", census.by_grammar},
            {"by_grammar_share", share(census.by_grammar, census.stories)},
            {"mean_nats_by_grammar", census.mean_nats},
            {"faults", faults},
            {"bad", bad}};
}

int check(const DataCheckOptions& options) {
    const InterruptGuard guard;
    const std::string text = read_input(options.file);
    ProgressLine line;
    line.begin("reading stories");
    const auto stories = story::split_stories(text);
    if (stories.empty()) {
        throw Error::input({.file = options.file,
                            .problem = "has no story in it",
                            .remedy = "stories are separated by <|endoftext|>"});
    }
    const story::StoryCensus census =
        story::check_stories(stories, kMostListed, [&](std::uint64_t done, std::uint64_t total) {
            line.update("reading stories", done, total);
        });
    line.remove();
    if (options.shared.json) {
        out(json_text(census_json(options.file, census)));
        return 0;
    }
    out(
        fmt::format("{}: {} well-formed ({:.2f}%), {} that the grammar could have written "
                    "({:.2f}%)",
                    observe::counted(census.stories, "story", "stories"), census.well_formed,
                    100 * share(census.well_formed, census.stories), census.by_grammar,
                    100 * share(census.by_grammar, census.stories)));
    if (census.by_grammar > 0) {
        out(fmt::format(", {:.3f} nats each in the mean", census.mean_nats));
    }
    out("\n");
    for (std::size_t i = 0; i < census.faults.size(); ++i) {
        if (census.faults[i] == 0) continue;
        out(fmt::format("  {:<12}{:>8}\n",
                        story::story_fault_name(static_cast<story::StoryFault>(i)),
                        census.faults[i]));
    }
    for (std::size_t i = 0; i < std::min(options.show, census.bad.size()); ++i) {
        for (const story::StoryProblem& p : census.bad[i].problems) {
            out(fmt::format("story {}: {}: {}\n", census.bad[i].index,
                            story::story_fault_name(p.fault), one_line(p.what)));
        }
    }
    return 0;
}

}  // namespace

void add_data_check(const Command& data, Action& action) {
    auto options = std::make_shared<DataCheckOptions>();
    const Command command = data.add_subcommand(
        "check",
        "Report the share of well-formed stories in a text, and what is wrong with the others");
    command
        .add_option("file", options->file,
                    "Stories, separated by <|endoftext|>; '-' reads standard input")
        .required()
        .shown_as("FILE");
    command.add_option("--show", options->show, "Number of bad stories to explain").shows_default();
    add_json_option(command, options->shared);
    command.footer("Example:\n  millrace data check stories.txt");
    command.callback([options, &action] { action = [options] { return check(*options); }; });
}

}  // namespace mr::cli
