#include "model/kv_cache.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/error.h"

namespace mr::model {
namespace {

Shape layer_shape(const ModelSpec& spec, std::int64_t pages) {
    return {pages, spec.kv_heads, KvCache::kPageTokens, spec.head_dim};
}

}  // namespace

std::uint64_t KvCache::bytes(const ModelSpec& spec, std::int64_t pages, DType dtype) {
    return 2 * static_cast<std::uint64_t>(spec.layers) *
           Arena::tensor_bytes(dtype, layer_shape(spec, pages));
}

std::int64_t KvCache::table_entries(std::int64_t pages, std::int64_t context) {
    const std::int64_t held = std::max<std::int64_t>(std::min(pages, pages_for(context)), 1);
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(held)));
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
        sequence.table.resize(static_cast<std::size_t>(table_entries(pages, context)));
    }
    pages_.resize(static_cast<std::size_t>(pages));
    starts_ = std::set<std::int32_t, ByStart>(ByStart{pages_.data()});
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
        Sequence& sequence = sequences_[i];
        sequence.open = true;
        sequence.length = sequence.base = sequence.end = sequence.circle = sequence.prefix = 0;
        sequence.stream = {};
        return static_cast<SeqId>(i);
    }
    throw Error::device({.field = "sequences",
                         .value = std::to_string(sequences_.size()),
                         .problem = "all of them are in use",
                         .remedy = "open the engine for more sequences"});
}

void KvCache::close(SeqId id) {
    Sequence& sequence = at(id);
    // From the back: later pages of a chain are evicted before earlier ones.
    if (sequence.circle > 0) {
        for (std::int64_t i = sequence.end; i-- > sequence.end - sequence.circle;) {
            drop(sequence.page(i));
        }
        sequence.end = std::max(sequence.prefix, sequence.first());
        sequence.circle = 0;
    }
    pop_to(sequence, sequence.first());
    while (!sequence.front.empty()) {
        drop(sequence.front.back());
        sequence.front.pop_back();
    }
    sequence.open = false;
}

void KvCache::set_stream(SeqId id, const Stream& stream) {
    Sequence& sequence = at(id);
    MR_CHECK(sequence.base == 0, "how a sequence streams is said before it gives pages back");
    MR_CHECK(stream.sinks >= 0 && stream.window >= 0, "sinks and a window are not negative");
    sequence.stream = stream;
    sequence.front.reserve(static_cast<std::size_t>(pages_for(stream.sinks)));
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
        find_oldest();
        index = oldest_;
        unkeep(index);
        forget(index);
    }
    page(index).holders = 1;
    return index;
}

// Makes the page to evict the oldest: pages cannot be found without the ones before them, so of a
// chain the last goes first. Each page on the way to it moves in front of the one before it. The
// next call thus begins where this one ended, and walks every page of a chain once.
void KvCache::find_oldest() {
    for (;;) {
        std::int32_t next = first_child(page(oldest_).serial);
        while (next != kNone && page(next).holders > 0) next = page(next).sibling_after;
        if (next == kNone) return;
        unkeep(next);
        Page& p = page(next);
        p.kept_after = oldest_;
        page(oldest_).kept_before = next;
        oldest_ = next;
        ++kept_count_;
    }
}

void KvCache::push(Sequence& sequence, std::int32_t index) {
    MR_CHECK(sequence.end - sequence.first() < static_cast<std::int64_t>(sequence.table.size()),
             "the table of a sequence has an entry for every page it holds");
    sequence.page(sequence.end++) = index;
}

// Frees the pages from `end` on.
void KvCache::pop_to(Sequence& sequence, std::int64_t end) {
    while (sequence.end > end) drop(sequence.page(--sequence.end));
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

bool KvCache::try_reserve(SeqId id, std::int64_t length) {
    Sequence& sequence = at(id);
    const std::int64_t missing = pages_for(length) - sequence.end;
    if (sequence.circle > 0) {
        for (std::int64_t i = 0; i < missing; ++i, ++sequence.end) {
            const std::int64_t again = sequence.end - sequence.circle;
            MR_CHECK(again < sequence.first(),
                     "a circle has room for what the rows of a pass see together");
            sequence.page(sequence.end) = sequence.page(again);
        }
        return true;
    }
    if (!available(missing)) return false;
    for (std::int64_t i = 0; i < missing; ++i) push(sequence, take());
    return true;
}

bool KvCache::try_reserve_circle(SeqId id, std::int64_t prefix, std::int64_t pages) {
    Sequence& sequence = at(id);
    MR_CHECK(pages > 0 && sequence.circle == 0 && sequence.end <= pages_for(prefix),
             "a sequence gets its circle once, behind its prefix");
    if (!available(pages_for(prefix) - sequence.end + pages)) return false;
    while (sequence.end < pages_for(prefix) + pages) push(sequence, take());
    sequence.prefix = pages_for(prefix);
    sequence.circle = pages;
    return true;
}

void KvCache::reserve(SeqId id, std::int64_t length) {
    if (try_reserve(id, length)) return;
    throw Error::device({.field = "context",
                         .value = std::to_string(length),
                         .problem = "the KV cache has no free page left",
                         .remedy = "use a larger --ctx or --pool"});
}

void KvCache::release_before(SeqId id, std::int64_t position) {
    Sequence& sequence = at(id);
    MR_CHECK(position <= sequence.length, "what is given back is committed");
    const std::int64_t before = sequence.first();
    const std::int64_t first = std::max(position / kPageTokens, before);
    sequence.base = first * kPageTokens;
    const std::int64_t own = sequence.circle > 0 ? sequence.prefix : sequence.end;
    const std::int64_t stay = sequence.stream ? pages_for(sequence.stream.sinks) : 0;
    MR_CHECK(stay <= own || stay > first, "sinks lie before a circle");
    for (std::int64_t i = before; i < std::min(first, stay); ++i) {
        sequence.front.push_back(sequence.page(i));
    }
    // From the back, as in close().
    for (std::int64_t i = std::min(first, own); i-- > std::max(before, stay);) {
        drop(sequence.page(i));
    }
}

void KvCache::truncate(SeqId id, std::int64_t length) {
    Sequence& sequence = at(id);
    MR_CHECK(length >= 0, "a length is not negative");
    MR_CHECK(length >= sequence.base, "positions before the base are gone");
    sequence.length = std::min(sequence.length, length);
    if (sequence.circle == 0) pop_to(sequence, pages_for(sequence.length));
    // Later positions will overwrite these pages, so they cannot be found any more. The pages of a
    // prefix lie before a ring, so they stay.
    const std::int64_t end =
        sequence.circle > 0 ? std::max(sequence.prefix, pages_for(sequence.length)) : sequence.end;
    for (std::int64_t i = sequence.length / kPageTokens; i < end; ++i) {
        const std::int32_t written = sequence.page(i);
        MR_CHECK(page(written).holders == 1, "a page that is written to is the sequence's own");
        if (page(written).serial) forget(written);
    }
}

std::int64_t KvCache::length(SeqId id) const { return at(id).length; }

void KvCache::advance(SeqId id, std::int64_t count) {
    Sequence& sequence = at(id);
    sequence.length += count;
    MR_CHECK(pages_for(sequence.length) <= sequence.end,
             "room was reserved before the sequence advanced");
}

std::int64_t KvCache::base(SeqId id) const { return at(id).base; }

std::int64_t KvCache::held(SeqId id) const {
    std::int64_t pages = 0;
    at(id).each([&](std::int32_t) { ++pages; });
    return pages;
}

std::span<const std::int32_t> KvCache::table(SeqId id) const { return at(id).table; }

std::int32_t KvCache::page_at(SeqId id, std::int64_t position) const {
    const Sequence& sequence = at(id);
    MR_CHECK(position >= sequence.base && position < sequence.end * kPageTokens,
             "the sequence holds a page for the position");
    return sequence.page(position / kPageTokens);
}

KvCache::TablePart KvCache::table_part(SeqId id, std::int64_t end) const {
    const Sequence& sequence = at(id);
    const auto entries = static_cast<std::int64_t>(sequence.table.size());
    const std::int64_t last = end < 0 ? sequence.end : pages_for(end);
    MR_CHECK(sequence.first() <= last && last <= sequence.end,
             "the sequence has room for the positions");
    // A device that continues by itself also needs the pages that a ring will write next.
    const std::int64_t first =
        end < 0 ? std::min(sequence.first(), sequence.end - sequence.circle) : sequence.first();
    const std::span<const std::int32_t> table(sequence.table);
    const std::int64_t from = ops::table_entry(first, entries);
    if (from + last - first > entries) return {0, table};  // it wraps around the end of the table
    return {from,
            table.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(last - first))};
}

KvCache::Circle KvCache::circle(SeqId id) const { return {at(id).end, at(id).circle}; }

ops::PagedKv KvCache::layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }

std::int64_t KvCache::free_tokens() const {
    return (static_cast<std::int64_t>(free_.size()) + kept_count_) * kPageTokens;
}

}  // namespace mr::model
