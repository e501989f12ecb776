// A text that is filled in block by block: which pass comes next, and what its guesses settle.
//
// A block is a stretch of unknown tokens, all given to the model as its mask token. Every pass
// computes the block, guesses each unknown token, and settles some of the guesses; the others are
// unknown again (ops/denoise/denoise.h). Where attention is block-causal, blocks lie at multiples
// of their length, a filled block goes into the cache in the pass that first computes the next one,
// and what is left of a prompt behind its whole blocks opens the first. Where attention is full,
// every pass computes the whole text and blocks follow the prompt.
// Logits that are shifted (those at p speak of p + 1) need a block in the cache before the next
// begins: its last row gives that one's first token.
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
    // Of full attention: what lies before a block is computed when the block begins, and kept while
    // it is filled in. Approximate: those tokens would see the block as it clears up.
    bool prefix_cache = false;
    bool commit_apart = false;  // a filled block goes into the cache in a pass of its own

    static constexpr int kMostBlock =
        64;  // where attention is block-causal: the decode form's rows
    int block_of(const model::ModelSpec& spec) const;
    // Throws Error (usage) where the model does not take them, or no model does.
    void check(const model::ModelSpec& spec) const;
    // What the tokens of a text see where its block is not the model's; none: what the layers say.
    std::optional<ops::AttentionMask> mask_of(const model::ModelSpec& spec) const;
};

class BlockText {
  public:
    // `tokens` that follow `prompt`. The spec and the parameters of sampling must outlive it.
    BlockText(const model::ModelSpec& spec, const DiffusionOptions& options,
              const ops::SampleParams& sampling, std::span<const std::int32_t> prompt,
              std::int64_t tokens);
    BlockText(const BlockText&) = delete;  // places() point into it
    BlockText& operator=(const BlockText&) = delete;
    // Of a text that is known, what the decoder would say of it: settled places take the true
    // token (`truth`: the whole text, prompt included).
    void judge(std::vector<std::int32_t> truth) { truth_ = std::move(truth); }

    // Tokens of the prompt that are to be in the cache before the first pass; an item of them has
    // mask(). They may be cut at multiples of cut().
    std::int64_t prefix() const { return prefix_; }
    std::int64_t cut() const { return full_ ? 1 : block_; }
    std::optional<ops::AttentionMask> mask() const { return mask_; }

    // The next pass, of a sequence that has committed prefix() or what earlier passes left. Valid
    // until take(), as is places(): the rows of its logits in their order.
    model::BatchItem next(model::KvCache& cache, model::SeqId seq);
    std::span<const model::Place> places() const { return places_; }
    // The block as an engine takes it that fills in blocks by itself; none of a text that is
    // judged. Valid until take().
    std::optional<model::OpenBlock> open(const model::KvCache& cache, model::SeqId seq) const;
    void take(const model::FilledBlock& filled);
    // What the pass said of them. settled() are those of places() that it settled.
    void take(std::span<const ops::Guess> guesses);
    std::span<const std::uint8_t> settled() const { return settled_; }

    bool filled() const;                          // no place of the block is unknown
    std::span<const std::int32_t> block() const;  // its tokens, without those of the prompt
    std::span<const std::uint8_t> known() const;  // which of these are settled
    bool open_next();                             // false: the text has no further block
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
    std::int64_t block_ = 0, part_ = 0;  // tokens of a block, and of the parts it is filled in by
    std::int64_t prompt_ = 0, prefix_ = 0;
    std::optional<ops::AttentionMask> mask_;  // none: what the layers say
    std::vector<std::int32_t> ids_;           // the whole text, the mask token where unknown
    std::vector<std::uint8_t> known_;
    std::vector<std::int32_t> truth_;
    std::int64_t start_ = 0, end_ = 0;  // of the open block
    std::int32_t pass_ = 0;             // of the block
    std::int64_t passes_ = 0;
    std::vector<std::int32_t> rows_;
    std::vector<model::Place> places_;
    std::vector<std::uint8_t> settled_;
};

}  // namespace mr::decode
