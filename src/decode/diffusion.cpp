#include "decode/diffusion.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace mr::decode {

int DiffusionOptions::block_of(const model::ModelSpec& spec) const {
    if (block > 0) return block;
    return spec.diffusion->block > 0 ? spec.diffusion->block
                                     : std::min(model::kUsualBlock, spec.context);
}

void DiffusionOptions::check(const model::ModelSpec& spec) const {
    MR_CHECK(spec.diffusion.has_value(), "the model fills in tokens");
    const model::DiffusionSpec& model = *spec.diffusion;
    const int wanted = block_of(spec);
    const auto refuse = [](const char* field, std::string value, std::string problem,
                           std::string remedy = {}) {
        throw Error::usage({.field = field,
                            .value = std::move(value),
                            .problem = std::move(problem),
                            .remedy = std::move(remedy)});
    };
    const int most = model.block > 0 ? std::min(kMostBlock, spec.context) : spec.context;
    if (block < 0 || wanted > most) {
        refuse("--block", fmt::format("{}", block < 0 ? block : wanted),
               fmt::format("a block of this model has 1 to {} tokens", most),
               fmt::format("give --block {} or less", most));
    }
    if (model.sub_block > 0 && wanted != model.block) {
        refuse("--block", fmt::format("{}", wanted),
               fmt::format("the model fills in blocks of {} in parts of {}", model.block,
                           model.sub_block),
               "leave it out");
    }
    ops::check_denoise_params(denoise, wanted);
    if (prefix_cache && model.block > 0) {
        refuse("--prefix-cache", "",
               "is for models with full attention; this one caches finished blocks anyway",
               "leave it out");
    }
}

std::optional<ops::AttentionMask> DiffusionOptions::mask_of(const model::ModelSpec& spec) const {
    if (spec.diffusion->block == 0 || block_of(spec) == spec.diffusion->block) return std::nullopt;
    ops::AttentionMask mask = spec.mask;
    mask.block = block_of(spec);
    return mask;
}

BlockText::BlockText(const model::ModelSpec& spec, const DiffusionOptions& options,
                     const ops::SampleParams& sampling, std::span<const std::int32_t> prompt,
                     std::int64_t tokens)
    : options_(options), sampling_(sampling) {
    options.check(spec);
    MR_CHECK(!prompt.empty() && tokens > 0, "a text follows something");
    const model::DiffusionSpec& model = *spec.diffusion;
    full_ = model.block == 0;
    shifted_ = model.shifted;
    block_ = options.block_of(spec);
    part_ = model.sub_block > 0 ? model.sub_block : block_;
    mask_ = options.mask_of(spec);
    prompt_ = static_cast<std::int64_t>(prompt.size());
    ids_.assign(prompt.begin(), prompt.end());
    ids_.resize(ids_.size() + static_cast<std::size_t>(tokens), model.mask);
    known_.assign(ids_.size(), 0);
    std::fill_n(known_.begin(), prompt.size(), std::uint8_t{1});
    start_ = full_ ? prompt_ : prompt_ / block_ * block_;
    end_ = std::min(start_ + block_, size());
    // Where logits are shifted, the last block of the prompt is left to the first pass: its last
    // row gives the first unknown token.
    prefix_ = full_ ? 0 : shifted_ && start_ == prompt_ ? start_ - block_ : start_;
}

// Asks for the unknown places in [begin, end); the item's logits begin at `from`.
void BlockText::ask(std::int64_t from, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
        if (!unknown(at)) continue;
        rows_.push_back(static_cast<std::int32_t>(at - (shifted_ ? 1 : 0) - from));
        places_.push_back({&sampling_, &options_.denoise, at, pass_,
                           truth_.empty() ? -1 : truth_[static_cast<std::size_t>(at)]});
    }
}

model::BatchItem BlockText::next(model::KvCache& cache, model::SeqId seq) {
    rows_.clear();
    places_.clear();
    model::BatchItem item{.seq = seq, .logits = model::BatchItem::Logits::some};
    const auto fill = [&](std::int64_t from, std::int64_t to, std::int64_t commit) {
        item.tokens = ids(from, to);
        item.commit = commit;
    };
    if (full_) {
        const std::int64_t kept = shifted_ ? start_ - 1 : start_;
        if (options_.prefix_cache && pass_ == 0) cache.truncate(seq, 0);
        const std::int64_t from = cache.length(seq);
        fill(from, size(), options_.prefix_cache && pass_ == 0 ? kept : 0);
        item.form = model::form_of_prompt(size() - from);
        ask(from, start_, end_);
    } else {
        const std::int64_t from = cache.length(seq);
        const bool commits = from < start_;
        const bool apart =
            commits && (shifted_ || options_.commit_apart || end_ - from > model::kDecodePrompt);
        item.mask = mask_;
        if (apart) {
            fill(from, start_, start_ - from);
            if (shifted_) ask(from, start_, start_ + 1);
        } else {
            fill(from, end_, start_ - from);
            std::int64_t part = start_;  // start of the first part with unknown places
            while (part + part_ < end_ &&
                   std::none_of(known_.begin() + part, known_.begin() + part + part_,
                                [](std::uint8_t k) { return k == 0; })) {
                part += part_;
            }
            ask(from, part, std::min(part + part_, end_));
        }
    }
    item.rows = rows_;
    if (rows_.empty()) item.logits = model::BatchItem::Logits::none;
    return item;
}

std::optional<model::OpenBlock> BlockText::open(const model::KvCache& cache,
                                                model::SeqId seq) const {
    if (!truth_.empty()) return std::nullopt;
    const auto begin = static_cast<std::size_t>(start_);
    model::OpenBlock out;
    out.seq = seq;
    out.sampling = &sampling_;
    out.how = &options_.denoise;
    out.block = block_;
    out.part = full_ ? block_ : part_;
    out.start = start_;
    out.size = size();
    out.pass = pass_;
    out.ids = ids(start_, end_);
    out.known = std::span(known_).subspan(begin, static_cast<std::size_t>(end_ - start_));
    out.mask = mask_;
    if (full_) {
        out.text = ids_;
        out.keeps = options_.prefix_cache;
    } else {
        out.before = ids(cache.length(seq), start_);
        out.apart = shifted_ || options_.commit_apart;
    }
    return out;
}

void BlockText::take(const model::FilledBlock& filled) {
    MR_CHECK(std::ssize(filled.ids) == end_ - start_, "every place of the block is filled");
    std::copy(filled.ids.begin(), filled.ids.end(), ids_.begin() + start_);
    std::fill(known_.begin() + start_, known_.begin() + end_, std::uint8_t{1});
    passes_ += filled.passes;
    places_.clear();
    settled_.clear();
}

void BlockText::take(std::span<const ops::Guess> guesses) {
    MR_CHECK(guesses.size() == places_.size(), "a guess for every place");
    ++passes_;
    settled_.assign(guesses.size(), 0);
    if (guesses.empty()) return;  // a pass that only commits
    ops::choose(options_.denoise, guesses, ops::scheduled(block_, options_.denoise.steps, pass_),
                settled_);
    for (std::size_t i = 0; i < guesses.size(); ++i) {
        if (!settled_[i]) continue;
        const auto at = static_cast<std::size_t>(places_[i].position);
        ids_[at] = guesses[i].id;
        known_[at] = 1;
    }
    ++pass_;
}

bool BlockText::filled() const {
    return std::none_of(known_.begin() + start_, known_.begin() + end_,
                        [](std::uint8_t known) { return known == 0; });
}

std::span<const std::int32_t> BlockText::block() const {
    return ids(std::max(start_, prompt_), end_);
}

std::span<const std::uint8_t> BlockText::known() const {
    const std::int64_t from = std::max(start_, prompt_);
    return std::span(known_).subspan(static_cast<std::size_t>(from),
                                     static_cast<std::size_t>(end_ - from));
}

bool BlockText::open_next() {
    if (end_ == size()) return false;
    start_ = end_;
    end_ = std::min(start_ + block_, size());
    pass_ = 0;
    return true;
}

}  // namespace mr::decode
