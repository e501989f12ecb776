// Log-probabilities of a prompt's own tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "decode/scheduler_request.h"

namespace mr::decode {
namespace {

PromptToken predicted(std::span<const float> logits, std::int32_t id, int top) {
    const float own = logits[static_cast<std::size_t>(id)];
    PromptToken out{.id = id, .rank = 1};
    if (std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) {
        out.logprobs.logprob = std::numeric_limits<double>::quiet_NaN();
        return out;
    }
    out.logprobs = ops::logprobs_of(logits, id, top);
    // As the most probable tokens are listed: ties by id.
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const bool before = logits[i] > own || (logits[i] == own && std::cmp_less(i, id));
        out.rank += before ? 1 : 0;
    }
    return out;
}

}  // namespace

// A pass that reads the logits of a prompt has nothing beside it: every row of logits may be its
// own. Such passes and those of other texts take turns.
bool Scheduler::score_piece() {
    const auto waits = [](const RequestPtr& r) {
        return !r->ended && r->scores() && !r->prefilled();
    };
    const auto next = std::find_if(running_.begin(), running_.end(), waits);
    if (next == running_.end()) return false;
    const bool others = std::any_of(running_.begin(), running_.end(),
                                    [&](const RequestPtr& r) { return !r->ended && !waits(r); });
    if (others && std::exchange(scored_, !scored_)) return false;
    Request& r = **next;
    // The first draw has a row of its own, which has the bits of any other draw's.
    std::int64_t piece = std::min<std::int64_t>(
        {engine_.options().max_batch, engine_.options().max_logits - 1, r.prefix - r.done});
    if (piece_limit_ > 0) piece = std::min(piece, piece_limit_);
    if (r.done + piece < r.prefix) piece = (r.done + piece) / r.cut * r.cut - r.done;
    MR_CHECK(piece > 0, "the engine has logits for a piece of a prompt, and for a draw");
    const bool last = r.done + piece == r.prefix;
    pieces_.assign(1, {&r, piece});
    items_.assign(
        1, {.seq = r.seq,
            .tokens = std::span(r.prompt).subspan(static_cast<std::size_t>(r.done),
                                                  static_cast<std::size_t>(piece)),
            .logits = model::BatchItem::Logits::all,
            .form = r.form,
            .draw = last ? std::span<const model::Slot>(r.draws) : std::span<const model::Slot>()});
    const Tensor logits = submit(0);
    try {
        score(r, engine_.to_host(logits));
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        fail(r, error);
        return true;
    }
    launched(r, piece);
    if (!last) return true;
    if (r.options.on_prompt) r.options.on_prompt(std::exchange(r.scored, {}));
    if (r.most > 0) return true;
    r.out.prefill.seconds = Moment::now().seconds_since(r.start);
    r.out.prefill.ledger = r.ledger_prefilled.since(r.ledger_before);
    finish(r, StopReason::length);
    return true;
}

// `logits`: on the host, of the prompt's tokens from r.done on. Each row predicts the next token.
void Scheduler::score(Request& r, Tensor logits) {
    if (r.done == 0) r.scored.push_back({.id = r.prompt.front()});
    const std::size_t first = r.scored.size();
    const auto rows = std::min(logits.rows(), static_cast<std::int64_t>(r.prompt.size() - first));
    r.scored.resize(first + static_cast<std::size_t>(rows));
    const auto vocab = static_cast<std::size_t>(logits.dim(1));
    const LedgerEntry entry(&engine_.ledger(), OpKind::sample,
                            static_cast<std::uint64_t>(rows) * logits.row_bytes(), 0,
                            4 * static_cast<std::uint64_t>(rows) * vocab);
    engine_.context().pool->parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
            PromptToken& token = r.scored[first + static_cast<std::size_t>(i)];
            token = predicted({logits.f32(i), vocab}, r.prompt[first + static_cast<std::size_t>(i)],
                              r.options.prompt_logprobs);
        }
    });
    for (std::size_t i = first; i < r.scored.size(); ++i) {
        if (std::isnan(r.scored[i].logprobs.logprob)) ops::nan_in_logits();
    }
}

}  // namespace mr::decode
