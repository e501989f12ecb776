// millrace-lab story: stories in which every choice has a known probability; whether stories are
// well formed; and how far a model is from the best that is possible.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include "cli/engine.h"
#include "cli/existing_file.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/output_file.h"
#include "decode/eval.h"
#include "formats/json.h"
#include "lab/experiments.h"
#include "lab/story/floor.h"
#include "lab/story/story_check.h"
#include "lab/story/storybook.h"
#include "observe/units.h"
#include "text/tokenizer.h"
#include "train/shards.h"

namespace mr::cli {
namespace {

struct WriteOptions {
    std::uint64_t stories = 1000;
    std::uint64_t seed = 0;
    std::string out;
    bool force = false;
    SharedOptions shared;  // only --json
};

// A stream into a file that appears whole or not at all, or into standard output.
class Sink : public std::streambuf {
  public:
    explicit Sink(OutputFile* file) : file_(file) {}

  protected:
    std::streamsize xsputn(const char* data, std::streamsize count) override {
        const std::string_view text(data, static_cast<std::size_t>(count));
        if (file_) {
            file_->write(text);
        } else {
            cli::out(text);
        }
        return count;
    }
    int_type overflow(int_type c) override {
        if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
        const char byte = traits_type::to_char_type(c);
        return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
    }

  private:
    OutputFile* file_;
};

int write(const WriteOptions& options) {
    const InterruptGuard guard;
    ProgressLine line;
    const bool to_file = options.out != "-";
    if (to_file) refuse_existing_file(options.out, options.force);
    line.begin("preparing");
    std::optional<OutputFile> file;
    if (to_file) file.emplace(options.out);
    Sink sink(to_file ? &*file : nullptr);
    std::ostream stream(&sink);
    stream.exceptions(std::ios::badbit);  // errors of the sink are thrown as they are
    const story::StorybookStats stats = story::write_storybook(
        stream, options.stories, options.seed, [&](std::uint64_t done, std::uint64_t total) {
            line.update("writing stories", done, total);
        });
    if (to_file) file->commit();
    line.remove();

    const double bits = stats.entropy_nats / std::log(2.0);
    if (options.shared.json) {
        const story::Grammar::Size size = story::Storybook::grammar().size();
        out(json_text({{"out", options.out},
                       {"stories", stats.stories},
                       {"seed", options.seed},
                       {"bytes", stats.bytes},
                       {"entropy_nats_per_story", stats.entropy_nats},
                       {"entropy_bits_per_story", bits},
                       {"mean_nats_per_story", stats.mean_nats},
                       {"grammar",
                        {{"rules", size.rules},
                         {"tables", size.tables},
                         {"records", size.records},
                         {"alternatives", size.alternatives},
                         {"words", size.words}}}}));
        return 0;
    }
    const std::string text = fmt::format(
        "{}, {}; entropy {:.3f} nats ({:.3f} bits) per story, exact; mean of those "
        "written: {:.3f} nats\n",
        observe::counted(stats.stories, "story", "stories"), observe::counted(stats.bytes, "byte"),
        stats.entropy_nats, bits, stats.mean_nats);
    if (to_file) {
        out(text);
    } else {
        err(text);
    }
    return 0;
}

void add_write(const Command& story, Action& action) {
    auto options = std::make_shared<WriteOptions>();
    const Command command = story.add_subcommand(
        "write", "Write short children's stories from a grammar with known probabilities");
    command.add_option("--stories", options->stories, "Number of stories")
        .range(std::uint64_t{1}, std::uint64_t{1} << 40)
        .shows_default();
    command.add_option("--seed", options->seed, "Same seed, same stories").shows_default();
    command.add_option("--out", options->out, "The file to write; '-': standard output")
        .required()
        .shown_as("FILE");
    command.add_flag("--force", options->force, "Replace an existing file");
    add_json_option(command, options->shared);
    command.footer(
        "Example:\n  millrace-lab story write --stories 1000 --seed 1 --out stories.txt");
    command.callback([options, &action] {
        if (options->shared.json && options->out == "-") {
            throw Error::usage(
                {.field = "--json", .problem = "needs --out FILE: '-' is taken by the stories"});
        }
        action = [options] { return write(*options); };
    });
}

struct CheckOptions {
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

int check(const CheckOptions& options) {
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

void add_check(const Command& story, Action& action) {
    auto options = std::make_shared<CheckOptions>();
    const Command command = story.add_subcommand(
        "check",
        "Report the share of well-formed stories in a text, and what is wrong with the others");
    command
        .add_option("file", options->file,
                    "Stories, separated by <|endoftext|>; '-' reads standard input")
        .required()
        .shown_as("FILE");
    command.add_option("--show", options->show, "Number of bad stories to explain").shows_default();
    add_json_option(command, options->shared);
    command.footer("Example:\n  millrace-lab story check stories.txt");
    command.callback([options, &action] { action = [options] { return check(*options); }; });
}

struct FloorOptions {
    std::string data;
    SharedOptions shared;  // only --json
};

int floor(const FloorOptions& options) {
    const InterruptGuard guard;
    const train::Dataset data = train::Dataset::open(options.data);
    const std::optional<story::Floor> floor = story::floor_of(
        data.val.tokens() > 0 ? data.val : data.train, data.end_token, *data.open_tokenizer());
    if (!floor) {
        throw Error::input({.file = options.data,
                            .problem = "has documents that the storybook's grammar did not write",
                            .remedy = "pack stories of 'millrace-lab story write' alone"});
    }
    if (options.shared.json) {
        out(json_text({{"data", options.data},
                       {"stories", floor->stories},
                       {"nats_per_story", floor->nats_per_story},
                       {"nats_per_token", floor->nats_per_token},
                       {"entropy_nats_per_story", floor->entropy_nats}}));
        return 0;
    }
    out(fmt::format(
        "{:.4f} nats per token, {:.3f} per story (entropy: {:.3f}), of {}: no model's loss "
        "is less in the mean\n",
        floor->nats_per_token, floor->nats_per_story, floor->entropy_nats,
        observe::counted(floor->stories, "story", "stories")));
    return 0;
}

void add_floor(const Command& story, Action& action) {
    auto options = std::make_shared<FloorOptions>();
    const Command command = story.add_subcommand(
        "floor", "The exact loss that no model trained on packed stories can go below");
    command
        .add_option("data", options->data,
                    "A folder of 'millrace data pack'; its validation split, if it has one")
        .required()
        .shown_as("FOLDER");
    add_json_option(command, options->shared);
    command.footer("Example:\n  millrace-lab story floor data/");
    command.callback([options, &action] { action = [options] { return floor(*options); }; });
}

struct DistanceOptions {
    std::string stories, eval;
    SharedOptions shared;  // only --json
};

// The nats of each document in the output of `millrace eval --json`.
std::vector<double> document_nats(const DistanceOptions& options) {
    const std::string text = read_input(options.eval);
    const formats::JsonDocument json = formats::JsonDocument::parse(text, options.eval);
    std::vector<double> out;
    for (const formats::JsonValue value : json.root()["document_nats"]) {
        if (!value.is_number()) break;
        out.push_back(value.get<double>());
    }
    if (!out.empty()) return out;
    throw Error::input({.file = options.eval,
                        .field = "document_nats",
                        .problem = "is missing or empty",
                        .remedy = "give the output of 'millrace eval MODEL --text STORIES --split "
                                  "\"<|endoftext|>\" --ends --json', with no document cut"});
}

int distance(const DistanceOptions& options) {
    const InterruptGuard guard;
    const std::vector<double> nats = document_nats(options);
    const std::string text = read_input(options.stories);
    const std::vector<std::string_view> stories = decode::split_documents(
        text, {.split = std::string(text::kEndOfText), .limit = static_cast<int>(nats.size())});
    const std::optional<story::Distance> found = story::distance_of(stories, nats);
    if (!found) {
        throw Error::input(
            {.file = options.stories,
             .problem = stories.size() < nats.size()
                            ? fmt::format("has {} for {} evaluated documents",
                                          observe::counted(stories.size(), "story", "stories"),
                                          nats.size())
                            : "has documents that the storybook's grammar did not write",
             .remedy = "name the text that was evaluated, of 'millrace-lab story write'"});
    }
    if (options.shared.json) {
        out(json_text({{"stories", stories.size()},
                       {"nats_per_story", found->own},
                       {"entropy_nats_per_story", found->entropy},
                       {"distance", found->above},
                       {"standard_error", found->error}}));
        return 0;
    }
    out(
        fmt::format("{:.3f} +- {:.3f} nats per story above the storybook's own {:.3f} (entropy: "
                    "{:.3f})\n",
                    found->above, found->error, found->own, found->entropy));
    return 0;
}

void add_distance(const Command& story, Action& action) {
    auto options = std::make_shared<DistanceOptions>();
    const Command command =
        story.add_subcommand("distance", "How far a model is from the stories' exact probability");
    command.add_option("stories", options->stories, "The stories that were evaluated")
        .required()
        .shown_as("FILE");
    command
        .add_option("eval", options->eval,
                    "The output of 'millrace eval --ends --json' on them; '-': standard input")
        .required()
        .shown_as("FILE");
    add_json_option(command, options->shared);
    command.footer(
        "Example:\n"
        "  millrace eval MODEL --text stories.txt --split '<|endoftext|>' --ends --json |\n"
        "      millrace-lab story distance stories.txt -");
    command.callback([options, &action] { action = [options] { return distance(*options); }; });
}

}  // namespace

void add_story(const Command& lab, Action& action) {
    const Command story = lab.add_subcommand(
        "story", "The storybook: texts of exactly known probability, and checks against it");
    story.require_subcommand();
    add_write(story, action);
    add_check(story, action);
    add_floor(story, action);
    add_distance(story, action);
}

}  // namespace mr::cli
