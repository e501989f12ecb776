// A request of the scheduler, from arrival to end: for scheduler.cpp (admission, passes,
// the end), scheduler_read.cpp (reading draws) and scheduler_blocks.cpp (diffusion
// texts).
#pragma once

#include <exception>
#include <optional>
#include <vector>

#include "decode/diffusion.h"
#include "decode/drawn_filter.h"
#include "decode/scheduler.h"

namespace mr::decode {

// Prompt tokens in a pass that also decodes: few enough not to delay the decoding rows, and enough
// to make a GEMM over many rows efficient.
inline constexpr std::int64_t kPiecesBesideDecode = 256;

struct Scheduler::Request {
    Id id = 0;
    std::vector<std::int32_t> prompt;
    GenerateOptions options;
    OnText on_text;
    std::optional<TextStream> text;
    std::unique_ptr<DrawnFilter> filter;
    model::Form form = model::Form::prompt;  // the prompt's
    std::int64_t most = 0;                   // tokens to draw at most
    std::int64_t prefix = 0;                 // prompt tokens to compute before the first draw
    std::int64_t cut = 1;                    // the prompt may be cut at multiples of this
    std::optional<BlockText> blocks;         // only for a diffusion model
    bool filling = false;                    // the engine fills in its open block
    bool on_host = false;                    // its guesses are made on the host

    model::SeqId seq = -1;
    bool live = false;  // the sequence belongs to the caller
    model::Slot slot = model::kNoSlot;
    std::vector<model::Slot> draws;  // its own slot, and those of its followers
    Request* leader = nullptr;       // has the same prompt, and computes it for both
    std::vector<Request*> followers;
    bool shares = true;                            // its prompt lies in pages that others may share
    bool publishes = true;                         // ... and that can be found by their tokens
    std::optional<model::KvCache::PageCopy> copy;  // to do when the leader's prompt is computed

    std::int64_t done = 0;                 // prompt tokens in the cache, or launched
    std::vector<PromptToken> scored;       // of the prompt's tokens, so far
    std::int64_t launched = 0, known = 0;  // number of draws
    bool asked_to_stop = false;            // cancel()
    bool refused = false;                  // on_text returned false
    bool ended = false;
    std::exception_ptr error;
    Moment start = Moment::now(), first_token;
    Ledger ledger_before, ledger_prefilled;
    Generated out;

    std::int64_t plain = 0;  // Engine::plain_positions(): positions that other texts may share
    bool prefilled() const { return done == prefix; }
    // Its prompt's log-probabilities are asked for: it is computed in passes of its own.
    bool scores() const { return options.prompt_logprobs >= 0; }
    // Counts a launched draw.
    void drew() {
        ++launched;
        if (filter) filter->launched();
    }
    bool keeps_words() const { return options.keep != Keep::nothing; }
    // If the answer is not kept, ids are kept only for positions that other texts may share.
    bool keeps_id() const {
        return keeps_words() || static_cast<std::int64_t>(prompt.size()) + known <= plain;
    }
};

}  // namespace mr::decode
