// Diffusion texts (decode/diffusion.h): a pass computes the open block of each, all at their own
// steps, and pieces of prompts beside them.
#include <algorithm>
#include <numeric>
#include <string>

#include "core/error.h"
#include "decode/scheduler_request.h"

namespace mr::decode {

void Scheduler::open_blocks(Request& r) {
    const model::ModelSpec& spec = engine_.model().spec;
    const auto refuse = [](const char* field, const char* problem, const char* remedy) {
        throw Error::usage({.field = field, .problem = problem, .remedy = remedy});
    };
    if (r.options.stream) {
        refuse("--context", "diffusion models do not support streaming", "use --context full");
    }
    if (r.options.sampling.repeat_penalty != 1) {
        refuse("--repeat-penalty", "diffusion models do not support it", "use --repeat-penalty 1");
    }
    if (r.options.min_tokens > 0) {
        refuse("--min-tokens", "diffusion models do not support it", "leave it out");
    }
    if (r.options.adjust || r.filter) {
        refuse("adjusted logits", "diffusion models do not support them",
               "leave out bias, penalties and grammars");
    }
    if (r.options.logprobs >= 0 || r.scores()) {
        refuse("--logprobs", "diffusion models do not support it", "leave it out");
    }
    MR_CHECK(!r.live, "a text that is filled in has a sequence of its own");
    const auto tokens = static_cast<std::int64_t>(r.prompt.size());
    r.most = std::min<std::int64_t>(r.most, engine_.most_positions() - tokens);
    if (r.most <= 0) return;
    r.blocks.emplace(spec, r.options.diffusion, r.options.sampling, r.prompt, r.most);
    const int block = r.options.diffusion.block_of(spec);
    if (block > engine_.options().block) {
        throw Error::usage({.field = "--block",
                            .value = std::to_string(block),
                            .problem = "the engine was made for blocks of " +
                                       std::to_string(engine_.options().block),
                            .remedy = "use at most that"});
    }
    r.prefix = r.blocks->prefix();
    r.cut = std::lcm(r.cut, r.blocks->cut());
    // A page is looked up by the tokens up to its end, so its content must depend on these alone. A
    // block length other than the engine's is another mask: other keys and values.
    r.publishes = r.publishes && r.prefix > 0 &&
                  model::KvCache::kPageTokens % r.blocks->cut() == 0 &&
                  block == engine_.options().block;
}

// If there is only one text, an engine that can fill in its whole block by itself does so. False:
// use passes, between which others are admitted.
bool Scheduler::fill_alone() {
    if (running_.size() != 1 || !waiting_.empty() || recorder_) return false;
    Request& r = *running_.front();
    if (r.ended || r.leader || !r.prefilled() || r.options.on_pass || r.on_host) return false;
    if (!r.filling || !engine_.block_is_open(r.seq)) {
        const std::optional<model::OpenBlock> open = r.blocks->open(engine_.cache(), r.seq);
        if (!open || !engine_.takes_block(*open)) return false;
        begin_blocks(r);
        engine_.open_block(*open);
        r.filling = true;
    }
    try {
        const model::FilledBlock filled = engine_.fill_block();
        r.blocks->take(filled);
        totals_.passes += filled.passes;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        fail(r, error);
        return true;
    }
    read_filled(r);
    return true;
}

// The prompt is computed: from here on the text decodes.
void Scheduler::begin_blocks(Request& r) {
    if (r.blocks->passes() > 0) return;
    r.first_token = Moment::now();
    r.out.prefill.seconds = r.first_token.seconds_since(r.start);
    r.ledger_prefilled = engine_.ledger();
    r.out.prefill.ledger = r.ledger_prefilled.since(r.ledger_before);
}

// Returns whether the pass computes blocks.
bool Scheduler::launch_blocks() {
    items_.clear();
    pieces_.clear();
    if (fill_alone()) return true;
    filling_.clear();
    std::int64_t room = engine_.options().max_batch, rows = 0;
    // As for other models: of many texts that arrive together, all prompts are computed first, in
    // whole passes.
    const auto young = [](const RequestPtr& r) {
        return r->ended || !r->blocks || r->blocks->passes() == 0;
    };
    const auto unfilled = [](const RequestPtr& r) {
        return !r->ended && !r->leader && !r->prefilled();
    };
    const bool prompts_first = std::all_of(running_.begin(), running_.end(), young) &&
                               std::any_of(running_.begin(), running_.end(), unfilled);
    for (const RequestPtr& request : running_) {
        Request& r = *request;
        if (prompts_first || r.ended || r.leader || !r.prefilled()) continue;
        const model::BatchItem item = r.blocks->next(engine_.cache(), r.seq);
        const auto tokens = static_cast<std::int64_t>(item.tokens.size());
        const auto asked = static_cast<std::int64_t>(item.rows.size());
        if (tokens > room || rows + asked > engine_.options().max_logits) break;  // the next pass
        room -= tokens;
        rows += asked;
        items_.push_back(item);
        filling_.push_back(&r);
    }
    const auto computed = engine_.options().max_batch - room;
    add_pieces(filling_.empty() ? room : std::min(room, kPiecesBesideDecode), room);
    if (items_.empty()) {
        const auto waits = [](const RequestPtr& r) { return !r->ended && !r->leader; };
        MR_CHECK(std::none_of(running_.begin(), running_.end(), waits),
                 "a pass has room for the next block or piece of a text");
        return true;
    }
    places_.clear();
    for (Request* const r : filling_) {
        begin_blocks(*r);
        places_.insert(places_.end(), r->blocks->places().begin(), r->blocks->places().end());
    }
    guesses_.resize(places_.size());
    submit(computed, true);
    for (const auto& [request, piece] : pieces_) launched(*request, piece);
    std::size_t row = 0;
    for (Request* const r : filling_) {
        const auto guesses = std::span(guesses_).subspan(row, r->blocks->places().size());
        if (check_guesses(*r, guesses)) read_block(*r, guesses);
        row += guesses.size();
    }
    return !filling_.empty();
}

// Logits that are not finite end only their own request.
bool Scheduler::check_guesses(Request& r, std::span<const ops::Guess> guesses) {
    try {
        for (const ops::Guess& guess : guesses) ops::check_guess(guess);
        return true;
    } catch (const Error& error) {
        fail(r, error);
        return false;
    }
}

// Applies the guesses of a pass to the block of one text.
void Scheduler::read_block(Request& r, std::span<const ops::Guess> guesses) {
    r.blocks->take(guesses);
    if (r.options.on_pass) r.options.on_pass(r.blocks->block(), r.blocks->known());
    if (r.blocks->filled()) read_filled(r);
}

// The block of a text is filled: deliver its tokens and open the next block.
void Scheduler::read_filled(Request& r) {
    for (const std::int32_t token : r.blocks->block()) {
        ++r.known;
        ++r.out.decode.tokens;
        ++totals_.decode.tokens;
        if (recorder_) recorder_->add_made();
        if (r.keeps_id()) r.out.ids.push_back(token);
        take_token(r, token);
        if (r.ended) return;
    }
    r.blocks->open_next();
}

}  // namespace mr::decode
