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
    if (!system.empty()) messages_.push_back({"system", std::move(system)});
    kept_ = messages_.size();
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
    MR_CHECK((messages.size() - kept) % 2 == 0, "turns are whole");
    // Templates look at the last message: add an empty one, as the next question will be.
    messages.push_back({"user", ""});
    static_cast<void>(writer_.encode(messages, true));
    messages.pop_back();
    messages_ = std::move(messages);
    kept_ = kept;
    dropped_.clear();
}

std::vector<std::int32_t> Conversation::encode() const { return writer_.encode(messages_, true); }

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
    text::ChatText text = writer_.write(messages_, true);
    std::vector<std::int32_t> prompt = thread_.encode(text);
    Generated made = live_->generate(prompt, options, on_text);
    // A turn without an answer does not count, and the thread stays where it was.
    if (made.ids.empty()) return made;
    thread_.go_on(std::move(text), std::move(prompt), made.ids);
    first_left_ = evicted_ == 0 && made.evicted > 0;
    evicted_ = made.evicted;
    return made;
}

Generated Conversation::answer(const std::string& message, GenerateOptions options,
                               const Session::OnText& on_text) {
    const std::vector<text::ChatMessage> before = messages_;
    const int forgotten_before = forgotten_;
    messages_.push_back({"user", message});
    dropped_.clear();
    first_left_ = false;
    try {
        for (std::string& stop : writer_.stops()) options.stop.push_back(std::move(stop));
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

}  // namespace mr::decode
