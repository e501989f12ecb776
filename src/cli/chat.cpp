// millrace chat: a conversation, line by line. Ctrl-C stops the answer, not the program.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/chat/completion.h"
#include "cli/chat/line_reader.h"
#include "cli/chat/slash.h"
#include "cli/colour.h"
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
#include "text/word_wrap.h"

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

// One `millrace chat`.
class Chat {
  public:
    Chat(const Command& command, ChatOptions options);
    Chat(const Chat&) = delete;
    Chat& operator=(const Chat&) = delete;

    int talk();

  private:
    void open(const SharedOptions& shared, const text::ChatOptions& chat);
    void close();
    void switch_model(const std::string& name);
    void take_over(const std::vector<text::ChatMessage>& messages, bool continued);
    void greet() const;
    Completions complete(std::string_view line) const;
    bool heed(Message& said);
    void answer(const std::string& message, bool again);
    void print_answer(const decode::Generated& made) const;
    void tell_dropped() const;
    bool continues() const { return conversation_->writer().continues_texts(); }

    const Command command_;
    ChatOptions options_;  // as asked for; the model's own values are not in them
    const bool person_ = stdin_is_terminal();
    std::vector<std::pair<std::string, std::string>> settings_;
    // Of the model that is open.
    SharedOptions shared_;
    text::ChatOptions chat_;
    decode::GenerateOptions generate_;
    LoadedModel loaded_;
    std::unique_ptr<model::Engine> engine_;
    std::optional<decode::Conversation> conversation_;
    std::optional<ChatState> state_;
    ProgressLine reading_{kPromptPatience, false};
};

Chat::Chat(const Command& command, ChatOptions options)
    : command_(command), options_(std::move(options)) {
    refuse_endless(STDIN_FILENO, "standard input");
    open(options_.shared, options_.chat);
    if (!options_.system.empty()) conversation_->set_system(options_.system);
}

// Opens a model in place of the one that is open. That stays where the new one is refused before
// its weights are read; else there is none after an error.
void Chat::open(const SharedOptions& shared, const text::ChatOptions& chat) {
    decode::GenerateOptions generate = options_.generate;
    LoadedModel loaded = load(shared, [&](const model::Model& model) {
        use_advice(command_, model.generation, generate);
        model::EngineOptions wanted = engine_options(shared);
        require_streaming(command_, options_.context);
        make_stream(options_.context, model.spec, generate.max_tokens, wanted, generate);
        use_diffusion(command_, options_.diffusion, model.spec, wanted, generate);
        static_cast<void>(text::ChatWriter(decode::require_tokenizer(model), chat));
        close();  // two models may not fit into the memory
        return wanted;
    });
    std::unique_ptr<model::Engine> engine = make_engine(loaded);
    note_block(options_.diffusion, engine->model().spec);
    generate_ = std::move(generate);
    if (generate_.max_tokens < 0)
        generate_.max_tokens = static_cast<int>(engine->options().context);
    generate_.keep = decode::Keep::words;  // for the history
    generate_.cancelled = [] { return InterruptGuard::pending(); };
    show_prompt(reading_, generate_);
    conversation_.emplace(*engine, "", chat, generate_.stream);
    loaded_ = std::move(loaded);
    engine_ = std::move(engine);
    shared_ = shared;
    chat_ = chat;
    state_.emplace(ChatState{*conversation_, generate_, settings_, loaded_.model->source,
                             engine_->options().context, engine_->model().spec.vocab,
                             generate_.stream});
    if (continues()) {
        remark(fmt::format(
            "{} has no chat template: it was not made for conversations, and continues the text "
            "that it is given (--chat-template FILE, or a format's name such as plain, makes it "
            "talk)",
            one_line(loaded_.model->source)));
    } else if (const std::string& notice = conversation_->writer().notice(); !notice.empty()) {
        remark(one_line(notice));
    }
    if (person_) greet();
}

void Chat::close() {
    state_.reset();
    conversation_.reset();
    engine_.reset();
    loaded_ = {};
}

void Chat::greet() const {
    const model::Stream stream = generate_.stream;
    note(fmt::format("{}: {}, {}. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.",
                     one_line(loaded_.model->source),
                     continues() ? "continues texts" : conversation_->writer().name(),
                     stream
                         ? fmt::format("no end: the first {} tokens and the latest {} are in view",
                                       stream.sinks, stream.window)
                         : fmt::format("{} tokens of context", engine_->options().context)));
    if (!continues()) return;
    std::string offers = "Type a beginning, or press Tab to take one of these:";
    for (const std::string_view one : text::text_beginnings()) offers.append("\n  ").append(one);
    note(offers);
}

Completions Chat::complete(std::string_view line) const {
    if (line.starts_with('/') || !conversation_ || !continues()) return complete_command(line);
    Completions found;
    for (const std::string_view one : text::text_beginnings()) {
        if (one.starts_with(line)) found.words.emplace_back(one);
    }
    return found;
}

// Goes on with what was said to the last model. `continued`: it continued texts.
void Chat::take_over(const std::vector<text::ChatMessage>& messages, bool continued) {
    if (messages.empty()) return;
    if (continued || continues()) {
        if (messages.size() > 1) remark("the conversation is cleared: a text is not one");
        return;
    }
    try {
        conversation_->restore(messages);
    } catch (const Error& error) {
        remark(fmt::format("the conversation is cleared: {}", one_line(error.what())));
    }
}

// /model NAME. After an error the model is the one before.
void Chat::switch_model(const std::string& name) {
    const SharedOptions shared = shared_;
    const text::ChatOptions chat = chat_;
    const std::vector<text::ChatMessage> messages = conversation_->messages();
    const bool continued = continues();
    const ChatState counts = *state_;
    const auto go_on = [&] {
        state_->answers = counts.answers;
        state_->tokens = counts.tokens;
        state_->decoded = counts.decoded;
        state_->seconds = counts.seconds;
        const auto changed = std::exchange(settings_, {});
        for (const auto& [option, value] : changed) {
            try {
                set_option_of_chat(*state_, option, value);
            } catch (const Error& error) {  // a token that only the other model has
                remark(one_line(error.what()));
            }
        }
        state_->unanswered = counts.unanswered;
        take_over(messages, continued);
    };
    // The tokenizer and the template were given for the first model.
    SharedOptions next = options_.shared;
    next.model = name;
    next.tokenizer.clear();
    text::ChatOptions next_chat = options_.chat;
    next_chat.template_file.clear();
    try {
        open(next, next_chat);
    } catch (const Error& error) {
        if (conversation_ || !decode::may_go_on(error.kind())) throw;
        complain(one_line(error.what()));
        open(shared, chat);
    } catch (const Interrupted&) {
        if (InterruptGuard::must_leave()) throw;
        InterruptGuard::clear();
        if (conversation_) return note("(the model stays)");
        open(shared, chat);
    }
    go_on();
}

void Chat::print_answer(const decode::Generated& made) const {
    if (options_.shared.json) {
        Json json = {{"role", "assistant"},
                     {"content", made.text},
                     {"stop_reason", decode::stop_reason_name(made.reason)},
                     {"prompt_tokens", made.prompt_tokens},
                     {"tokens", made.ids.size()},
                     {"tok_s", made.decode.tokens_per_second()},
                     {"forgotten_turns", conversation_->forgotten()}};
        if (generate_.stream) {
            json["fed_tokens"] = made.prefill.tokens;
            json["evicted"] = conversation_->evicted();
            json["first_left"] = conversation_->first_left();
        }
        out(json_line(json));
        return;
    }
    out("\n");
    std::string gone;
    if (const int turns = conversation_->forgotten()) {
        gone = fmt::format(", {} turns forgotten", turns);
    }
    if (const std::int64_t tokens = conversation_->evicted()) {
        gone = fmt::format(", {} left the window", tokens);
    }
    note(fmt::format("[{:.1f} tok/s, {:.1f} GB/s; {} tokens of {}{}]",
                     made.decode.tokens_per_second(), made.decode.bytes_per_second() / 1e9,
                     made.prompt_tokens, continues() ? "beginning" : "history", gone));
    // Said once per conversation: the model no longer sees everything.
    if (conversation_->first_left()) {
        remark(fmt::format(
            "the first words have left the window: the model sees the first {} tokens and the "
            "latest {} (--sinks, --window)",
            generate_.stream.sinks, generate_.stream.window));
    }
    tell_dropped();
}

// Says once which turns no longer fit into the context.
void Chat::tell_dropped() const {
    const std::vector<std::string>& dropped = conversation_->dropped();
    if (dropped.empty()) return;
    remark(fmt::format(
        "{} tokens of context are full: \"{}\" was forgotten with its answer{}",
        engine_->options().context, printable(dropped.front(), 60),
        dropped.size() > 1 ? fmt::format(", and {} turns after it", dropped.size() - 1) : ""));
}

// `again`: the last question is answered anew; `message` is it where it got no answer.
void Chat::answer(const std::string& message, bool again) {
    const bool shown = !options_.shared.json;
    std::optional<text::WordWrap> wrap;
    if (shown && obeys_codes(STDOUT_FILENO)) wrap.emplace(terminal_columns(STDOUT_FILENO));
    const auto show = [&](std::string_view text) {
        if (wrap) wrap->set_columns(terminal_columns(STDOUT_FILENO));
        out(wrap ? wrap->push(text) : text);
    };
    const bool last = again && message.empty();  // the last turn's question
    // A text is shown from its beginning on.
    std::string beginning;
    if (wrap && person_ && continues()) {
        beginning = last ? conversation_->messages().front().content : message;
    }
    const auto on_text = [&](std::string_view text) {
        reading_.remove();
        if (!shown) return true;
        if (!beginning.empty()) {
            const Paint faint = paint(STDOUT_FILENO, Look::faint);
            out(faint.begin);
            show(beginning);
            out(faint.end);
            beginning.clear();
        }
        show(text);
        return true;
    };
    reading_.begin(kReadingPrompt);
    decode::Generated made;
    try {
        made = last ? conversation_->answer_again(generate_, on_text)
                    : conversation_->answer(message, generate_, on_text);
    } catch (...) {
        reading_.remove();
        if (!last) state_->unanswered = message;
        throw;
    }
    reading_.remove();
    const bool none = made.reason == decode::StopReason::cancelled && made.ids.empty();
    state_->unanswered = none && !last ? message : "";
    if (!none || !shown) print_answer(made);
    ++state_->answers;
    state_->tokens += static_cast<std::int64_t>(made.ids.size());
    state_->last_prompt = made.prompt_tokens;
    state_->decoded += made.decode.tokens;
    state_->seconds += made.decode.seconds;
}

// False: the person leaves.
bool Chat::heed(Message& said) {
    const Slash what = said.one_line ? obey(*state_, said.text) : Slash::message;
    switch (what) {
        case Slash::leave:
            return false;
        case Slash::obeyed:
            break;
        case Slash::model:
            switch_model(said.text);
            break;
        case Slash::message:
        case Slash::again:
            answer(said.text, what == Slash::again);
            break;
    }
    return true;
}

int Chat::talk() {
    const std::unique_ptr<LineReader> reader =
        make_line_reader([this](std::string_view line) { return complete(line); });
    bool warned = false;  // for one Ctrl-C at an empty prompt
    for (;;) {
        Message said;
        const LineReader::Outcome outcome = next_message(*reader, said);
        if (outcome == LineReader::Outcome::end) break;
        if (outcome == LineReader::Outcome::interrupted) {
            if (InterruptGuard::must_leave()) return InterruptGuard::exit_code();
            InterruptGuard::clear();
            if (warned && said.text.empty()) break;
            warned = said.text.empty();
            out("\n");
            if (!warned) continue;  // Ctrl-C discarded what was typed
            note("(Ctrl-C again or Ctrl-D leaves)");
            continue;
        }
        warned = false;
        if (said.text.empty()) continue;
        // The cancelled answer stays in the history: the user saw it.
        InterruptGuard::set_patient(true);  // a second Ctrl-C still means the answer
        try {
            if (!heed(said)) return 0;
        } catch (const Error& error) {
            // The user can send something shorter.
            if (!person_ || !conversation_ || !decode::may_go_on(error.kind())) throw;
            complain(one_line(error.what()));
        }
        if (InterruptGuard::must_leave()) return InterruptGuard::exit_code();
        InterruptGuard::clear();  // first: a second Ctrl-C must not find the old flag
        InterruptGuard::set_patient(false);
    }
    if (person_) out("\n");
    return 0;
}

int chat(const Command& command, ChatOptions options) {
    const InterruptGuard guard;
    return Chat(command, std::move(options)).talk();
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
                    "A Jinja template to use instead of the model's own, or the name of a format: "
                    "plain, chatml, llama2, llama3, mistral, mistral-v1, mistral-v3, "
                    "mistral-tekken")
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
        "its vocabulary shows (ChatML, Llama-3, Mistral). A model with neither continues texts:\n"
        "every message is the beginning of one. /help lists what else can be said: /set, /regen,\n"
        "/undo, /model, /clear, /save, /load, /system, /stats, /exit. Several lines: end them "
        "with\n"
        "\\, or put \"\"\" before the first and after the last; what is pasted is one message. "
        "Ctrl-C\n"
        "stops an answer, Ctrl-D leaves.");
    command.callback([options, command, &action] {
        if (!command.given("--seed")) options->generate.sampling.seed = fresh_seed();
        action = [options, command] { return chat(command, *options); };
    });
}

}  // namespace mr::cli
