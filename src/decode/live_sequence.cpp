#include "decode/live_sequence.h"

#include <algorithm>

#include "core/error.h"
#include "decode/scheduler.h"

namespace mr::decode {

Generated LiveSequence::generate(std::span<const std::int32_t> prompt, GenerateOptions options,
                                 const OnText& on_text) {
    MR_CHECK(engine_.model().tokenizer != nullptr, "generation needs a tokenizer");
    if (options.max_tokens <= 0) return {};
    const auto known = static_cast<std::size_t>(
        std::mismatch(tokens_.begin(), tokens_.end(), prompt.begin(), prompt.end()).first -
        tokens_.begin());
    // The last token is fed in any case, for its logits.
    go_back(std::min(known, prompt.empty() ? 0 : prompt.size() - 1));
    options.stream = stream_;
    MR_CHECK(options.keep != Keep::nothing, "the next turn is compared with what was drawn");
    try {
        Scheduler scheduler(engine_, options.recorder);
        const Scheduler::Id id =
            scheduler.add({prompt.begin(), prompt.end()}, options, on_text, seq_);
        while (scheduler.step()) {
        }
        Generated made = *scheduler.take(id);
        const auto length = static_cast<std::size_t>(engine_.cache().length(seq_));
        tokens_.assign(prompt.begin(), prompt.end());
        tokens_.insert(tokens_.end(), made.ids.begin(), made.ids.end());
        MR_CHECK(length <= tokens_.size(), "a live sequence holds its prompt and what was drawn");
        tokens_.resize(length);
        return made;
    } catch (...) {
        close();
        throw;
    }
}

// The next token sees the window before it; if pages of that window are gone, the sequence starts
// anew.
void LiveSequence::go_back(std::size_t length) {
    if (seq_ < 0) return open();
    if (length == tokens_.size()) return;
    model::KvCache& cache = engine_.cache();
    const std::int64_t base = cache.base(seq_);
    const auto seen = static_cast<std::int64_t>(length) - engine_.window(stream_) + 1;
    if (base > 0 && seen < base) {
        close();
        return open();
    }
    cache.truncate(seq_, static_cast<std::int64_t>(length));
    tokens_.resize(length);
}

void LiveSequence::open() {
    model::KvCache& cache = engine_.cache();
    seq_ = cache.open();
    cache.set_stream(seq_, stream_);
    if (engine_.try_reserve(seq_, 0, model::Engine::kMostPositions)) return;
    close();
    throw Error::device({.field = "--pool",
                         .value = std::to_string(engine_.options().pool),
                         .problem = "the KV cache has no room for sinks and window",
                         .remedy = "use a larger --pool or a shorter --window"});
}

void LiveSequence::close() {
    if (seq_ >= 0) engine_.cache().close(seq_);
    seq_ = -1;
    tokens_.clear();
}

}  // namespace mr::decode
