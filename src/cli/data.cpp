// millrace data storybook: stories whose every choice has a known probability.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>
#include <ostream>
#include <streambuf>
#include <string>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/output_file.h"
#include "train/storybook.h"

namespace mr::cli {
namespace {

struct Options {
    std::uint64_t stories = 1000;
    std::uint64_t seed = 0;
    std::string out;
    SharedOptions shared;  // --json alone
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

int storybook(const Options& options) {
    const InterruptGuard guard;
    const bool to_file = options.out != "-";
    std::optional<OutputFile> file;
    if (to_file) file.emplace(options.out);
    Sink sink(to_file ? &*file : nullptr);
    std::ostream stream(&sink);
    stream.exceptions(std::ios::badbit);  // what the sink throws comes out as it is
    ProgressLine line;
    const train::StorybookStats stats = train::write_storybook(
        stream, options.stories, options.seed, [&](std::uint64_t done, std::uint64_t total) {
            line.update("writing stories", done, total);
        });
    if (to_file) file->commit();
    line.remove();

    const double bits = stats.entropy_nats / std::log(2.0);
    if (options.shared.json) {
        const Json json = {{"out", options.out},
                           {"stories", stats.stories},
                           {"seed", options.seed},
                           {"bytes", stats.bytes},
                           {"entropy_nats_per_story", stats.entropy_nats},
                           {"entropy_bits_per_story", bits},
                           {"mean_nats_per_story", stats.mean_nats}};
        out(json_text(json));
        return 0;
    }
    const std::string text = fmt::format(
        "{} stories, {} bytes; entropy {:.3f} nats ({:.3f} bits) per story, exact; {:.3f} nats in "
        "the mean of those written\n",
        stats.stories, stats.bytes, stats.entropy_nats, bits, stats.mean_nats);
    if (to_file) {
        out(text);
    } else {
        fmt::print(stderr, "{}", text);
    }
    return 0;
}

}  // namespace

void add_data(CLI::App& app, Action& action) {
    auto options = std::make_shared<Options>();
    CLI::App* data = app.add_subcommand("data", "Make training texts");
    data->require_subcommand(1);
    data->footer("Example:\n  millrace data storybook --stories 1000 --seed 1 --out stories.txt");
    CLI::App* command = data->add_subcommand(
        "storybook", "Short children's stories from a grammar with known probabilities");
    command->add_option("--stories", options->stories, "How many")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
        ->capture_default_str();
    command->add_option("--seed", options->seed, "Same seed, same stories")->capture_default_str();
    command->add_option("--out", options->out, "The file to write; '-': standard output")
        ->required();
    add_json_option(*command, options->shared);
    command->footer(
        "Example:\n  millrace data storybook --stories 1000 --seed 1 --out stories.txt");
    command->callback([options, &action] {
        if (options->shared.json && options->out == "-") {
            throw CLI::ValidationError("--json", "needs --out FILE: '-' is taken by the stories");
        }
        action = [options] { return storybook(*options); };
    });
    add_data_check(*data, action);
}

}  // namespace mr::cli
