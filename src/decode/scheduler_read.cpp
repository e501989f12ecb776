// Reads draws and turns tokens into text.
#include <algorithm>

#include "core/error.h"
#include "decode/least_tokens.h"
#include "decode/scheduler_request.h"

namespace mr::decode {
namespace {

bool is_stop_id(const GenerateOptions& options, std::int32_t token) {
    return std::find(options.stop_ids.begin(), options.stop_ids.end(), token) !=
           options.stop_ids.end();
}

}  // namespace

const char* stop_reason_name(StopReason reason) {
    switch (reason) {
        case StopReason::length:
            return "length";
        case StopReason::end_of_text:
            return "end_of_text";
        case StopReason::stop_string:
            return "stop_string";
        case StopReason::context_full:
            return "context_full";
        case StopReason::cancelled:
            return "cancelled";
    }
    return "?";
}

// Waits for draws that keep the engine from running ahead, and for all of them once nothing is left
// to launch. The last draws of a text are not waited for while others continue: the engine would
// run dry, and all texts would get their tokens late.
void Scheduler::read() {
    // After a pass that launched nothing there is nothing to run ahead of, though texts may wait
    // for pages.
    const bool more =
        !items_.empty() && (!waiting_.empty() ||
                            std::any_of(running_.begin(), running_.end(), [](const RequestPtr& r) {
                                return !r->ended && r->launched < r->most;
                            }));
    // Reads one token of each text in turn, so that no text waits for another's next token. The
    // last tokens come step by step, since callers pass tokens on between steps.
    for (bool any = true; any;) {
        any = false;
        for (const RequestPtr& request : running_) {
            Request& r = *request;
            if (r.ended || r.known >= r.launched) continue;
            const bool due = r.launched - r.known > ahead_of(r) || (r.launched >= r.most && !more);
            if (!due && !engine_.ready(r.slot, static_cast<std::uint64_t>(r.known))) continue;
            read_one(r);
            any = more;
        }
    }
}

// How many draws of the text may be in flight after a pass was launched. A live sequence must not
// hold a token that its text lacks. With a filter, only the draw for which it has just made the
// mask.
std::int64_t Scheduler::ahead_of(const Request& r) const {
    const std::int64_t ahead = engine_.ahead();
    return r.live ? 0 : r.filter ? std::min<std::int64_t>(ahead, 1) : ahead;
}

bool Scheduler::ends_text(const GenerateOptions& options, std::int32_t token) const {
    if (is_stop_id(options, token)) return true;
    if (options.ignore_end && !options.filter) return false;
    const text::Tokenizer* tokenizer = engine_.model().tokenizer.get();
    return (tokenizer && tokenizer->is_end_of_generation(token)) ||
           engine_.model().generation.ends_at(token);
}

// None: all tokens may come.
std::unique_ptr<ops::TokenFilter> Scheduler::filter_of(const Request& r) {
    std::unique_ptr<ops::TokenFilter> own;
    if (r.options.filter) own = r.options.filter();
    if (r.options.min_tokens <= 0) return own;
    const std::int64_t vocab = engine_.model().spec.vocab;
    if (!model_ends_) {
        model_ends_.emplace();
        for (std::int32_t id = 0; id < vocab; ++id) {
            if (ends_text({}, id)) model_ends_->push_back(id);
        }
    }
    std::vector<std::int32_t> ends = r.options.stop_ids;
    if (!r.options.ignore_end || own) {
        ends.insert(ends.end(), model_ends_->begin(), model_ends_->end());
    }
    if (ends.empty()) return own;
    return std::make_unique<LeastTokens>(std::move(own), ends, r.options.min_tokens, vocab);
}

void Scheduler::read_one(Request& r) {
    ops::Sampled drawn;
    try {
        drawn = engine_.wait(r.slot, static_cast<std::uint64_t>(r.known));
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        return fail(r, error);
    }
    if (r.known++ == 0) {
        r.first_token = Moment::now();
        r.out.prefill.seconds = r.first_token.seconds_since(r.start);
        r.out.prefill.ledger = r.ledger_prefilled.since(r.ledger_before);
    } else {
        ++r.out.decode.tokens;
    }
    const std::int32_t token = drawn.id;
    if (r.keeps_id()) r.out.ids.push_back(token);
    if (r.options.keep == Keep::all) r.out.confidence.push_back(drawn.confidence);
    if (r.options.logprobs >= 0) {
        if (!r.keeps_words()) r.out.logprobs.clear();
        r.out.logprobs.push_back(engine_.logprobs(r.slot, static_cast<std::uint64_t>(r.known - 1)));
    }
    take_token(r, token);
}

// Logits that are not finite end only this request; the error names the model.
void Scheduler::fail(Request& r, const Error& error) {
    ErrorInfo info = error.info();
    info.file = engine_.model().source;
    r.error = std::make_exception_ptr(Error(error.kind(), info));
    finish(r, StopReason::cancelled);
}

void Scheduler::deliver(Request& r, const std::string& text) {
    const observe::Span span(recorder_, "print");
    if (r.keeps_words()) r.out.text += text;
    r.refused = !text.empty() && r.on_text && !r.on_text(text);
}

// Handles a new token: it becomes text, or ends it.
void Scheduler::take_token(Request& r, std::int32_t token) {
    const auto tell = [&] {
        if (!r.options.on_token) return;
        r.options.on_token(token, r.out.logprobs.empty() ? nullptr : &r.out.logprobs.back());
    };
    if (ends_text(r.options, token)) {
        r.out.end_token = !(r.options.include_stop && is_stop_id(r.options, token));
        if (!r.out.end_token && r.text) deliver(r, r.text->push(token));
        finish(r, StopReason::end_of_text);  // delivers text that was held back
        return tell();
    }
    tell();
    if (r.filter) r.filter->accept(token);
    if (r.text) {
        deliver(r, r.text->push(token, r.known > r.options.min_tokens));
        if (r.refused) return finish(r, StopReason::cancelled);
        if (r.text->stopped()) return finish(r, StopReason::stop_string);
    }
    // Only an end token could be drawn next.
    if (r.filter && r.filter->finished()) return finish(r, StopReason::end_of_text);
    if (r.known < r.most) return;
    finish(r, r.known >= r.options.max_tokens ? StopReason::length : StopReason::context_full);
}

}  // namespace mr::decode
