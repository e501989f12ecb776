#include "model/kv_cache.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/splitmix.h"

namespace mr::model {
namespace {

Shape layer_shape(const ModelSpec& spec, std::int64_t pages) {
    return {pages, spec.kv_heads, KvCache::kPageTokens, spec.head_dim};
}

template <typename Map>
void erase_one(Map& map, std::uint64_t key, std::int32_t value) {
    const auto range = map.equal_range(key);
    for (auto it = range.first; it != range.second; ++it) {
        if (it->second != value) continue;
        map.erase(it);
        return;
    }
}

}  // namespace

std::uint64_t KvCache::bytes(const ModelSpec& spec, std::int64_t pages, DType dtype) {
    return 2 * static_cast<std::uint64_t>(spec.layers) *
           Arena::tensor_bytes(dtype, layer_shape(spec, pages));
}

KvCache::KvCache(const ModelSpec& spec, std::int64_t pages, int sequences, std::int64_t context,
                 DType dtype, std::byte* memory)
    : dtype_(dtype), arena_("KV cache", memory ? 0 : bytes(spec, pages, dtype)) {
    MR_CHECK(memory || dtype == DType::f32 || dtype == DType::f16, "the KV cache is f32 or f16");
    MR_CHECK(pages > 0 && sequences > 0, "a cache has room for one token of one sequence");
    for (int i = 0; i < spec.layers; ++i) {
        const Shape shape = layer_shape(spec, pages);
        const auto take = [&]() -> Tensor {
            if (!memory) return arena_.tensor(dtype, shape);
            const Tensor tensor(memory, dtype, shape);
            memory += Arena::tensor_bytes(dtype, shape);
            return tensor;
        };
        const Tensor keys = take();
        layers_.push_back({keys, take()});
    }
    sequences_.resize(static_cast<std::size_t>(sequences));
    for (Sequence& sequence : sequences_) {  // nothing allocates in a step
        sequence.pages.reserve(static_cast<std::size_t>(std::min(pages, pages_for(context))));
    }
    pages_.resize(static_cast<std::size_t>(pages));
    free_.reserve(static_cast<std::size_t>(pages));
    for (std::int64_t i = pages; i-- > 0;) free_.push_back(static_cast<std::int32_t>(i));
}

KvCache::Sequence& KvCache::at(SeqId id) {
    MR_CHECK(id >= 0 && id < static_cast<SeqId>(sequences_.size()) &&
                 sequences_[static_cast<std::size_t>(id)].open,
             "the sequence is open");
    return sequences_[static_cast<std::size_t>(id)];
}

const KvCache::Sequence& KvCache::at(SeqId id) const { return const_cast<KvCache*>(this)->at(id); }

SeqId KvCache::open() {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
        if (sequences_[i].open) continue;
        sequences_[i].open = true;
        sequences_[i].length = 0;
        return static_cast<SeqId>(i);
    }
    throw Error::device({.field = "sequences",
                         .value = std::to_string(sequences_.size()),
                         .problem = "all of them are in use",
                         .remedy = "open the engine for more sequences"});
}

void KvCache::close(SeqId id) {
    Sequence& sequence = at(id);
    // From the back: of a chain, the pages behind are given away before those in front.
    while (!sequence.pages.empty()) {
        drop(sequence.pages.back());
        sequence.pages.pop_back();
    }
    sequence.open = false;
}

// ---- pages ---------------------------------------------------------------------------------

bool KvCache::available(std::int64_t count) const {
    return static_cast<std::int64_t>(free_.size()) + kept_count_ >= count;
}

std::int32_t KvCache::take() {
    std::int32_t index = kNone;
    if (!free_.empty()) {
        index = free_.back();
        free_.pop_back();
    } else {
        index = oldest_;
        unkeep(index);
        forget(index);
    }
    page(index).holders = 1;
    return index;
}

std::int32_t KvCache::take_page() {
    MR_CHECK(available(1), "the pool has a page to spare");
    ++taken_count_;
    return take();
}

void KvCache::hold(std::int32_t index) {
    if (page(index).holders++ == 0) unkeep(index);
}

void KvCache::drop(std::int32_t index) {
    if (--page(index).holders > 0) return;
    if (page(index).serial) {
        keep(index);
    } else {
        free_.push_back(index);
    }
}

void KvCache::keep(std::int32_t index) {
    Page& p = page(index);
    p.kept_before = newest_;
    p.kept_after = kNone;
    (newest_ == kNone ? oldest_ : page(newest_).kept_after) = index;
    newest_ = index;
    ++kept_count_;
}

void KvCache::unkeep(std::int32_t index) {
    Page& p = page(index);
    (p.kept_before == kNone ? oldest_ : page(p.kept_before).kept_after) = p.kept_after;
    (p.kept_after == kNone ? newest_ : page(p.kept_after).kept_before) = p.kept_before;
    p.kept_before = p.kept_after = kNone;
    --kept_count_;
}

// The page is not found any more.
void KvCache::forget(std::int32_t index) {
    Page& p = page(index);
    if (p.count == kPageTokens) erase_one(known_, key_of(p.parent, p.form, p.tokens), index);
    erase_one(children_, p.parent, index);
    p.serial = 0;
}

bool KvCache::try_reserve(SeqId id, std::int64_t length) {
    Sequence& sequence = at(id);
    const std::int64_t missing =
        pages_for(length) - static_cast<std::int64_t>(sequence.pages.size());
    if (!available(missing)) return false;
    for (std::int64_t i = 0; i < missing; ++i) sequence.pages.push_back(take());
    return true;
}

void KvCache::reserve(SeqId id, std::int64_t length) {
    if (try_reserve(id, length)) return;
    throw Error::device({.field = "context",
                         .value = std::to_string(length),
                         .problem = "the KV cache has no free page left",
                         .remedy = "use a larger --ctx or --pool"});
}

void KvCache::truncate(SeqId id, std::int64_t length) {
    Sequence& sequence = at(id);
    MR_CHECK(length >= 0, "a length is not negative");
    sequence.length = std::min(sequence.length, length);
    while (static_cast<std::int64_t>(sequence.pages.size()) > pages_for(sequence.length)) {
        drop(sequence.pages.back());
        sequence.pages.pop_back();
    }
    if (sequence.length % kPageTokens == 0) return;
    // What follows will be written into this page: it holds something else then.
    const std::int32_t last = sequence.pages.back();
    MR_CHECK(page(last).holders == 1, "the page that is written to is the sequence's own");
    if (page(last).serial) forget(last);
}

std::int64_t KvCache::length(SeqId id) const { return at(id).length; }

void KvCache::advance(SeqId id, std::int64_t count) {
    Sequence& sequence = at(id);
    sequence.length += count;
    MR_CHECK(pages_for(sequence.length) <= static_cast<std::int64_t>(sequence.pages.size()),
             "room was reserved before the sequence advanced");
}

std::span<const std::int32_t> KvCache::pages(SeqId id) const { return at(id).pages; }

ops::PagedKv KvCache::layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }

std::int64_t KvCache::free_tokens() const {
    return (static_cast<std::int64_t>(free_.size()) + kept_count_) * kPageTokens;
}

// ---- equal prefixes --------------------------------------------------------------------------

std::uint64_t KvCache::key_of(std::uint64_t parent, Form form, const std::int32_t* tokens) {
    std::uint64_t key = splitmix(parent * 2 + static_cast<std::uint64_t>(form));
    for (int i = 0; i < kPageTokens; ++i)
        key = splitmix(key ^ static_cast<std::uint32_t>(tokens[i]));
    return key;
}

std::int32_t KvCache::find(std::uint64_t parent, Form form, const std::int32_t* tokens) const {
    const auto range = known_.equal_range(key_of(parent, form, tokens));
    for (auto it = range.first; it != range.second; ++it) {
        const Page& p = pages_[static_cast<std::size_t>(it->second)];
        if (p.parent == parent && p.form == form &&
            std::equal(p.tokens, p.tokens + kPageTokens, tokens)) {
            return it->second;
        }
    }
    return kNone;
}

void KvCache::make_known(std::int32_t index, std::uint64_t parent, Form form,
                         std::span<const std::int32_t> tokens) {
    Page& p = page(index);
    // A page that is known already was adopted behind a page that was forgotten since.
    if (p.serial) forget(index);
    p.serial = next_serial_++;
    p.parent = parent;
    p.form = form;
    p.count = static_cast<std::int32_t>(tokens.size());
    std::copy(tokens.begin(), tokens.end(), p.tokens);
    if (p.count == kPageTokens) known_.emplace(key_of(parent, form, p.tokens), index);
    children_.emplace(parent, index);
}

void KvCache::publish(SeqId id, std::span<const std::int32_t> tokens, Form form, bool with_part) {
    const Sequence& sequence = at(id);
    tokens = tokens.first(std::min(tokens.size(), static_cast<std::size_t>(sequence.length)));
    std::uint64_t parent = 0;
    std::size_t i = 0;
    for (; tokens.size() >= kPageTokens; ++i, tokens = tokens.subspan(kPageTokens)) {
        const std::int32_t known = find(parent, form, tokens.data());
        if (known == kNone) make_known(sequence.pages[i], parent, form, tokens.first(kPageTokens));
        parent = page(known == kNone ? sequence.pages[i] : known).serial;
    }
    if (with_part && !tokens.empty()) make_known(sequence.pages[i], parent, form, tokens);
}

std::int64_t KvCache::adopt(SeqId id, std::span<const std::int32_t> tokens, Form form,
                            std::int64_t cut, std::int64_t most, std::optional<PageCopy>& copy) {
    Sequence& sequence = at(id);
    MR_CHECK(sequence.pages.empty() && sequence.length == 0, "an empty sequence adopts a prefix");
    copy.reset();
    most = std::min(most, static_cast<std::int64_t>(tokens.size()));
    std::vector<std::int32_t> chain;
    std::uint64_t parent = 0;
    std::int64_t length = 0;
    while (length + kPageTokens <= static_cast<std::int64_t>(tokens.size())) {
        const std::int32_t known = find(parent, form, tokens.data() + length);
        if (known == kNone) break;
        chain.push_back(known);
        parent = page(known).serial;
        length += kPageTokens;
    }
    // A page that begins as the text goes on, where a prefix may end inside of a page.
    std::int32_t part = kNone;
    std::int64_t part_tokens = 0;
    const auto children = children_.equal_range(parent);
    const bool parts = cut % kPageTokens != 0;
    for (auto it = children.first; parts && it != children.second; ++it) {
        const Page& p = page(it->second);
        if (p.form != form) continue;
        const auto rest = tokens.subspan(static_cast<std::size_t>(length));
        const auto same = std::mismatch(rest.begin(), rest.end(), p.tokens, p.tokens + p.count);
        const auto count = static_cast<std::int64_t>(same.first - rest.begin());
        if (count <= part_tokens) continue;
        part = it->second;
        part_tokens = count;
    }
    std::int64_t take_length = std::min(length + part_tokens, most) / cut * cut;
    const std::int64_t whole = take_length / kPageTokens;
    const bool broken = take_length % kPageTokens != 0;
    const std::int32_t source = !broken ? kNone
                                        : (whole < static_cast<std::int64_t>(chain.size())
                                               ? chain[static_cast<std::size_t>(whole)]
                                               : part);
    chain.resize(static_cast<std::size_t>(whole));
    for (const std::int32_t index : chain) {
        hold(index);
        sequence.pages.push_back(index);
    }
    if (broken) {
        // Held while another page is taken: it must not be the one that is given away for it.
        hold(source);
        if (available(1)) {
            copy = PageCopy{take(), source};
            sequence.pages.push_back(copy->to);
        } else {
            take_length = whole * kPageTokens / cut * cut;
        }
        drop(source);
    }
    while (static_cast<std::int64_t>(sequence.pages.size()) > pages_for(take_length)) {
        drop(sequence.pages.back());
        sequence.pages.pop_back();
    }
    sequence.length = take_length;
    return take_length;
}

bool KvCache::fork(SeqId to, SeqId from, std::int64_t length, std::optional<PageCopy>& copy) {
    copy.reset();
    const Sequence& source = at(from);
    Sequence& sequence = at(to);
    MR_CHECK(sequence.pages.empty() && sequence.length == 0, "an empty sequence becomes a fork");
    MR_CHECK(pages_for(length) <= static_cast<std::int64_t>(source.pages.size()),
             "what is forked has its pages");
    const std::int64_t whole = length / kPageTokens;
    if (length % kPageTokens != 0 && !available(1)) return false;
    for (std::int64_t i = 0; i < whole; ++i) {
        const std::int32_t index = source.pages[static_cast<std::size_t>(i)];
        hold(index);
        sequence.pages.push_back(index);
    }
    if (length % kPageTokens != 0) {
        copy = PageCopy{take(), source.pages[static_cast<std::size_t>(whole)]};
        sequence.pages.push_back(copy->to);
    }
    return true;
}

void KvCache::forget_all() {
    for (std::size_t i = 0; i < pages_.size(); ++i) {
        const auto index = static_cast<std::int32_t>(i);
        if (!pages_[i].serial) continue;
        forget(index);
        if (pages_[i].holders > 0) continue;
        unkeep(index);
        free_.push_back(index);
    }
}

void KvCache::check_books() const {
    std::vector<std::int32_t> holders(pages_.size(), 0);
    for (const Sequence& sequence : sequences_) {
        MR_CHECK(sequence.open || sequence.pages.empty(), "a closed sequence holds no page");
        MR_CHECK(!sequence.open ||
                     pages_for(sequence.length) <= static_cast<std::int64_t>(sequence.pages.size()),
                 "committed positions have pages");
        for (const std::int32_t index : sequence.pages) ++holders[static_cast<std::size_t>(index)];
    }
    std::vector<char> idle(pages_.size(), 0);
    for (const std::int32_t index : free_) {
        MR_CHECK(!idle[static_cast<std::size_t>(index)]++, "a page is free once");
        MR_CHECK(!pages_[static_cast<std::size_t>(index)].serial, "a free page is not published");
    }
    std::int64_t kept = 0;
    for (std::int32_t index = oldest_; index != kNone;
         index = pages_[static_cast<std::size_t>(index)].kept_after) {
        MR_CHECK(!idle[static_cast<std::size_t>(index)]++,
                 "a kept page is neither free nor kept twice");
        MR_CHECK(pages_[static_cast<std::size_t>(index)].serial, "a kept page is published");
        ++kept;
    }
    MR_CHECK(kept == kept_count_, "kept pages are counted");
    std::int64_t lost = 0;
    std::size_t published = 0, whole = 0;
    for (std::size_t i = 0; i < pages_.size(); ++i) {
        const bool spare = pages_[i].holders == 1 && holders[i] == 0;
        lost += spare;
        MR_CHECK(spare || pages_[i].holders == holders[i], "a page counts its holders");
        MR_CHECK(idle[i] == (pages_[i].holders == 0), "a page without holders is free or kept");
        published += pages_[i].serial != 0;
        whole += pages_[i].serial != 0 && pages_[i].count == kPageTokens;
    }
    MR_CHECK(lost == taken_count_, "no page is lost");
    MR_CHECK(whole == known_.size() && published == children_.size(),
             "published pages can be found");
}

}  // namespace mr::model
