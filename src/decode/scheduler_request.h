// A request of the scheduler, from its arrival to its end: for scheduler.cpp (admission, passes,
// the end), scheduler_read.cpp (what was drawn) and scheduler_blocks.cpp (texts that are filled
// in).
#pragma once

#include <exception>
#include <optional>
#include <vector>

#include "decode/diffusion.h"
#include "decode/drawn_filter.h"
#include "decode/scheduler.h"

namespace mr::decode {

// Prompt tokens in a pass that also decodes: few enough that the others' tokens are not held up,
// and enough that products of many rows are worth their while.
inline constexpr std::int64_t kPiecesBesideDecode = 256;

struct Scheduler::Request {
    Id id = 0;
    std::vector<std::int32_t> prompt;
    GenerateOptions options;
    OnText on_text;
    std::optional<TextStream> text;
    std::unique_ptr<DrawnFilter> filter;
    model::Form form = model::Form::prompt;  // of the prompt
    std::int64_t most = 0;                   // tokens that it draws at most
    std::int64_t prefix = 0;                 // tokens of the prompt that are computed before draws
    std::int64_t cut = 1;                    // the prompt may be cut at multiples of this
    std::optional<BlockText> blocks;         // of a model that fills in tokens
    bool filling = false;                    // the engine has opened its block
    bool on_host = false;                    // its guesses are made on the host

    model::SeqId seq = -1;
    bool live = false;  // the sequence is the caller's
    model::Slot slot = model::kNoSlot;
    std::vector<model::Slot> draws;  // its own slot, and those of the requests that follow it
    Request* leader = nullptr;       // whose prompt is the same, and computed for both
    std::vector<Request*> followers;
    bool shares = true;     // its prompt lies in pages that others may have, too
    bool publishes = true;  // ... which can be found by the tokens in them
    std::optional<model::KvCache::PageCopy> copy;  // due when the leader's prompt is computed

    std::int64_t done = 0;                 // prompt tokens in the cache, or on their way
    std::int64_t launched = 0, known = 0;  // draws
    bool asked_to_stop = false;            // cancel()
    bool refused = false;                  // on_text wants no more
    bool ended = false;
    std::exception_ptr error;
    Moment start = Moment::now(), first_token;
    Ledger ledger_before, ledger_prefilled;
    Generated out;

    std::int64_t plain = 0;  // Engine::plain_positions(): those that other texts may share
    bool prefilled() const { return done == prefix; }
    // A draw of it is on its way.
    void drew() {
        ++launched;
        if (filter) filter->launched();
    }
    bool keeps_words() const { return options.keep != Keep::nothing; }
    // Of an answer that is not kept, the tokens that other texts may share.
    bool keeps_id() const {
        return keeps_words() || static_cast<std::int64_t>(prompt.size()) + known <= plain;
    }
};

}  // namespace mr::decode
