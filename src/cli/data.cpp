// millrace data storybook: stories in which every choice has a known probability.
// millrace data pack: texts into token shards for training.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <streambuf>
#include <string>

#include "cli/caller.h"
#include "cli/existing_file.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/thread_pool.h"
#include "observe/units.h"
#include "story/storybook.h"
#include "train/pack.h"

namespace mr::cli {
namespace {

struct DataOptions {
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

struct Terminal {
    InterruptGuard guard;
    ProgressLine line;
};

// Output of one command: to the terminal, or to the calling program.
class Told {
  public:
    explicit Told(Caller* caller) : caller_(caller) {
        if (caller) return;
        terminal_.emplace();
        terminal_->line.begin("preparing");
    }
    Progress progress() { return terminal_ ? terminal_->line.callback() : caller_->progress; }
    // Whether the result is printed as an object.
    bool takes(const SharedOptions& shared, const std::function<Json()>& result) {
        if (terminal_) terminal_->line.remove();
        if (caller_) {
            caller_->result = json_text(result());
        } else if (shared.json) {
            out(json_text(result()));
        }
        return caller_ || shared.json;
    }

  private:
    std::optional<Terminal> terminal_;
    Caller* caller_;
};

int storybook(const DataOptions& options, Caller* caller) {
    Told told(caller);
    const bool to_file = options.out != "-";
    if (to_file) refuse_existing_file(options.out, options.force);
    std::optional<OutputFile> file;
    if (to_file) file.emplace(options.out);
    Sink sink(to_file ? &*file : nullptr);
    std::ostream stream(&sink);
    stream.exceptions(std::ios::badbit);  // errors of the sink are thrown as they are
    const story::StorybookStats stats = story::write_storybook(
        stream, options.stories, options.seed,
        [progress = told.progress()](std::uint64_t done, std::uint64_t total) {
            if (progress) progress("writing stories", done, total);
        });
    if (to_file) file->commit();

    const double bits = stats.entropy_nats / std::log(2.0);
    const auto json = [&]() -> Json {
        const story::Grammar::Size size = story::Storybook::grammar().size();
        return {{"out", options.out},
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
                  {"words", size.words}}}};
    };
    if (told.takes(options.shared, json)) return 0;
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

struct PackCommand {
    train::PackOptions pack;
    std::uint64_t val_docs = 0;
    SharedOptions shared;  // --threads and --json
};

// Line ends and tabs are hard to type in an argument.
std::string unescaped(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
        if (next == 'n' || next == 't' || next == '\\') {
            out += next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
            ++i;
        } else {
            out += text[i];
        }
    }
    return out;
}

Json split_json(const train::SplitStats& stats, std::size_t shards) {
    return {{"documents", stats.documents},
            {"bytes", stats.bytes},
            {"tokens", stats.tokens},
            {"shards", shards}};
}

std::string split_line(const char* name, const train::SplitStats& stats, std::size_t shards) {
    return fmt::format("{:<10}  {}, {}, {} of text ({:.2f} per token), {}\n", name,
                       observe::counted(stats.documents, "document"),
                       observe::counted(stats.tokens, "token"),
                       observe::counted(stats.bytes, "byte"),
                       static_cast<double>(stats.bytes) / static_cast<double>(stats.tokens),
                       observe::counted(shards, "shard"));
}

int pack(const PackCommand& command, Caller* caller) {
    Told told(caller);
    ThreadPool pool(thread_count(command.shared));
    train::PackOptions found = command.pack;
    found.tokenizer = tokenizer_source(found.tokenizer);
    const train::PackResult result = train::pack(found, pool, told.progress());
    const auto json = [&]() -> Json {
        return {{"out", command.pack.out},
                {"files", result.files},
                {"vocab", result.vocab},
                {"bytes_per_token", result.bytes_per_token},
                {"end_token", result.end_token},
                {"train", split_json(result.train, result.train_shards)},
                {"val", split_json(result.val, result.val_shards)}};
    };
    if (told.takes(command.shared, json)) return 0;
    std::string text = split_line("training", result.train, result.train_shards);
    if (result.val.tokens > 0) text += split_line("validation", result.val, result.val_shards);
    out(text);
    const bool wanted = command.pack.val_docs ? *command.pack.val_docs > 0 : command.pack.val > 0;
    if (result.val.tokens == 0 && wanted) {
        remark(
            "only one document, which cannot be cut: nothing is held out for validation; --split "
            "says where documents end, --val-data names others");
    }
    return 0;
}

void add_pack(const Command& data, Action& action, Caller* caller) {
    auto options = std::make_shared<PackCommand>();
    train::PackOptions& pack_options = options->pack;
    const Command command =
        data.add_subcommand("pack", "Pack texts into token shards for training");
    command
        .add_option("--data", pack_options.data,
                    "Files, folders or globs: texts, or JSON lines with \"text\", \"messages\" or "
                    "\"prompt\" and \"completion\"; also packed by gzip or zstd")
        .required()
        .shown_as("PATH");
    command
        .add_option("--tokenizer", pack_options.tokenizer,
                    "A tokenizer.json or its folder, a GGUF file, or a bundled model's name")
        .required()
        .shown_as("PATH");
    command.add_option("--out", pack_options.out, "The folder to write")
        .required()
        .shown_as("FOLDER");
    command.add_flag("--force", pack_options.force, "Replace an existing data folder");
    command
        .add_option("--split", pack_options.split,
                    "Separator between documents of a text, with \\n and \\t as escapes; '': each "
                    "file is one document")
        .shown_as("WORDS")
        .shows_default();
    const Option val =
        command
            .add_option("--val", pack_options.val,
                        "Share of the documents held out for validation; of a single "
                        "document, its last part")
            .range(0.0, 0.999)
            .shows_default();
    const Option val_docs = command.add_option("--val-docs", options->val_docs,
                                               "Number of documents to hold out instead");
    command.add_option("--val-data", pack_options.val_data, "Separate texts for validation instead")
        .shown_as("PATH")
        .excludes(val)
        .excludes(val_docs);
    val_docs.excludes(val);
    command.add_option("--seed", pack_options.seed, "Seed of the choice of held-out documents")
        .shows_default();
    command.add_option("--shard-tokens", pack_options.shard_tokens, "Tokens per file, at most")
        .range(std::uint64_t{1}, std::uint64_t{1} << 40)
        .shows_default();
    command
        .add_option("--end", pack_options.end_token,
                    "Token after every document; default: the tokenizer's end of text")
        .shown_as("TOKEN");
    command.add_flag("--parse-special", pack_options.parse_special,
                     "Parse special tokens spelled out in the texts");
    add_threads_option(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace data pack --data stories.txt --tokenizer tok/ --out data/\n"
        "  millrace data pack --data 'books/*.txt' --split '' --tokenizer tok/ --out data/");
    command.callback([=, &action] {
        options->pack.split = unescaped(options->pack.split);
        if (val_docs.given()) options->pack.val_docs = options->val_docs;
        action = [options, caller] { return pack(*options, caller); };
    });
}

}  // namespace

void add_data(const Command& app, Action& action, Caller* caller) {
    auto options = std::make_shared<DataOptions>();
    const Command data = app.add_subcommand("data", "Make training texts, and pack them");
    data.require_subcommand();
    data.footer(
        "Examples:\n"
        "  millrace data storybook --stories 1000 --seed 1 --out stories.txt\n"
        "  millrace data pack --data stories.txt --tokenizer tok/ --out data/");
    add_pack(data, action, caller);
    const Command command = data.add_subcommand(
        "storybook", "Write short children's stories from a grammar with known probabilities");
    command.add_option("--stories", options->stories, "Number of stories")
        .range(std::uint64_t{1}, std::uint64_t{1} << 40)
        .shows_default();
    command.add_option("--seed", options->seed, "Same seed, same stories").shows_default();
    command.add_option("--out", options->out, "The file to write; '-': standard output")
        .required()
        .shown_as("FILE");
    command.add_flag("--force", options->force, "Replace an existing file");
    add_json_option(command, options->shared);
    command.footer("Example:\n  millrace data storybook --stories 1000 --seed 1 --out stories.txt");
    command.callback([options, caller, &action] {
        if (options->shared.json && options->out == "-") {
            throw Error::usage(
                {.field = "--json", .problem = "needs --out FILE: '-' is taken by the stories"});
        }
        action = [options, caller] { return storybook(*options, caller); };
    });
    if (!caller) add_data_check(data, action);
}

void add_data(const Command& app, Action& action) { add_data(app, action, nullptr); }

}  // namespace mr::cli
