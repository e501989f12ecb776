#include "decode/conversation.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "decode/prompt.h"

namespace mr::decode {

Conversation::Conversation(model::Engine& engine, std::string system, text::ChatOptions chat,
                           const model::Stream& stream)
    : engine_(engine),
      session_(engine),
      writer_(require_tokenizer(engine.model()), std::move(chat)),
      thread_(writer_, require_tokenizer(engine.model())) {
    if (stream) live_.emplace(engine, stream);
    if (!system.empty()) require_talk();
    if (!system.empty()) messages_.push_back({"system", std::move(system)});
    kept_ = messages_.size();
}

// A system prompt has no place in a text that is continued.
void Conversation::require_talk() const {
    if (!writer_.continues_texts()) return;
    throw Error::usage(
        {.field = "system prompt",
         .problem = "the model has no chat template: it continues texts, and has no "
                    "place for one",
         .remedy = "name a format with --chat-template, as in --chat-template plain"});
}

void Conversation::clear() {
    messages_.resize(kept_);
    forgotten_ = 0;
    evicted_ = 0;
}

void Conversation::set_system(std::string words) {
    std::vector<text::ChatMessage> messages;
    if (!words.empty()) messages.push_back({"system", std::move(words)});
    messages.insert(messages.end(), messages_.begin() + static_cast<std::ptrdiff_t>(kept_),
                    messages_.end());
    take(std::move(messages));
}

void Conversation::restore(std::vector<text::ChatMessage> messages) {
    take(std::move(messages));
    forgotten_ = 0;
    evicted_ = 0;
}

void Conversation::take(std::vector<text::ChatMessage> messages) {
    const std::size_t kept = !messages.empty() && messages[0].role == "system" ? 1 : 0;
    if (kept > 0) require_talk();
    MR_CHECK((messages.size() - kept) % 2 == 0, "turns are whole");
    // Templates look at the last message: add an empty one, as the next question will be.
    messages.push_back({"user", ""});
    static_cast<void>(writer_.encode(messages, true));
    messages.pop_back();
    messages_ = std::move(messages);
    kept_ = kept;
    dropped_.clear();
}

std::vector<std::int32_t> Conversation::encode() const {
    if (writer_.continues_texts()) {
        return encode_prompt(engine_.model(), messages_.back().content);
    }
    return writer_.encode(messages_, true);
}

// A turn is a question and its answer.
void Conversation::forget_oldest() {
    const auto first = messages_.begin() + static_cast<std::ptrdiff_t>(kept_);
    dropped_.push_back(first->content);
    messages_.erase(first, first + 2);
    ++forgotten_;
}

Generated Conversation::generate(const GenerateOptions& options, const Session::OnText& on_text) {
    // An eighth of the context stays free for the answer, as long as there is a turn to forget.
    const std::int64_t context = engine_.options().context;
    const auto most = static_cast<std::size_t>(context - context / 8);
    std::vector<std::int32_t> prompt = encode();
    while (prompt.size() > most && messages_.size() > kept_ + 1) {
        forget_oldest();
        prompt = encode();
    }
    return session_.generate(prompt, options, on_text);
}

Generated Conversation::generate_live(const GenerateOptions& options,
                                      const Session::OnText& on_text) {
    const bool talk = !writer_.continues_texts();
    text::ChatText text;
    if (talk) text = writer_.write(messages_, true);
    std::vector<std::int32_t> prompt = talk ? thread_.encode(text) : encode();
    Generated made = live_->generate(prompt, options, on_text);
    // A turn without an answer does not count, and the thread stays where it was.
    if (made.ids.empty()) return made;
    if (talk) thread_.go_on(std::move(text), std::move(prompt), made.ids);
    first_left_ = evicted_ == 0 && made.evicted > 0;
    evicted_ = made.evicted;
    return made;
}

Generated Conversation::answer(const std::string& message, GenerateOptions options,
                               const Session::OnText& on_text) {
    const std::vector<text::ChatMessage> before = messages_;
    const int forgotten_before = forgotten_;
    const bool talk = !writer_.continues_texts();
    if (!talk) clear();
    messages_.push_back({"user", message});
    dropped_.clear();
    first_left_ = false;
    try {
        if (talk) {
            for (std::string& stop : writer_.stops()) options.stop.push_back(std::move(stop));
        }
        Generated made = live_ ? generate_live(options, on_text) : generate(options, on_text);
        if (made.reason == StopReason::cancelled && made.ids.empty()) {
            messages_ = before;  // cancelled before there was an answer
            forgotten_ = forgotten_before;
            dropped_.clear();
            return made;
        }
        messages_.push_back({"assistant", made.text});
        return made;
    } catch (...) {
        messages_ = before;  // a failed turn does not count
        forgotten_ = forgotten_before;
        dropped_.clear();
        throw;
    }
}

std::optional<std::string> Conversation::undo() {
    if (turns() == 0) return std::nullopt;
    messages_.pop_back();
    std::string question = std::move(messages_.back().content);
    messages_.pop_back();
    return question;
}

Generated Conversation::answer_again(GenerateOptions options, const Session::OnText& on_text) {
    MR_CHECK(turns() > 0, "an answer is made anew where there is one");
    const std::vector<text::ChatMessage> before = messages_;
    const int forgotten_before = forgotten_;
    const std::string question = *undo();
    const auto put_back = [&] {
        messages_ = before;
        forgotten_ = forgotten_before;
    };
    try {
        Generated made = answer(question, std::move(options), on_text);
        if (made.reason == StopReason::cancelled && made.ids.empty()) put_back();
        return made;
    } catch (...) {
        put_back();
        throw;
    }
}

}  // namespace mr::decode
