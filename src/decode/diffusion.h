// Text that is filled in block by block: chooses the next pass and applies its guesses.
//
// A block is a stretch of unknown tokens, all given to the model as its mask token. Every pass
// computes the block, guesses each unknown token, and settles some of the guesses; the others
// become unknown again (ops/denoise/denoise.h). With block-causal attention, blocks lie at
// multiples of their length, a filled block enters the cache in the pass that first computes the
// next one, and the tokens of a prompt after its last whole block open the first block. With full
// attention, every pass computes the whole text and blocks follow the prompt. Shifted logits (those
// at p predict p + 1) need a block in the cache before the next one begins: its last row gives the
// next block's first token.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/batch.h"
#include "model/engine.h"
#include "model/kv_cache.h"
#include "model/spec.h"

namespace mr::decode {

struct DiffusionOptions {
    int block =
        0;  // tokens of a block; 0: the model's, or model::kUsualBlock where attention is full
    ops::DenoiseParams denoise;
    // With full attention: tokens before a block are computed when the block begins, and kept while
    // it is filled in. Approximate: those tokens should see the block as it fills.
    bool prefix_cache = false;
    bool commit_apart = false;  // a filled block goes into the cache in a pass of its own

    static constexpr int kMostBlock =
        64;  // where attention is block-causal: the decode form's rows
    int block_of(const model::ModelSpec& spec) const;
    // Throws Error (usage) for values that no model takes, or not this one.
    void check(const model::ModelSpec& spec) const;
    // The mask for a text whose block length is not the model's; none: that of the layers.
    std::optional<ops::AttentionMask> mask_of(const model::ModelSpec& spec) const;
};

class BlockText {
  public:
    // `tokens`: how many follow `prompt`. The spec and the sampling parameters must outlive the
    // object.
    BlockText(const model::ModelSpec& spec, const DiffusionOptions& options,
              const ops::SampleParams& sampling, std::span<const std::int32_t> prompt,
              std::int64_t tokens);
    BlockText(const BlockText&) = delete;  // places() point into it
    BlockText& operator=(const BlockText&) = delete;
    // For evaluation of a known text: settled places take the true token, while guesses are still
    // the decoder's (`truth`: the whole text, prompt included).
    void judge(std::vector<std::int32_t> truth) { truth_ = std::move(truth); }

    // Tokens of the prompt that must be in the cache before the first pass; their batch item uses
    // mask(). They may be cut at multiples of cut().
    std::int64_t prefix() const { return prefix_; }
    std::int64_t cut() const { return full_ ? 1 : block_; }
    std::optional<ops::AttentionMask> mask() const { return mask_; }

    // The next pass, for a sequence that has committed prefix() or what earlier passes left. Valid
    // until take(). So is places(): the rows of its logits in order.
    model::BatchItem next(model::KvCache& cache, model::SeqId seq);
    std::span<const model::Place> places() const { return places_; }
    // The block for an engine that fills in blocks by itself; none for a text under judge(). Valid
    // until take().
    std::optional<model::OpenBlock> open(const model::KvCache& cache, model::SeqId seq) const;
    void take(const model::FilledBlock& filled);
    // Applies the guesses of the pass, one for each of places(). settled() are the places that it
    // settled.
    void take(std::span<const ops::Guess> guesses);
    std::span<const std::uint8_t> settled() const { return settled_; }

    bool filled() const;                          // no place of the block is unknown
    std::span<const std::int32_t> block() const;  // the block's tokens, without those of the prompt
    std::span<const std::uint8_t> known() const;  // which of block() are settled
    bool open_next();                             // false: there is no further block
    std::int64_t passes() const { return passes_; }

  private:
    std::span<const std::int32_t> ids(std::int64_t from, std::int64_t to) const {
        return std::span(ids_).subspan(static_cast<std::size_t>(from),
                                       static_cast<std::size_t>(to - from));
    }
    bool unknown(std::int64_t at) const { return known_[static_cast<std::size_t>(at)] == 0; }
    std::int64_t size() const { return static_cast<std::int64_t>(ids_.size()); }
    void ask(std::int64_t from, std::int64_t begin, std::int64_t end);

    DiffusionOptions options_;
    const ops::SampleParams& sampling_;
    bool full_ = false, shifted_ = false;
    std::int64_t block_ = 0, part_ = 0;  // tokens of a block, and of a part of it
    std::int64_t prompt_ = 0, prefix_ = 0;
    std::optional<ops::AttentionMask> mask_;  // none: that of the layers
    std::vector<std::int32_t> ids_;           // the whole text, the mask token where unknown
    std::vector<std::uint8_t> known_;
    std::vector<std::int32_t> truth_;
    std::int64_t start_ = 0, end_ = 0;  // of the open block
    std::int32_t pass_ = 0;             // passes over the open block so far
    std::int64_t passes_ = 0;
    std::vector<std::int32_t> rows_;
    std::vector<model::Place> places_;
    std::vector<std::uint8_t> settled_;
};

}  // namespace mr::decode
