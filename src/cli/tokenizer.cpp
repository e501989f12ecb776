// millrace tokenizer train: trains a byte-level BPE tokenizer on the user's texts.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/thread_pool.h"
#include "text/bpe_train.h"
#include "text/tokenizer_json_writer.h"
#include "train/corpus.h"
#include "train/shards.h"

namespace mr::cli {
namespace {

namespace fs = std::filesystem;

struct TokenizerOptions {
    std::vector<std::string> data;
    std::string out;
    text::BpeTrainOptions bpe;
    bool force = false;
    SharedOptions shared;  // --threads and --json
};

constexpr const char* kConfigName = "tokenizer_config.json";

// --out is a folder, or the file itself if it ends with .json.
std::string target_file(const TokenizerOptions& options) {
    const fs::path out = options.out;
    std::string path = (out.extension() == ".json" ? out : out / "tokenizer.json").string();
    std::error_code code;
    const auto beside = [&](const char* name) {
        const fs::path file = fs::path(path).replace_filename(name);
        return fs::exists(file, code) ? file.string() : std::string();
    };
    // Existing shards or weights would not match another tokenizer.
    for (const char* name : {train::kDataIndexName, "config.json"}) {
        if (beside(name).empty()) continue;
        throw Error::input(
            {.file = path,
             .problem = fmt::format("the folder has a {} with its own tokenizer", name),
             .remedy = "give --out another folder"});
    }
    std::string there = fs::exists(path, code) ? path : beside(kConfigName);
    if (!there.empty() && !options.force) {
        throw Error::input({.file = std::move(there),
                            .problem = "the tokenizer already exists",
                            .remedy = "--force replaces it"});
    }
    return path;
}

constexpr std::size_t kRecordsBytes = std::size_t{4} << 20;  // counted at a time

void make_folder(const std::string& path) {
    const fs::path folder = fs::absolute(path).parent_path();
    std::error_code code;
    fs::create_directories(folder, code);
    if (code || !fs::is_directory(folder)) {
        throw Error::input({.file = folder.string(),
                            .problem = code ? "cannot be made: " + code.message() : "is no folder",
                            .remedy = "give a folder for the tokenizer"});
    }
}

int train(const TokenizerOptions& options) {
    const InterruptGuard guard;
    const std::string path = target_file(options);
    ThreadPool pool(thread_count(options.shared));
    text::BpeTrainer trainer(options.bpe, pool);
    const std::vector<std::string> files = train::corpus_files(options.data);
    ProgressLine line;
    line.begin("reading the texts");
    const std::uint64_t total = train::corpus_bytes(files);
    std::uint64_t before = 0;
    for (const std::string& path : files) {
        train::CorpusFile file(path, "", nullptr, line.callback());
        const std::uint64_t bytes = train::file_bytes(path);
        double begin = 0;
        const auto add = [&](std::string_view text) {
            trainer.add(text, [&](std::string_view what, std::uint64_t done, std::uint64_t all) {
                const double share = begin + (file.done() - begin) * static_cast<double>(done) /
                                                 static_cast<double>(all);
                line.update(what, before + static_cast<std::uint64_t>(share * bytes), total);
            });
            begin = file.done();
        };
        // Many short records at a time, with a special token between them, which is not counted.
        std::string records;
        for (train::Document document; file.next(document); file.release()) {
            if (!file.has_records()) {
                add(document.text);
                continue;
            }
            records.append(document.text).append(options.bpe.special.front());
            if (records.size() < kRecordsBytes) continue;
            add(records);
            records.clear();
        }
        if (!records.empty()) add(records);
        before += bytes;
    }
    const text::BpeTrained trained = trainer.train(line.callback());
    line.remove();

    const auto written = text::huggingface_tokenizer(trained.data);
    MR_CHECK(written, "a trained tokenizer can be written as tokenizer.json");
    make_folder(path);
    OutputFile file(path);
    file.write(written->tokenizer);
    OutputFile config_file((fs::path(path).replace_filename(kConfigName)).string());
    config_file.write(written->config);
    config_file.commit();
    file.commit();

    const std::size_t vocab = trained.data.tokens.size();
    const bool fewer = vocab < static_cast<std::size_t>(options.bpe.vocab);
    if (options.shared.json) {
        const Json result = {{"out", path},
                             {"vocab", vocab},
                             {"wanted", options.bpe.vocab},
                             {"merges", trained.data.merges.size()},
                             {"special", options.bpe.special},
                             {"files", files.size()},
                             {"bytes", trained.bytes},
                             {"words", trained.words},
                             {"distinct_words", trained.distinct_words}};
        out(json_text(result));
        return 0;
    }
    out(fmt::format("{}: {} tokens, {} merges, from {} bytes with {} distinct words\n",
                    one_line(path), vocab, trained.data.merges.size(), trained.bytes,
                    trained.distinct_words));
    if (fewer) {
        remark(fmt::format(
            "fewer than the {} tokens asked for: no pair is left that occurs {} times or more",
            options.bpe.vocab, options.bpe.min_count));
    }
    return 0;
}

}  // namespace

void add_tokenizer(const Command& app, Action& action) {
    auto options = std::make_shared<TokenizerOptions>();
    const Command tokenizer = app.add_subcommand("tokenizer", "Train a tokenizer");
    tokenizer.require_subcommand();
    const Command command =
        tokenizer.add_subcommand("train", "Train a byte-level BPE tokenizer on your texts");
    command.add_option("--data", options->data, "Text files, folders or globs")
        .required()
        .shown_as("PATH");
    command
        .add_option("--vocab", options->bpe.vocab, "Vocabulary size, with bytes and special tokens")
        .shows_default();
    command.add_option("--out", options->out, "Folder to write tokenizer.json to")
        .required()
        .shown_as("FOLDER");
    command.add_flag("--force", options->force, "Replace an existing tokenizer");
    command
        .add_option("--special", options->bpe.special,
                    "Special tokens; the first ends a text. Where the texts spell them out, they "
                    "end a word")
        .shown_as("WORDS")
        .shows_default();
    command
        .add_option("--min-count", options->bpe.min_count,
                    "Merge only pairs that occur at least N times")
        .range(std::uint64_t{1}, std::uint64_t{1} << 60)
        .shows_default();
    add_threads_option(command, options->shared);
    add_json_option(command, options->shared);
    const char* example =
        "Example:\n  millrace tokenizer train --data stories.txt --vocab 2048 --out tok/";
    command.footer(example);
    tokenizer.footer(example);
    command.callback([options, &action] { action = [options] { return train(*options); }; });
}

}  // namespace mr::cli
