// What a generation is asked and what it gives: the words that the scheduler, sessions and
// commands share.
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

// What is kept of an answer, beside its counts. Whatever is kept grows with the answer. Where
// nothing is kept, OnText alone has the text.
enum class Keep { nothing, words, all };  // words: ids and text; all: with their probabilities

struct GenerateOptions {
    int max_tokens = 256;
    ops::SampleParams sampling;
    // How many of the last tokens the repetition penalty looks at; of a stream
    // model::most_recent() at most.
    int repeat_window = 64;
    ops::Adjustments adjust{};
    // Makes what says which tokens may come; none: all may. A text of its own has one of its own.
    std::function<std::unique_ptr<ops::TokenFilter>()> filter{};
    std::vector<std::string> stop;  // generation ends before any of these; they are not printed
    bool ignore_end = false;        // go on past the end-of-text token
    // Of every token its log-probability, and so many of the most probable ones (0: none of them);
    // -1: nothing of that. The text has the bits that it has otherwise.
    int logprobs = -1;
    // Prompts share pages of the cache with those of the same salt alone: whose text it is.
    std::uint64_t cache_salt = 0;
    model::Stream stream{};        // where the text may be longer than the context
    DiffusionOptions diffusion{};  // of a model that fills in tokens
    // Called after every pass over its open block: tokens, and which of them are settled.
    std::function<void(std::span<const std::int32_t>, std::span<const std::uint8_t>)> on_pass;
    // Called with every token when it is known, before its text; with its probabilities where those
    // were asked for.
    std::function<void(std::int32_t, const DrawnLogprobs*)> on_token;
    Keep keep = Keep::all;
    // Asked before every pass and between parts of a long prompt; true ends the generation.
    std::function<bool()> cancelled;
    observe::Recorder* recorder = nullptr;  // where steps and their stages are written down
};

// Called with text that can be shown: whole UTF-8 characters, nothing that may still turn out to be
// a stop string. Returning false ends the generation, and it is not called again.
using OnText = std::function<bool(std::string_view)>;

enum class StopReason { length, end_of_text, stop_string, context_full, cancelled };
const char* stop_reason_name(StopReason reason);

// What a phase of a run took and moved.
struct Phase {
    std::int64_t tokens = 0;
    double seconds = 0;
    Ledger ledger;

    double tokens_per_second() const {
        return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
    }
    // Read from memory, by the contracts of the ops.
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
    // What GenerateOptions::keep asks for.
    std::vector<std::int32_t> ids;        // without the prompt; with the end token where one came
    std::vector<float> confidence;        // of each: its probability by the unfiltered softmax
    std::vector<DrawnLogprobs> logprobs;  // of each, where they were asked for
    std::string text;
    std::int64_t drawn = 0;  // tokens, kept or not
    StopReason reason = StopReason::length;
    bool end_token = false;  // the last token drawn is one that ends a text, and no part of it
    std::string stopped_by;  // the stop string that ended it
    std::int64_t prompt_tokens = 0;
    std::int64_t passes = 0;   // of a model that fills in tokens: those that computed its blocks
    std::int64_t evicted = 0;  // tokens that the last one did not see any more (stream)
    // Tokens that were computed, not those found in the cache; until the first token was there.
    Phase prefill;
    Phase decode;  // tokens that were computed, not the first one, which prefill gave
};

}  // namespace mr::decode
