// millrace data pack: texts into token shards for training.
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/caller.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "observe/units.h"
#include "train/pack.h"

namespace mr::cli {
namespace {

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
    const Command data = app.add_subcommand("data", "Pack texts for training");
    data.require_subcommand();
    data.footer("Example:\n  millrace data pack --data stories.txt --tokenizer tok/ --out data/");
    add_pack(data, action, caller);
}

void add_data(const Command& app, Action& action) { add_data(app, action, nullptr); }

}  // namespace mr::cli
