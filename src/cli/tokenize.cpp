// millrace tokenize: a text as token ids and pieces, and back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "model/io/random.h"
#include "model/io/source.h"
#include "text/tokenizer.h"

namespace mr::cli {
namespace {

struct TokenizeOptions {
    SharedOptions shared;
    std::string text;
    std::string file;
    std::string decode;
    bool decode_given = false;
    bool ids_only = false;
    bool no_special = false;
    bool plain = false;
};

std::vector<std::int32_t> parse_ids(const std::string& list, std::int32_t vocab) {
    std::vector<std::int32_t> ids;
    const char* at = list.data();
    const char* end = at + list.size();
    for (;;) {
        while (at < end && std::string_view(" ,\t\r\n[]").find(*at) != std::string_view::npos) ++at;
        if (at == end) return ids;
        std::int32_t id = 0;
        const auto [rest, error] = std::from_chars(at, end, id);
        if (error != std::errc{} || id < 0 || id >= vocab) {
            throw Error::usage(
                {.field = "--decode",
                 .value =
                     std::string(at, std::min<std::size_t>(20, static_cast<std::size_t>(end - at))),
                 .problem = fmt::format("is not a token id from 0 to {}", vocab - 1),
                 .remedy = "give ids separated by spaces or commas"});
        }
        ids.push_back(id);
        at = rest;
    }
}

// Without the weights: a file with only a vocabulary is enough.
text::Tokenizer::Ptr load_tokenizer(const SharedOptions& options) {
    if (const std::string given = tokenizer_source(options.tokenizer); !given.empty()) {
        return model::open_tokenizer(given, 0);
    }
    const std::string source = model_source(options);
    if (source.starts_with(model::kRandomPrefix)) {
        return text::Tokenizer::bytes(model::random_shape(source).first.vocab);
    }
    // A .bin is a llama2.c model, whose tokenizer lies beside it; anything else holds its own.
    if (!source.ends_with(".bin")) return model::open_tokenizer(source, 0);
    auto tokenizer = model::open_source(source, {}).tokenizer;
    if (tokenizer) return tokenizer;
    throw Error::input({.file = source,
                        .problem = "there is no tokenizer beside this model",
                        .remedy = "give one with --tokenizer"});
}

int tokenize(const TokenizeOptions& options) {
    ProgressLine line;
    line.begin("opening the tokenizer");
    const text::Tokenizer::Ptr tokenizer = load_tokenizer(options.shared);
    line.remove();
    if (options.decode_given) {
        const std::string text =
            tokenizer->decode(parse_ids(options.decode, tokenizer->vocab_size()));
        out(options.shared.json ? json_line({{"text", text}}) : text + "\n");
        return 0;
    }
    const std::string text = options.file.empty() ? options.text : read_input(options.file);
    line.begin("tokenizing");
    const std::vector<std::int32_t> ids = tokenizer->encode(
        text, {.add_special = !options.no_special, .parse_special = !options.plain});
    line.remove();
    if (options.shared.json) {
        Json pieces = Json::array();
        for (const std::int32_t id : ids) pieces.push_back(tokenizer->display(id));
        const std::string back = tokenizer->decode(ids, true);
        const Json json = {{"tokenizer", tokenizer->kind()},
                           {"vocab", tokenizer->vocab_size()},
                           {"count", ids.size()},
                           {"ids", ids},
                           {"pieces", pieces},
                           {"text", back},
                           {"round_trip", back == text}};
        out(json_line(json));
        return 0;
    }
    if (options.ids_only) {
        out(fmt::format("{}\n", fmt::join(ids, " ")));
        return 0;
    }
    std::string table;
    for (const std::int32_t id : ids)
        table += fmt::format("{:>8}  {}\n", id, tokenizer->display(id));
    out(table);
    note(fmt::format("{} tokens; the ids decode to the {} text", ids.size(),
                     tokenizer->decode(ids, true) == text ? "same" : "a different"));
    return 0;
}

}  // namespace

void add_tokenize(const Command& app, Action& action) {
    auto options = std::make_shared<TokenizeOptions>();
    const Command command =
        app.add_subcommand("tokenize", "Turn text into token ids and pieces, or ids into text");
    add_model_options(command, options->shared);
    const Option text = command.add_option("--text", options->text, "The text").shown_as("WORDS");
    const Option file =
        command
            .add_option("--file", options->file,
                        "A file with the text; '-', or a pipe and no option: standard input")
            .shown_as("FILE");
    const Option decode =
        command.add_option("--decode", options->decode, "Token ids to turn back into text")
            .shown_as("IDS");
    text.excludes(file).excludes(decode);
    file.excludes(decode);
    command.add_flag("--ids", options->ids_only, "Print the ids on one line, nothing else");
    command.add_flag("--no-special", options->no_special, "Add no special tokens such as BOS");
    command.add_flag("--plain", options->plain,
                     "Treat special tokens spelled out in the text as plain text");
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace tokenize model.gguf --text \"Once upon a time\"\n"
        "  millrace tokenize model.gguf --text \"Once upon a time\" --ids\n"
        "  millrace tokenize model.gguf --decode \"1 9038 2501\"");
    command.callback([=, &action] {
        if (!text.given() && !file.given() && !decode.given()) {
            options->text = piped_text("the text", "give it with --text");
            if (options->text.empty()) {
                throw Error::usage({.problem = "--text, --file or --decode is required",
                                    .remedy = "or a text piped to standard input"});
            }
        }
        options->decode_given = decode.given();
        action = [options] { return tokenize(*options); };
    });
}

}  // namespace mr::cli
