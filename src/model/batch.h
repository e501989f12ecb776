// The input of a pass over the model: items of a ragged batch. Serving, evaluation and generation
// fill batches (decode/scheduler.h); the engines (engine.h) compute them.
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
using Slot = std::int32_t;   // sampling state of a sequence: its parameters and its last token
inline constexpr Slot kNoSlot = -1;

// A sequence without an end: a token sees the first `sinks` positions and the last `window`, itself
// included (a layer with a shorter window of its own uses that). Sinks that lie before the window
// are seen as if they stood just before it.
struct Stream {
    std::int32_t sinks = 0;
    std::int32_t window = 0;  // 0: the sequence does not stream

    explicit operator bool() const { return window > 0; }
    // The shorter of the stream's window and a layer's or model's `own` (0: none).
    template <typename Int>
    constexpr Int beside(Int own) const {
        if (window == 0) return own;
        return own > 0 && own < window ? own : static_cast<Int>(window);
    }
    bool operator==(const Stream&) const = default;
};

// Which kernels compute a token. On a GPU the two forms add in different orders, so the form of a
// token depends on its text alone: a prompt of more than kDecodePrompt tokens takes the prompt
// form; shorter prompts, generated tokens and diffusion blocks take the decode form. With full
// attention a pass computes the part of the text that may change as one prompt, and its length
// decides the form. The number of rows in a pass never does.
enum class Form : std::uint8_t { prompt, decode };
inline constexpr std::int64_t kDecodePrompt = 64;
// A prompt in the prompt form may be cut at multiples of this, counted from position 0. The pieces
// may go into any passes: the position of the cuts changes no bits.
inline constexpr std::int64_t kCut = 64;

constexpr Form form_of_prompt(std::int64_t tokens) {
    return tokens > kDecodePrompt ? Form::prompt : Form::decode;
}

// One sequence's part of a pass: its next tokens, at the positions after the committed ones.
struct BatchItem {
    enum class Logits { none, last, all, some };

    SeqId seq = 0;
    std::span<const std::int32_t> tokens{};  // empty: one token, the last one drawn by slot `feed`
    Logits logits = Logits::last;            // which tokens need logits
    std::span<const std::int32_t> rows{};    // Logits::some: which of `tokens`, in rising order
    Form form = Form::decode;                // fed tokens: always decode
    Slot feed = kNoSlot;
    std::span<const Slot> draw{};  // slots that draw from the logits of the last token
    // Positions to keep in the cache; the next item of the sequence overwrites the others. -1: keep
    // all.
    std::int64_t commit = -1;
    // Overrides the mask of every layer; none: the layers' own. Only for given tokens.
    std::optional<ops::AttentionMask> mask{};
};

// A prompt or a piece of it, in the form for a prompt of `prompt_tokens` in all.
inline BatchItem prompt_item(SeqId seq, std::span<const std::int32_t> tokens,
                             std::int64_t prompt_tokens,
                             BatchItem::Logits logits = BatchItem::Logits::last) {
    return {.seq = seq, .tokens = tokens, .logits = logits, .form = form_of_prompt(prompt_tokens)};
}
inline BatchItem prompt_item(SeqId seq, std::span<const std::int32_t> tokens,
                             BatchItem::Logits logits = BatchItem::Logits::last) {
    return prompt_item(seq, tokens, static_cast<std::int64_t>(tokens.size()), logits);
}

// An unknown token for which a row of logits is computed (Engine::submit()).
struct Place {
    const ops::SampleParams* sampling = nullptr;
    const ops::DenoiseParams* how = nullptr;
    std::int64_t position = 0;
    std::int32_t step = 0;    // step of its block: draws are keyed by (seed, position, step)
    std::int32_t truth = -1;  // the true token, if it is only to be scored
};

// A text that an engine fills in by itself, starting with its open block (Engine::fill_block()).
struct OpenBlock {
    SeqId seq = 0;
    const ops::SampleParams* sampling = nullptr;
    const ops::DenoiseParams* how = nullptr;
    std::int64_t block = 0, part = 0;        // places of a block and of a part
    std::int64_t start = 0, size = 0;        // start of the open block, and end of the text
    std::int32_t pass = 0;                   // passes with guesses for the block so far
    std::span<const std::int32_t> before{};  // tokens before the block that are not in the cache
    std::span<const std::int32_t> ids{};     // tokens of the block
    std::span<const std::uint8_t> known{};   // which of `ids` are settled
    // Tokens before a block are committed in a pass of their own. This happens anyway if they and
    // the block are more than kDecodePrompt tokens.
    bool apart = false;
    std::optional<ops::AttentionMask> mask{};
    // With full attention: the whole text, with the mask token in unknown places. Passes compute
    // all of it, and `before` is empty.
    std::span<const std::int32_t> text{};
    // The first pass of a block stores what lies before the block in the cache, and later passes do
    // not compute it again. For a block with `pass` > 0 it is there already.
    bool keeps = false;
};
struct FilledBlock {
    std::span<const std::int32_t> ids{};  // all of the block; valid until the next block
    std::int64_t passes = 0;
};

// Sampling parameters of a slot.
struct DrawParams {
    ops::SampleParams sampling;
    std::vector<std::int32_t> recent{};  // the tokens before the first draw, for the penalty
    int window = 64;                     // the penalty counts this many of the last tokens
    ops::Adjustments adjust{};
    // Its mask is read for each draw, while the pass before that draw runs. The caller must
    // have passed each drawn token to accept() before the next pass. None: all tokens may
    // come.
    ops::TokenFilter* filter = nullptr;
    // Keep log-probabilities of every draw, and of this many of the most probable tokens; -1: keep
    // none.
    int logprobs = -1;

    bool adjusts() const { return filter || adjust; }
    bool is_plain() const { return !adjusts() && logprobs < 0; }
};

}  // namespace mr::model
