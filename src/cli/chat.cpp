// millrace chat: a conversation, line by line. Ctrl-C stops the answer, not the program.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/chat/line_reader.h"
#include "cli/chat/slash.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/printable.h"
#include "decode/conversation.h"
#include "decode/prompt.h"

namespace mr::cli {
namespace {

struct ChatOptions {
    SharedOptions shared;
    decode::GenerateOptions generate;
    std::string system;
    text::ChatOptions chat;
    ContextOptions context;
    DiffusionChoice diffusion;
};

void print_answer(const decode::Generated& made, const decode::Conversation& chat,
                  const ChatOptions& options) {
    if (options.shared.json) {
        Json json = {{"role", "assistant"},
                     {"content", made.text},
                     {"stop_reason", decode::stop_reason_name(made.reason)},
                     {"prompt_tokens", made.prompt_tokens},
                     {"tokens", made.ids.size()},
                     {"tok_s", made.decode.tokens_per_second()},
                     {"forgotten_turns", chat.forgotten()}};
        if (options.generate.stream) {
            json["fed_tokens"] = made.prefill.tokens;
            json["evicted"] = chat.evicted();
            json["first_left"] = chat.first_left();
        }
        out(json_line(json));
        return;
    }
    out("\n");
    std::string gone;
    if (chat.forgotten()) gone = fmt::format(", {} turns forgotten", chat.forgotten());
    if (chat.evicted()) gone = fmt::format(", {} left the window", chat.evicted());
    note(fmt::format("[{:.1f} tok/s, {:.1f} GB/s; {} tokens of history{}]",
                     made.decode.tokens_per_second(), made.decode.bytes_per_second() / 1e9,
                     made.prompt_tokens, gone));
}

// Says once per conversation that the model no longer sees everything.
void tell_first_left(const model::Stream& stream) {
    remark(fmt::format(
        "the first words have left the window: the model sees the first {} tokens and the latest "
        "{} (--sinks, --window)",
        stream.sinks, stream.window));
}

// Says once which turns no longer fit into the context.
void tell_dropped(const decode::Conversation& chat, std::int64_t context) {
    const std::vector<std::string>& dropped = chat.dropped();
    if (dropped.empty()) return;
    remark(fmt::format(
        "{} tokens of context are full: \"{}\" was forgotten with its answer{}", context,
        printable(dropped.front(), 60),
        dropped.size() > 1 ? fmt::format(", and {} turns after it", dropped.size() - 1) : ""));
}

int chat(const Command& command, ChatOptions options) {
    const InterruptGuard guard;
    refuse_endless(STDIN_FILENO, "standard input");
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        decode::require_tokenizer(model);
        use_advice(command, model.generation, options.generate);
        model::EngineOptions wanted = engine_options(options.shared);
        require_streaming(command, options.context);
        make_stream(options.context, model.spec, options.generate.max_tokens, wanted,
                    options.generate);
        use_diffusion(command, options.diffusion, model.spec, wanted, options.generate);
        return wanted;
    });
    const std::unique_ptr<model::Engine> opened = make_engine(loaded);
    model::Engine& engine = *opened;
    note_block(options.diffusion, engine.model().spec);
    const model::Stream stream = options.generate.stream;
    decode::Conversation conversation(engine, options.system, options.chat, stream);
    const std::string& notice = conversation.writer().notice();
    if (!notice.empty()) remark(one_line(notice));
    if (options.generate.max_tokens < 0) {
        options.generate.max_tokens = static_cast<int>(engine.options().context);
    }
    const bool person = stdin_is_terminal();
    if (person) {
        note(fmt::format(
            "{}: {}, {}. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.",
            loaded.model->source, conversation.writer().name(),
            stream ? fmt::format("no end: the first {} tokens and the latest {} are in view",
                                 stream.sinks, stream.window)
                   : fmt::format("{} tokens of context", engine.options().context)));
    }
    options.generate.keep = decode::Keep::words;  // for the history
    options.generate.cancelled = [] { return InterruptGuard::pending(); };
    ChatState state{conversation, options.generate, loaded.model->source, engine.options().context,
                    stream};
    const std::unique_ptr<LineReader> reader = make_line_reader();
    bool warned = false;  // for one Ctrl-C at an empty prompt
    for (;;) {
        std::string line;
        const LineReader::Outcome outcome = reader->next(line);
        if (outcome == LineReader::Outcome::end) break;
        if (outcome == LineReader::Outcome::interrupted) {
            if (InterruptGuard::must_leave()) return InterruptGuard::exit_code();
            InterruptGuard::clear();
            if (warned && line.empty()) break;
            warned = line.empty();
            out("\n");
            if (!warned) continue;  // Ctrl-C discarded a line
            note("(Ctrl-C again or Ctrl-D leaves)");
            continue;
        }
        warned = false;
        if (line.empty()) continue;
        // The cancelled answer stays in the history: the user saw it.
        InterruptGuard::set_patient(true);  // a second Ctrl-C still means the answer
        try {
            const Slash said = obey(state, line);
            if (said == Slash::leave) return 0;
            if (said == Slash::message) {
                const decode::Generated made =
                    conversation.answer(line, options.generate, [&](std::string_view text) {
                        if (!options.shared.json) out(text);
                        return true;
                    });
                print_answer(made, conversation, options);
                if (!options.shared.json) tell_dropped(conversation, engine.options().context);
                if (!options.shared.json && conversation.first_left()) tell_first_left(stream);
                ++state.answers;
                state.tokens += static_cast<std::int64_t>(made.ids.size());
                state.last_prompt = made.prompt_tokens;
                state.decoded += made.decode.tokens;
                state.seconds += made.decode.seconds;
            }
        } catch (const Error& error) {
            // The user can send something shorter.
            if (!person || !decode::may_go_on(error.kind())) throw;
            err(fmt::format("millrace: {}\n", one_line(error.what())));
        }
        if (InterruptGuard::must_leave()) return InterruptGuard::exit_code();
        InterruptGuard::clear();  // first: a second Ctrl-C must not find the old flag
        InterruptGuard::set_patient(false);
    }
    if (person) out("\n");
    return 0;
}

}  // namespace

void add_chat(const Command& app, Action& action) {
    auto options = std::make_shared<ChatOptions>();
    const Command command = app.add_subcommand("chat", "Talk with a model");
    add_model_options(command, options->shared);
    command.group("Conversation");
    command.add_option("--system", options->system, "What the model is told before anything else")
        .shown_as("WORDS");
    command
        .add_option("--chat-template", options->chat.template_file,
                    "A Jinja template to use instead of the model's own")
        .shown_as("FILE");
    command
        .add_option("--template-arg", options->chat.arguments,
                    "A variable for the template, JSON or text; may be repeated")
        .repeatable()
        .shown_as("NAME=VALUE");
    command
        .add_flag("--parse-special", options->chat.parse_special,
                  "Special tokens written out in messages become their ids")
        .rare();
    command.add_flag("--json", options->shared.json, "Print each answer as one line of JSON");
    add_context_options(
        command, options->context, {"full", "streaming"},
        "a conversation that is longer than the context: full forgets its oldest turns");
    add_diffusion_options(command, options->diffusion, false);
    add_sampling_options(command, options->generate);
    add_engine_options(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace chat model.gguf --system \"Answer in one sentence.\"\n"
        "  printf 'Who are you?\\nWhy?\\n' | millrace chat model.gguf --temp 0\n"
        "  millrace chat model.gguf --template-arg enable_thinking=false\n"
        "  millrace chat model.gguf --context streaming\n"
        "Messages are written by the model's own chat template; without one, in the format that\n"
        "its vocabulary shows (ChatML, Llama-3, Mistral), or a plain one. /help lists what else\n"
        "can be said: /clear, /save, /load, /system, /seed, /stats, /exit. Ctrl-C stops an\n"
        "answer, Ctrl-D leaves.");
    command.callback([options, command, &action] {
        if (!command.given("--seed")) options->generate.sampling.seed = fresh_seed();
        action = [options, command] { return chat(command, *options); };
    });
}

}  // namespace mr::cli
