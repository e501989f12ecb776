// Options and results of a generation, shared by the scheduler, sessions and
// commands.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ledger.h"
#include "decode/diffusion.h"
#include "model/batch.h"
#include "observe/recorder.h"
#include "ops/sample/adjust.h"
#include "ops/sample/logprobs.h"
#include "ops/sample/sample.h"

namespace mr::decode {

using ops::DrawnLogprobs;
using ops::kMostLogprobs;
using ops::TokenLogprob;

// What is kept of an answer, beside its counts; memory grows with the answer unless it is nothing.
// Text that is not kept is only passed to OnText.
enum class Keep { nothing, words, all };  // words: ids and text; all: with their probabilities

// A token of a prompt, as the model predicted it.
struct PromptToken {
    std::int32_t id = 0;
    std::int64_t rank = 0;  // 1: the most probable token; 0: the first one, which nothing predicts
    DrawnLogprobs logprobs{};  // of the first one: empty
};

struct GenerateOptions {
    int max_tokens = 256;
    ops::SampleParams sampling;
    // The repetition penalty looks at this many of the last tokens (-1: all of them); in a stream
    // at model::most_recent() at most.
    int repeat_window = 64;
    ops::Adjustments adjust{};
    // Makes the filter of tokens that may come next, one for each text; none: all tokens may.
    std::function<std::unique_ptr<ops::TokenFilter>()> filter{};
    std::vector<std::string> stop;         // generation ends before any of these; they are left out
    std::vector<std::int32_t> stop_ids{};  // further tokens that end the text, as an end token does
    bool ignore_end = false;  // go on past the end-of-text token; stop_ids still end the text
    // Tokens before which nothing ends the text: no end token is drawn, and stop strings are text.
    // A filter that leaves only an end comes first.
    int min_tokens = 0;
    bool include_stop = false;  // the stop string, or the token of stop_ids, is a part of the text
    bool show_special = false;  // the text has the names of special tokens
    // Log-probabilities of every token, and of this many of the most probable ones (0: only the
    // token's own); -1: none. The text has the same bits either way.
    int logprobs = -1;
    // Prompts share cache pages only with prompts of the same salt, e.g. one salt per user.
    std::uint64_t cache_salt = 0;
    // Use pages of the cache that other prompts have filled, and leave this prompt's to others. The
    // text has the same bits either way.
    bool share_prompt = true;
    // Log-probabilities of the prompt's tokens (on_prompt), each with this many of the most
    // probable ones; -1: none. The whole prompt is then computed, and may have no answer
    // (max_tokens 0).
    int prompt_logprobs = -1;
    model::Stream stream{};        // where the text may be longer than the context
    DiffusionOptions diffusion{};  // for a diffusion model
    // Called after every pass with the open block: its tokens, and which of them are settled.
    std::function<void(std::span<const std::int32_t>, std::span<const std::uint8_t>)> on_pass;
    // Called after every pass that computed a part of the prompt: its tokens known so far, and all.
    std::function<void(std::int64_t, std::int64_t)> on_reading;
    // Called with every token as soon as it is known, with its log-probabilities if options ask for
    // them: before its text; with an end token after all text.
    std::function<void(std::int32_t, const DrawnLogprobs*)> on_token;
    // Called once with the tokens of the prompt, before on_token, if prompt_logprobs asks for them.
    std::function<void(std::vector<PromptToken>)> on_prompt;
    Keep keep = Keep::all;
    // Polled before every pass and between parts of a long prompt; true ends the generation.
    std::function<bool()> cancelled;
    observe::Recorder* recorder = nullptr;  // where steps and their stages are recorded
};

// Called with text that can be shown: whole UTF-8 characters, nothing that may still turn out to be
// a stop string. Returning false ends the generation, and it is not called again.
using OnText = std::function<bool(std::string_view)>;

enum class StopReason { length, end_of_text, stop_string, context_full, cancelled };
const char* stop_reason_name(StopReason reason);

// Time and traffic of one phase of a run.
struct Phase {
    std::int64_t tokens = 0;
    double seconds = 0;
    Ledger ledger;

    double tokens_per_second() const {
        return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
    }
    // Bytes read from memory, by the contracts of the ops.
    double bytes_per_second() const {
        return seconds > 0 ? static_cast<double>(ledger.total().bytes_read) / seconds : 0;
    }
    double bytes_per_token() const {
        return tokens > 0
                   ? static_cast<double>(ledger.total().bytes_read) / static_cast<double>(tokens)
                   : 0;
    }
};

struct Generated {
    // Filled as GenerateOptions::keep says.
    std::vector<std::int32_t> ids;        // without the prompt; with the end token if one was drawn
    std::vector<float> confidence;        // each token's probability by the unfiltered softmax
    std::vector<DrawnLogprobs> logprobs;  // for each token, if asked for
    std::string text;
    std::int64_t drawn = 0;  // tokens, kept or not
    StopReason reason = StopReason::length;
    bool end_token = false;  // the last token drawn is an end token, which is not part of the text
    std::string stopped_by;  // the stop string that ended it
    std::int64_t prompt_tokens = 0;
    std::int64_t found = 0;  // prompt tokens that were in the cache, or that a text beside computed
    std::int64_t passes = 0;   // diffusion model: passes that computed its blocks
    std::int64_t evicted = 0;  // stream: tokens that the last token could no longer see
    // Computed tokens, without those found in the cache; the time up to the first token.
    Phase prefill;
    Phase decode;  // computed tokens, without the first, which prefill gave
};

}  // namespace mr::decode
