// What a pass over the model is asked: items of a ragged batch. Serving, evaluation and generation
// are ways to fill one (decode/scheduler.h); the engines (engine.h) answer it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/attention/mask.h"
#include "ops/denoise/denoise.h"
#include "ops/sample/adjust.h"
#include "ops/sample/sample.h"

namespace mr::model {

using SeqId = std::int32_t;  // a sequence of the KV cache
using Slot = std::int32_t;   // what a row draws with, and the token it drew last
inline constexpr Slot kNoSlot = -1;

// How a sequence goes on without an end: a token sees the first `sinks` positions and the last
// `window`, itself among them (in layers with a window of their own the shorter one holds). Sinks
// that lie before the window are seen as if they stood just before it.
struct Stream {
    std::int32_t sinks = 0;
    std::int32_t window = 0;  // 0: the sequence does not stream

    explicit operator bool() const { return window > 0; }
    // The window where a layer or a model has one of `own` positions (0: none): the shorter one.
    template <typename Int>
    constexpr Int beside(Int own) const {
        if (window == 0) return own;
        return own > 0 && own < window ? own : static_cast<Int>(window);
    }
    bool operator==(const Stream&) const = default;
};

// Which kernels compute a token. On a GPU the two forms add in different orders, so the form of a
// token follows from its text alone: a prompt of more than kDecodePrompt tokens takes the prompt
// form; shorter prompts, generated tokens and blocks that are filled in take the decode form. With
// full attention a pass computes what may change of the text as one prompt, and its length decides.
// How many rows share a pass never does.
enum class Form : std::uint8_t { prompt, decode };
inline constexpr std::int64_t kDecodePrompt = 64;
// A prompt in the prompt form may be cut at multiples of this, counted from position 0. Pieces of
// one prompt may go into any passes: where the cuts lie changes no bits.
inline constexpr std::int64_t kCut = 64;

constexpr Form form_of_prompt(std::int64_t tokens) {
    return tokens > kDecodePrompt ? Form::prompt : Form::decode;
}

// One sequence's part in a pass: its next tokens, at positions that follow what is committed.
struct BatchItem {
    enum class Logits { none, last, all, some };

    SeqId seq = 0;
    std::span<const std::int32_t> tokens{};  // empty: one token, the one that slot `feed` drew last
    Logits logits = Logits::last;            // of which tokens the caller reads logits
    std::span<const std::int32_t> rows{};    // Logits::some: which of `tokens`, in rising order
    Form form = Form::decode;                // of fed tokens always decode
    Slot feed = kNoSlot;
    std::span<const Slot> draw{};  // slots that draw their next token from the last token's logits
    // Positions that stay in the cache; the next item of the sequence overwrites the others.
    // -1: all of them.
    std::int64_t commit = -1;
    // Which keys the tokens see in every layer; none: what the layers say. Of given tokens alone.
    std::optional<ops::AttentionMask> mask{};
};

// A prompt, or a piece of one, in the form that `prompt_tokens` (of the whole) asks for.
inline BatchItem prompt_item(SeqId seq, std::span<const std::int32_t> tokens,
                             std::int64_t prompt_tokens,
                             BatchItem::Logits logits = BatchItem::Logits::last) {
    return {.seq = seq, .tokens = tokens, .logits = logits, .form = form_of_prompt(prompt_tokens)};
}
inline BatchItem prompt_item(SeqId seq, std::span<const std::int32_t> tokens,
                             BatchItem::Logits logits = BatchItem::Logits::last) {
    return prompt_item(seq, tokens, static_cast<std::int64_t>(tokens.size()), logits);
}

// A place whose token is unknown, for which a row of logits speaks (Engine::submit()).
struct Place {
    const ops::SampleParams* sampling = nullptr;
    const ops::DenoiseParams* how = nullptr;
    std::int64_t position = 0;
    std::int32_t step = 0;    // of its block: draws are keyed by (seed, position, step)
    std::int32_t truth = -1;  // the token that stands there, where it is only to be judged
};

// A text that an engine fills in by itself, from its open block on (Engine::fill_block()).
struct OpenBlock {
    SeqId seq = 0;
    const ops::SampleParams* sampling = nullptr;
    const ops::DenoiseParams* how = nullptr;
    std::int64_t block = 0, part = 0;  // places of a block, and those that are guessed together
    std::int64_t start = 0, size = 0;  // where the open block begins, and where the text ends
    std::int32_t pass = 0;             // that the block has had guesses from
    std::span<const std::int32_t> before{};  // tokens before it that are not in the cache
    std::span<const std::int32_t> ids{};     // of the block
    std::span<const std::uint8_t> known{};   // which of them are settled
    // What is before a block goes into the cache in a pass of its own, as it does anyway where both
    // are more than kDecodePrompt tokens.
    bool apart = false;
    std::optional<ops::AttentionMask> mask{};
    // Where attention is full: the whole text, with the mask token where none is known. Passes
    // compute all of it, and `before` is empty.
    std::span<const std::int32_t> text{};
    // The first pass of a block leaves in the cache what lies before the block, and the later
    // passes do not compute that. A block whose `pass` is not 0 has it there.
    bool keeps = false;
};
struct FilledBlock {
    std::span<const std::int32_t> ids{};  // all of its places; valid until the next block
    std::int64_t passes = 0;
};

// What a slot draws with.
struct DrawParams {
    ops::SampleParams sampling;
    std::vector<std::int32_t> recent{};  // the tokens before the first draw, for the penalty
    int window = 64;                     // of them and of what follows, how many count
    ops::Adjustments adjust{};
    // Asked for its mask when a draw is made, while the pass that it follows runs, and told
    // nothing: every token that it lets come must have been accepted before the next pass. None:
    // all may.
    ops::TokenFilter* filter = nullptr;
    // Of every draw its log-probability is kept, and so many of the most probable tokens; -1: not.
    int logprobs = -1;

    bool adjusts() const { return filter || adjust; }
    bool is_plain() const { return !adjusts() && logprobs < 0; }
};

}  // namespace mr::model
