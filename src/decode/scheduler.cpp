#include "decode/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "decode/host_guess.h"
#include "decode/prompt.h"
#include "decode/scheduler_request.h"

namespace mr::decode {
namespace {

// Where a generation can be cancelled and a pass is slow (on the CPU), the first piece of a prompt
// is small, and pieces grow as long as passes are quick. Timing may decide this, because the bits
// of such an engine do not depend on where a prompt is cut (Engine::cut()).
constexpr std::int64_t kFirstPiece = 32;
constexpr double kQuickPass = 0.5;  // seconds
// Smallest piece of a prompt beside rows that decode, on such an engine.
constexpr std::int64_t kLeastPiece = 16;

// Makes room for `count` more tokens of a live sequence. Its ring of pages advances only by the
// pages that these tokens need, so that pages behind the window stay as long as possible and the
// sequence can be truncated by some tokens.
void turn_circle(model::KvCache& cache, model::SeqId seq, std::int64_t count) {
    const std::int64_t end = cache.length(seq) + count;
    const model::KvCache::Circle circle = cache.circle(seq);
    const std::int64_t pages = model::KvCache::pages_for(end);
    if (pages <= circle.end) return;
    cache.release_before(seq, (pages - circle.pages) * model::KvCache::kPageTokens);
    cache.reserve(seq, end);
}

}  // namespace

Scheduler::Scheduler(model::Engine& engine, observe::Recorder* recorder, int most)
    : engine_(engine), recorder_(recorder) {
    const int all = engine.options().max_sequences;
    most_ = static_cast<std::size_t>(most > 0 ? std::min(most, all) : all);
    if (!recorder_) return;
    engine_.watch(true);
    recorder_->attach(&engine_.ledger());
}

Scheduler::~Scheduler() {
    const auto close = [&](const Request& request) {
        if (request.slot != model::kNoSlot) engine_.close_slot(request.slot);
        if (!request.live && request.seq >= 0) engine_.cache().close(request.seq);
    };
    for (const RequestPtr& request : running_) close(*request);
    for (const RequestPtr& request : waiting_) close(*request);  // admit() threw
    if (!recorder_) return;
    recorder_->attach(nullptr);
    engine_.watch(false);
}

Scheduler::Id Scheduler::add(std::vector<std::int32_t> prompt, GenerateOptions options,
                             OnText on_text, model::SeqId live) {
    const text::Tokenizer* tokenizer = engine_.model().tokenizer.get();
    ops::check_sample_params(options.sampling);
    ops::check_adjustments(options.adjust, engine_.model().spec.vocab);
    if (prompt.empty()) {
        throw Error::input({.field = "prompt",
                            .problem = "there is nothing to start from: the prompt is empty and "
                                       "the model's tokenizer has no beginning-of-text token",
                            .remedy = "give a prompt with -p"});
    }
    const std::int64_t context =
        options.stream ? model::Engine::kMostPositions : engine_.most_positions();
    const auto tokens = static_cast<std::int64_t>(prompt.size());
    const bool answers = options.max_tokens > 0 || options.prompt_logprobs < 0;
    if (tokens + (answers ? 1 : 0) > context) {
        throw Error::input(
            {.field = "prompt",
             .value = std::to_string(tokens) + " tokens",
             .problem = "does not fit into the context of " + std::to_string(context) +
                        (answers ? " (one token must be left for the answer)" : ""),
             .remedy = "shorten it, use --context streaming, or raise --ctx (and --pool "
                       "where it is given)"});
    }
    engine_.require_tokens(prompt);  // an invalid request must not end the others
    engine_.require_tokens(options.stop_ids);
    auto request = std::make_unique<Request>();
    request->id = next_id_++;
    request->live = live >= 0;
    request->seq = live;
    const std::int64_t held = request->live ? engine_.cache().length(live) : 0;
    MR_CHECK(held < tokens, "a live sequence holds a beginning of its prompt");
    // The last drawn token is not fed back, so it needs no position.
    request->most = std::min<std::int64_t>(options.max_tokens, context - tokens + 1);
    request->prefix = tokens;
    request->cut = engine_.cut();
    request->out.prompt_tokens = tokens;
    if (tokenizer) {
        request->text.emplace(
            *tokenizer, options.stop, begins_text(*tokenizer, prompt),
            TextStream::Shown{.stop = options.include_stop, .special = options.show_special});
    }
    request->prompt = std::move(prompt);
    request->options = std::move(options);
    request->on_text = std::move(on_text);
    request->publishes = request->options.share_prompt && !request->scores();
    MR_CHECK(!request->scores() || !request->live, "a prompt that is scored is computed whole");
    if (std::unique_ptr<ops::TokenFilter> filter = filter_of(*request)) {
        request->filter = std::make_unique<DrawnFilter>(
            std::move(filter),
            [this, r = request.get()](std::int32_t token) { return ends_text(r->options, token); });
    }
    if (engine_.model().spec.diffusion) open_blocks(*request);
    // Where a prompt may be cut anywhere, all forms give the same bits.
    request->form =
        engine_.cut() == 1 ? model::Form::prompt : model::form_of_prompt(request->prefix - held);
    request->plain = engine_.plain_positions(request->options.stream, request->form);
    const Id id = request->id;
    if (request->most <= 0 && !request->scores()) {
        ended_.emplace(id, std::pair(std::move(request->out), nullptr));
    } else {
        waiting_.push_back(std::move(request));
    }
    return id;
}

void Scheduler::cancel(Id id) {
    for (const RequestPtr& request : waiting_) request->asked_to_stop |= request->id == id;
    for (const RequestPtr& request : running_) request->asked_to_stop |= request->id == id;
}

void Scheduler::guess_on_host(Id id) {
    for (const RequestPtr& request : waiting_) request->on_host |= request->id == id;
    for (const RequestPtr& request : running_) request->on_host |= request->id == id;
}

std::optional<Generated> Scheduler::take(Id id) {
    const auto found = ended_.find(id);
    if (found == ended_.end()) return std::nullopt;
    auto [generated, error] = std::move(found->second);
    ended_.erase(found);
    if (error) std::rethrow_exception(error);
    return generated;
}

bool Scheduler::step() {
    heed_cancellations();
    admit();
    const Moment start = Moment::now();
    const Ledger before = engine_.ledger();
    const bool decodes = launch();
    // A pass of prompts alone has nothing beside it: waiting for it gives its own time.
    if (!decodes) engine_.synchronize();
    tell_prompts();
    read();
    sweep();
    if (recorder_) recorder_->end_step();
    Phase& phase = decodes ? totals_.decode : totals_.prefill;
    const double seconds = Moment::now().seconds_since(start);
    phase.seconds += seconds;
    phase.ledger.add(engine_.ledger().since(before));
    if (piece_limit_ > 0 && !pieces_.empty() && seconds < kQuickPass) {
        piece_limit_ = std::min<std::int64_t>(2 * piece_limit_, engine_.options().max_batch);
    }
    return !waiting_.empty() || !running_.empty();
}

// How much of their prompts the requests of the pass know, before the first of their text.
void Scheduler::tell_prompts() {
    for (const auto& [request, piece] : pieces_) {
        const Request& r = *request;
        if (r.options.on_reading) r.options.on_reading(r.done, r.prefix);
    }
}

void Scheduler::heed_cancellations() {
    const auto wanted = [](const Request& request) {
        return request.asked_to_stop || (request.options.cancelled && request.options.cancelled());
    };
    for (RequestPtr& request : waiting_) {
        if (!wanted(*request)) continue;
        request->out.reason = StopReason::cancelled;
        ended_.emplace(request->id, std::pair(std::move(request->out), nullptr));
        request.reset();
    }
    std::erase(waiting_, nullptr);
    for (const RequestPtr& request : running_) {
        if (!request->ended && wanted(*request)) finish(*request, StopReason::cancelled);
    }
    sweep();
}

// ---- admission --------------------------------------------------------------------------------

// First come, first served: a request that does not fit yet is not overtaken.
void Scheduler::admit() {
    while (!waiting_.empty() && running_.size() < most_ && admit(*waiting_.front())) {
        running_.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
    }
}

// The request with the same prompt whose prompt is still being computed.
Scheduler::Request* Scheduler::leader_of(const Request& request) const {
    for (const RequestPtr& other : running_) {
        if (!other->ended && !other->leader && !other->prefilled() && other->shares &&
            other->options.cache_salt == request.options.cache_salt &&
            other->options.stream == request.options.stream && other->prompt == request.prompt) {
            return other.get();
        }
    }
    return nullptr;
}

// Opens a sequence with room for prompt and answer. `copy`: a partly filled page of a known prefix
// that must be copied.
bool Scheduler::reserve(Request& request, std::optional<model::KvCache::PageCopy>& copy) {
    model::KvCache& cache = engine_.cache();
    if (request.live) {
        request.shares = false;
        request.done = cache.length(request.seq);
        return true;
    }
    const auto tokens = static_cast<std::int64_t>(request.prompt.size());
    const std::int64_t length =
        tokens + std::max<std::int64_t>(request.most, 1) - (request.blocks ? 0 : 1);
    for (const bool shares : {true, false}) {
        if (shares && !request.publishes) continue;
        request.seq = cache.open();
        cache.set_stream(request.seq, request.options.stream);
        request.shares = shares;
        request.leader = shares ? leader_of(request) : nullptr;
        bool room = true;
        if (request.leader) {
            room = cache.fork(request.seq, request.leader->seq, request.prefix, request.copy);
        } else if (shares) {
            // The last token is computed in any case, for its logits.
            const std::int64_t most = request.blocks ? request.prefix : tokens - 1;
            request.done =
                cache.adopt(request.seq, request.prompt, request.form, request.cut,
                            std::min(most, request.plain), copy, request.options.cache_salt);
        }
        if (room && engine_.try_reserve(request.seq, shares ? tokens : 0, length)) return true;
        cache.close(request.seq);
        request.seq = -1;
        request.done = 0;
        request.leader = nullptr;
        request.copy.reset();
        copy.reset();
        if (engine_.window(request.options.stream) == 0) break;  // no fewer pages without sharing
    }
    return false;
}

bool Scheduler::admit(Request& request) {
    std::optional<model::KvCache::PageCopy> copy;
    if (!reserve(request, copy)) return false;
    if (copy) engine_.copy_page(copy->to, copy->from);
    if (!request.blocks && request.most > 0) open_slot(request);
    request.ledger_before = engine_.ledger();
    if (request.leader) {
        request.leader->followers.push_back(&request);
        if (!request.blocks) request.leader->draws.push_back(request.slot);
    }
    request.out.found = request.done;
    totals_.found += request.done;
    if (request.options.cancelled && engine_.cut() == 1 && piece_limit_ == 0) {
        piece_limit_ = kFirstPiece;
    }
    return true;
}

void Scheduler::open_slot(Request& request) {
    model::DrawParams params;
    params.sampling = request.options.sampling;
    params.window = request.options.repeat_window;
    if (params.window < 0) params.window = model::Generation::kWholeText;
    // In a stream, a penalty on the whole text applies to the visible part: the list has a limit.
    if (request.options.stream) {
        params.window = std::min(params.window, model::most_recent(request.options.stream));
    }
    const auto recent = std::min(request.prompt.size(), static_cast<std::size_t>(params.window));
    params.recent.assign(request.prompt.end() - static_cast<std::ptrdiff_t>(recent),
                         request.prompt.end());
    params.adjust = request.options.adjust;
    params.filter = request.filter.get();
    params.logprobs = request.options.logprobs;
    request.slot = engine_.open_slot(request.seq, params);
    if (request.filter) {
        request.filter->follow([this, slot = request.slot](std::int64_t number) {
            return engine_.wait(slot, static_cast<std::uint64_t>(number)).id;
        });
    }
    request.draws = {request.slot};
}

// ---- a pass -----------------------------------------------------------------------------------

// Prompt tokens in a pass that decodes `rows` rows. Fewer than 256 leave a GPU's tensor cores
// idle. On a CPU a prompt token takes as long as a decoded one, and the decoding rows wait for
// it.
std::int64_t Scheduler::pieces_beside(std::int64_t rows) const {
    return engine_.cut() == 1 ? kLeastPiece + 2 * rows : kPiecesBesideDecode;
}

// Adds pieces of prompts in the order of admission, up to `budget` tokens. The first piece may
// exceed the budget up to the next allowed cut, if the pass has `room` for it.
void Scheduler::add_pieces(std::int64_t budget, std::int64_t room) {
    if (piece_limit_ > 0) budget = std::min(budget, piece_limit_);
    for (const RequestPtr& request : running_) {
        Request& r = *request;
        if (r.ended || r.leader || r.prefilled() || r.scores()) continue;
        std::int64_t piece = std::min(budget, r.prefix - r.done);
        const bool last = r.done + piece == r.prefix;
        if (!last) piece = (r.done + piece) / r.cut * r.cut - r.done;
        const std::int64_t least = std::min(r.cut - r.done % r.cut, r.prefix - r.done);
        const bool first = pieces_.empty() && piece <= 0 && least <= room;
        if (first) piece = least;
        if (piece <= 0) return;
        budget -= piece;
        if (r.live) turn_circle(engine_.cache(), r.seq, piece);
        const bool whole = r.done + piece == r.prefix;
        items_.push_back(
            {.seq = r.seq,
             .tokens = std::span(r.prompt).subspan(static_cast<std::size_t>(r.done),
                                                   static_cast<std::size_t>(piece)),
             .logits = model::BatchItem::Logits::none,
             .form = r.form,
             .draw = whole ? std::span<const model::Slot>(r.draws) : std::span<const model::Slot>(),
             .mask = r.blocks ? r.blocks->mask() : std::nullopt});
        pieces_.emplace_back(&r, piece);
    }
}

// Returns whether the pass decodes.
bool Scheduler::launch() {
    if (engine_.model().spec.diffusion) return launch_blocks();
    if (score_piece()) return false;
    items_.clear();
    pieces_.clear();
    for (const RequestPtr& request : running_) {
        Request& r = *request;
        if (r.ended || r.launched == 0 || r.launched >= r.most) continue;
        if (r.live) turn_circle(engine_.cache(), r.seq, 1);
        items_.push_back({.seq = r.seq,
                          .logits = model::BatchItem::Logits::none,
                          .feed = r.slot,
                          .draw = {&r.slot, 1}});
    }
    // Rows that only have their first token can wait for the second: while there are no others,
    // prompts continue in whole passes. Of many requests that arrive together, all prompts come
    // first.
    const auto young = [](const RequestPtr& r) { return r->ended || r->launched <= 1; };
    const auto unfilled = [](const RequestPtr& r) {
        return !r->ended && !r->leader && !r->prefilled() && !r->scores();
    };
    if (std::all_of(running_.begin(), running_.end(), young) &&
        std::any_of(running_.begin(), running_.end(), unfilled)) {
        items_.clear();
    }
    const std::size_t fed = items_.size();
    const std::int64_t most = engine_.options().max_batch;
    add_pieces(fed > 0 ? std::min(most, pieces_beside(static_cast<std::int64_t>(fed))) : most,
               most);
    if (items_.empty()) return true;
    submit(static_cast<std::int64_t>(fed));
    totals_.decode.tokens += static_cast<std::int64_t>(fed);
    if (fed > 0) {
        for (const RequestPtr& request : running_) {
            Request& r = *request;
            if (!r.ended && r.launched > 0 && r.launched < r.most) r.drew();
        }
    }
    for (const auto& [request, piece] : pieces_) launched(*request, piece);
    for (const RequestPtr& request : running_) {  // a prompt is published before it leaves
        if (!request->ended && !request->live && request->prefilled()) {
            engine_.release(request->seq);
        }
    }
    return fed > 0;
}

// Submits the pass described by items_ and pieces_; `rows` of it decode. `guesses`: fill guesses_
// for places_ instead of returning logits.
Tensor Scheduler::submit(std::int64_t rows, bool guesses) {
    std::int64_t tokens = 0;
    for (const auto& [request, piece] : pieces_) tokens += piece;
    ++totals_.passes;
    totals_.mixed += rows > 0 && !pieces_.empty();
    totals_.prefill.tokens += tokens;
    const char* const phase = rows == 0 ? "prefill" : pieces_.empty() ? "decode" : "mixed";
    const observe::Span span(recorder_, phase);
    if (recorder_) recorder_->begin_step(phase, tokens + rows, guesses && rows > 0);
    const double begin = recorder_ ? recorder_->now() : 0;
    const bool on_host = std::any_of(filling_.begin(), filling_.end(),
                                     [](const Request* request) { return request->on_host; });
    Tensor logits;
    if (guesses && on_host) {
        decode::guess_on_host(engine_, engine_.submit(items_), places_, guesses_, host_scratch_);
    } else if (guesses) {
        engine_.submit(items_, places_, guesses_);
    } else {
        logits = engine_.submit(items_);
    }
    if (const std::vector<Stage> stages = engine_.take_stages(); recorder_ && !stages.empty()) {
        recorder_->add_stages(stages, begin, engine_.stage_bytes() * stages.size());
    }
    return logits;
}

// A piece of the request's prompt was launched.
void Scheduler::launched(Request& r, std::int64_t piece) {
    r.done += piece;
    r.out.prefill.tokens += piece;
    if (!r.prefilled()) return;
    model::KvCache& cache = engine_.cache();
    if (!r.live && r.publishes) {  // a live sequence overwrites its pages
        const auto plain = static_cast<std::size_t>(std::min(r.done, r.plain));
        cache.publish(r.seq, std::span(r.prompt).first(plain), r.form, false, r.options.cache_salt);
    }
    if (!r.blocks && r.most > 0) r.drew();
    r.ledger_prefilled = engine_.ledger();
    for (Request* const follower : r.followers) {
        cache.advance(follower->seq, r.done);
        if (follower->copy) engine_.copy_page(follower->copy->to, follower->copy->from);
        follower->done = follower->out.found = r.done;
        totals_.found += r.done;
        if (!r.blocks) follower->drew();
        follower->leader = nullptr;
        follower->ledger_prefilled = engine_.ledger();
    }
    r.followers.clear();
    if (!r.blocks && r.most > 0) r.draws = {r.slot};
}

// ---- the end of a request ---------------------------------------------------------------------

void Scheduler::finish(Request& r, StopReason reason) {
    model::KvCache& cache = engine_.cache();
    r.ended = true;
    r.out.reason = reason;
    r.out.drawn = r.known;
    if (const model::Stream& s = r.options.stream) {
        const std::int64_t seen = std::int64_t{s.sinks} + s.window;
        r.out.evicted = std::max<std::int64_t>(cache.length(r.seq) - seen, 0);
    }
    if (r.known > 0) r.out.decode.seconds = Moment::now().seconds_since(r.first_token);
    if (r.blocks) {
        r.out.passes = r.blocks->passes();
        r.out.decode.ledger = engine_.ledger().since(r.ledger_prefilled);
    } else if (r.launched > 0) {
        r.out.decode.ledger = engine_.ledger().since(r.ledger_prefilled);
        // Steps that ran ahead of the end gave no token of its text.
        totals_.decode.tokens -= r.launched - std::max<std::int64_t>(r.known, 1);
    }
    if (r.leader) {
        std::erase(r.leader->followers, &r);
        std::erase(r.leader->draws, r.slot);
    }
    if (!r.followers.empty()) {  // the first follower continues from what is computed of the prompt
        Request& next = *r.followers.front();
        // The follower's last page is its own, and empty.
        next.done =
            std::min(r.done, r.prefix / model::KvCache::kPageTokens * model::KvCache::kPageTokens);
        cache.advance(next.seq, next.done);
        next.out.found = next.done;
        totals_.found += next.done;
        next.leader = nullptr;
        next.copy.reset();
        for (std::size_t i = 1; i < r.followers.size(); ++i) {
            Request& other = *r.followers[i];
            other.leader = &next;
            if (other.copy) {
                other.copy->from = cache.page_at(next.seq, next.prefix);
            }
            next.followers.push_back(&other);
            if (!next.blocks) next.draws.push_back(other.slot);
        }
        r.followers.clear();
    }
    if (r.slot != model::kNoSlot) engine_.close_slot(r.slot);
    r.slot = model::kNoSlot;
    // The computed part of the prompt can be found again. Where forms do not differ, so can the
    // generated tokens: the next turn of a conversation starts there.
    if (!r.leader && !r.live && r.publishes) {
        const bool one_form = engine_.cut() == 1;
        // For a diffusion text, only the tokens that passes have committed to the cache.
        const auto all =
            r.blocks ? std::min(r.done, cache.length(r.seq))
                     : static_cast<std::int64_t>(r.prompt.size()) + (one_form ? r.known : 0);
        const auto plain = static_cast<std::size_t>(std::min(all, r.plain));
        std::vector<std::int32_t> tokens = r.prompt;
        tokens.resize(std::min(tokens.size(), plain));
        const auto drawn = static_cast<std::ptrdiff_t>(plain - tokens.size());
        tokens.insert(tokens.end(), r.out.ids.begin(), r.out.ids.begin() + drawn);
        cache.publish(r.seq, tokens, r.form, one_form && !r.blocks && all <= r.plain,
                      r.options.cache_salt);
    }
    if (!r.keeps_words()) r.out.ids = {};
    // Last, because it may throw: all state is consistent by now.
    if (r.text && !r.refused && !r.error) {
        const std::string rest = r.text->finish();
        if (r.keeps_words()) r.out.text += rest;
        r.out.stopped_by = r.text->stopped_by();
        if (!rest.empty() && r.on_text) r.on_text(rest);
    }
}

// Removes ended requests.
void Scheduler::sweep() {
    for (RequestPtr& request : running_) {
        if (!request->ended) continue;
        if (!request->live) engine_.cache().close(request->seq);
        ended_.emplace(request->id, std::pair(std::move(request->out), request->error));
        request.reset();
    }
    std::erase(running_, nullptr);
}

}  // namespace mr::decode
