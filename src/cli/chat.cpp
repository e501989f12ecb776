// millrace chat: a conversation, line by line. Ctrl-C stops the answer, not the program.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "decode/conversation.h"
#include "decode/prompt.h"

namespace mr::cli {
namespace {

struct Options {
    SharedOptions shared;
    decode::GenerateOptions generate;
    std::string system;
    text::ChatOptions chat;
};

// Lines of standard input. Not a stream: a read that Ctrl-C ends must come back to us.
class LineReader {
  public:
    enum class Outcome { line, end, interrupted };

    Outcome next(std::string& line) {
        for (;;) {
            const std::size_t newline = buffer_.find('\n');
            if (newline != std::string::npos || (ended_ && !buffer_.empty())) {
                line = buffer_.substr(0, newline);
                buffer_.erase(0, newline == std::string::npos ? newline : newline + 1);
                if (line.ends_with('\r')) line.pop_back();
                return Outcome::line;
            }
            if (ended_) return Outcome::end;
            if (InterruptGuard::pending()) return Outcome::interrupted;
            // A signal that comes between that look and a read would be seen with the next line
            // only: so wait in short turns.
            pollfd input{STDIN_FILENO, POLLIN, 0};
            if (::poll(&input, 1, 100) <= 0) continue;
            char bytes[4096];
            const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
            if (count > 0) {
                buffer_.append(bytes, static_cast<std::size_t>(count));
            } else if (count == 0 || errno != EINTR) {
                ended_ = true;
            }
        }
    }

  private:
    std::string buffer_;
    bool ended_ = false;
};

void print_answer(const decode::Generated& made, const decode::Conversation& chat,
                  const Options& options) {
    if (options.shared.json) {
        const Json json = {{"role", "assistant"},
                           {"content", made.text},
                           {"stop_reason", decode::stop_reason_name(made.reason)},
                           {"prompt_tokens", made.prompt_tokens},
                           {"tokens", made.ids.size()},
                           {"tok_s", made.decode.tokens_per_second()},
                           {"forgotten_turns", chat.forgotten()}};
        out(json_line(json));
        return;
    }
    out("\n");
    note(fmt::format(
        "[{:.1f} tok/s, {:.1f} GB/s; {} tokens of history{}]", made.decode.tokens_per_second(),
        made.decode.bytes_per_second() / 1e9, made.prompt_tokens,
        chat.forgotten() ? fmt::format(", {} turns forgotten", chat.forgotten()) : ""));
}

int chat(const Command& command, Options options) {
    const InterruptGuard guard;
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        decode::require_tokenizer(model);
        use_advice(command, model.generation, options.generate);
        return engine_options(options.shared);
    });
    const std::unique_ptr<model::Engine> opened = make_engine(loaded);
    model::Engine& engine = *opened;
    decode::Conversation conversation(engine, options.system, options.chat);
    const std::string& notice = conversation.writer().notice();
    if (!notice.empty()) err(fmt::format("millrace: {}\n", one_line(notice)));
    if (options.generate.max_tokens < 0) {
        options.generate.max_tokens = static_cast<int>(engine.options().context);
    }
    const bool person = stdin_is_terminal();
    if (person) {
        note(fmt::format(
            "{}: {}, {} tokens of context. /clear forgets, Ctrl-C stops an "
            "answer, Ctrl-D leaves.",
            loaded.model->source, conversation.writer().name(), engine.options().context));
    }
    options.generate.cancelled = [] { return InterruptGuard::pending(); };
    LineReader reader;
    bool warned = false;  // Ctrl-C at an empty prompt, once
    for (;;) {
        if (person) out("> ");
        std::string line;
        const LineReader::Outcome outcome = reader.next(line);
        if (outcome == LineReader::Outcome::end) break;
        if (outcome == LineReader::Outcome::interrupted) {
            if (InterruptGuard::must_leave()) return InterruptGuard::exit_code();
            InterruptGuard::clear();
            if (warned) break;
            warned = true;
            out("\n");
            note("(Ctrl-C again or Ctrl-D leaves)");
            continue;
        }
        warned = false;
        if (line.empty()) continue;
        if (line == "/clear") {
            conversation.clear();
            continue;
        }
        // The cancelled answer stays: both sides saw it.
        InterruptGuard::set_patient(true);  // pressed twice, Ctrl-C still means the answer
        try {
            const decode::Generated made =
                conversation.answer(line, options.generate, [&](std::string_view text) {
                    if (!options.shared.json) out(text);
                    return true;
                });
            print_answer(made, conversation, options);
        } catch (const Error& error) {
            // A person can say something shorter.
            if (!person || !decode::may_go_on(error.kind())) throw;
            err(fmt::format("millrace: {}\n", one_line(error.what())));
        }
        if (InterruptGuard::must_leave()) return InterruptGuard::exit_code();
        InterruptGuard::clear();  // first: a second Ctrl-C must not find the first still there
        InterruptGuard::set_patient(false);
    }
    if (person) out("\n");
    return 0;
}

}  // namespace

void add_chat(const Command& app, Action& action) {
    auto options = std::make_shared<Options>();
    const Command command = app.add_subcommand("chat", "Talk with a model");
    add_model_options(command, options->shared);
    command.add_option("--system", options->system, "What the model is told before anything else");
    command
        .add_option("--chat-template", options->chat.template_file,
                    "A Jinja template to use instead of the model's own")
        .shown_as("FILE");
    command
        .add_option("--template-arg", options->chat.arguments,
                    "A variable for the template, JSON or text; may be repeated")
        .repeatable()
        .shown_as("NAME=VALUE");
    command.add_flag("--parse-special", options->chat.parse_special,
                     "Special tokens written out in messages become their ids");
    add_sampling_options(command, options->generate);
    add_engine_options(command, options->shared);
    command.add_flag("--json", options->shared.json, "Print one JSON object a line and answer");
    command.footer(
        "Examples:\n"
        "  millrace chat model.gguf --system \"Answer in one sentence.\"\n"
        "  printf 'Who are you?\\nWhy?\\n' | millrace chat model.gguf --temp 0\n"
        "  millrace chat model.gguf --template-arg enable_thinking=false\n"
        "Messages are written by the model's own chat template; without one the format (ChatML,\n"
        "Llama-2, Llama-3, Mistral) is recognised. /clear forgets the conversation; Ctrl-C stops "
        "an\n"
        "answer, Ctrl-D leaves.");
    command.callback([options, command, &action] {
        if (!command.given("--seed")) options->generate.sampling.seed = fresh_seed();
        action = [options, command] { return chat(command, *options); };
    });
}

}  // namespace mr::cli
