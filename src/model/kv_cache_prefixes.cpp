// Equal prefixes in the paged KV cache: publishing, finding, sharing and forgetting pages; and the
// consistency check.
#include <algorithm>
#include <compare>
#include <iterator>

#include "core/error.h"
#include "core/splitmix.h"
#include "model/kv_cache.h"

namespace mr::model {
namespace {

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

// The page can no longer be found.
void KvCache::forget(std::int32_t index) {
    Page& p = page(index);
    if (p.count == kPageTokens) erase_one(known_, key_of(p.parent, p.form, p.tokens), index);
    starts_.erase(index);
    if (p.sibling_after != kNone) page(p.sibling_after).sibling_before = p.sibling_before;
    if (p.sibling_before != kNone) {
        page(p.sibling_before).sibling_after = p.sibling_after;
    } else if (p.sibling_after != kNone) {
        children_[p.parent] = p.sibling_after;
    } else {
        children_.erase(p.parent);
    }
    p.sibling_before = p.sibling_after = kNone;
    p.serial = 0;
}

std::int32_t KvCache::first_child(std::uint64_t parent) const {
    const auto child = children_.find(parent);
    return child == children_.end() ? kNone : child->second;
}

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

std::strong_ordering KvCache::ByStart::compare(const Start& a, const Start& b) {
    if (a.parent != b.parent) return a.parent <=> b.parent;
    if (a.form != b.form) return a.form <=> b.form;
    return std::lexicographical_compare_three_way(a.tokens.begin(), a.tokens.end(),
                                                  b.tokens.begin(), b.tokens.end());
}

bool KvCache::ByStart::operator()(std::int32_t page, const Start& text) const {
    return compare(start(page), text) < 0;
}

// Of pages that begin alike, the latest is the last: a text that goes on where they end is behind
// it.
bool KvCache::ByStart::operator()(std::int32_t a, std::int32_t b) const {
    const std::strong_ordering order = compare(start(a), start(b));
    return order != 0 ? order < 0 : pages[a].serial < pages[b].serial;
}

// The page that begins with the most tokens of `text`, and how many; kNone and 0: no page has any.
std::int32_t KvCache::find_part(const Start& text, std::int64_t& length) const {
    std::int32_t found = kNone;
    length = 0;
    const auto consider = [&](std::int32_t index) {
        const Page& p = page(index);
        if (p.parent != text.parent || p.form != text.form) return;
        const auto same =
            std::mismatch(text.tokens.begin(), text.tokens.end(), p.tokens, p.tokens + p.count);
        const auto count = static_cast<std::int64_t>(same.first - text.tokens.begin());
        if (count <= length) return;
        found = index;
        length = count;
    };
    const auto next = starts_.lower_bound(text);
    if (next != starts_.begin()) consider(*std::prev(next));
    if (next != starts_.end()) consider(*next);
    return found;
}

void KvCache::make_known(std::int32_t index, std::uint64_t parent, Form form,
                         std::span<const std::int32_t> tokens) {
    Page& p = page(index);
    // A page that is published already was adopted behind a page that was forgotten since.
    if (p.serial) forget(index);
    // Memory may run out at each of three places: then the page is unknown.
    const auto [latest, is_only] = children_.try_emplace(parent, index);
    if (!is_only) {
        p.sibling_after = latest->second;
        page(latest->second).sibling_before = index;
        latest->second = index;
    }
    p.serial = next_serial_++;
    p.parent = parent;
    p.form = form;
    p.count = static_cast<std::int32_t>(tokens.size());
    std::copy(tokens.begin(), tokens.end(), p.tokens);
    try {
        if (p.count == kPageTokens) known_.emplace(key_of(parent, form, p.tokens), index);
        starts_.insert(index);
    } catch (...) {
        forget(index);
        throw;
    }
}

void KvCache::publish(SeqId id, std::span<const std::int32_t> tokens, Form form, bool with_part,
                      std::uint64_t salt) {
    const Sequence& sequence = at(id);
    tokens = tokens.first(std::min(tokens.size(), static_cast<std::size_t>(sequence.length)));
    const auto [root, is_new] = roots_.try_emplace(salt, next_serial_);
    next_serial_ += is_new;
    std::uint64_t parent = root->second;
    // A page of a ring will be overwritten, unless the sequence is no longer written.
    const std::int64_t end = sequence.circle > 0 && !with_part ? sequence.prefix : sequence.end;
    std::int64_t i = 0;
    for (; tokens.size() >= kPageTokens; ++i, tokens = tokens.subspan(kPageTokens)) {
        std::int32_t known = find(parent, form, tokens.data());
        if (known == kNone) {
            // Without the pages before them, later pages cannot be found.
            if (i < sequence.first() || i >= end) return;
            known = sequence.page(i);
            make_known(known, parent, form, tokens.first(kPageTokens));
        }
        parent = page(known).serial;
    }
    if (with_part && !tokens.empty() && i >= sequence.first()) {
        make_known(sequence.page(i), parent, form, tokens);
    }
}

std::int64_t KvCache::adopt(SeqId id, std::span<const std::int32_t> tokens, Form form,
                            std::int64_t cut, std::int64_t most, std::optional<PageCopy>& copy,
                            std::uint64_t salt) {
    Sequence& sequence = at(id);
    MR_CHECK(sequence.end == 0 && sequence.length == 0, "an empty sequence adopts a prefix");
    copy.reset();
    const auto root = roots_.find(salt);
    if (root == roots_.end()) return 0;  // nothing was published with this salt
    most = std::min(most, static_cast<std::int64_t>(tokens.size()));
    std::vector<std::int32_t> chain;
    std::uint64_t parent = root->second;
    std::int64_t length = 0;
    while (length + kPageTokens <= static_cast<std::int64_t>(tokens.size())) {
        const std::int32_t known = find(parent, form, tokens.data() + length);
        if (known == kNone) break;
        chain.push_back(known);
        parent = page(known).serial;
        length += kPageTokens;
    }
    // A page that begins with the next tokens, where a prefix may end inside a page.
    std::int32_t part = kNone;
    std::int64_t part_tokens = 0;
    if (cut % kPageTokens != 0) {
        part = find_part({parent, form, tokens.subspan(static_cast<std::size_t>(length))},
                         part_tokens);
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
        push(sequence, index);
    }
    if (broken) {
        // Hold it while another page is taken, so that it is not evicted for that one.
        hold(source);
        if (available(1)) {
            copy = PageCopy{take(), source};
            push(sequence, copy->to);
        } else {
            take_length = whole * kPageTokens / cut * cut;
        }
        drop(source);
    }
    pop_to(sequence, pages_for(take_length));
    sequence.length = take_length;
    return take_length;
}

bool KvCache::fork(SeqId to, SeqId from, std::int64_t length, std::optional<PageCopy>& copy) {
    copy.reset();
    const Sequence& source = at(from);
    Sequence& sequence = at(to);
    MR_CHECK(sequence.end == 0 && sequence.length == 0, "an empty sequence becomes a fork");
    MR_CHECK(
        source.base == 0 && pages_for(length) <= (source.circle > 0 ? source.prefix : source.end),
        "what is forked has its pages, from the first one on, and none of them in a circle");
    const std::int64_t whole = length / kPageTokens;
    if (length % kPageTokens != 0 && !available(1)) return false;
    for (std::int64_t i = 0; i < whole; ++i) {
        hold(source.page(i));
        push(sequence, source.page(i));
    }
    if (length % kPageTokens != 0) {
        copy = PageCopy{take(), source.page(whole)};
        push(sequence, copy->to);
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
        if (!sequence.open) continue;
        MR_CHECK(sequence.base % kPageTokens == 0 && sequence.base <= sequence.length,
                 "a base is the begin of a page, and committed");
        MR_CHECK(pages_for(sequence.length) <= sequence.end, "committed positions have pages");
        MR_CHECK(sequence.end - std::min(sequence.first(), sequence.end - sequence.circle) <=
                     static_cast<std::int64_t>(sequence.table.size()),
                 "no two pages share an entry of the table");
        sequence.each([&](std::int32_t index) { ++holders[static_cast<std::size_t>(index)]; });
        for (std::int64_t i = sequence.end - sequence.circle; i < sequence.end; ++i) {
            MR_CHECK(pages_[static_cast<std::size_t>(sequence.page(i))].holders == 1,
                     "a page of a circle is not shared");
        }
    }
    std::vector<char> idle(pages_.size(), 0);
    for (const std::int32_t index : free_) {
        MR_CHECK(!idle[static_cast<std::size_t>(index)]++, "a page is free once");
        MR_CHECK(!pages_[static_cast<std::size_t>(index)].serial, "a free page is not published");
    }
    std::int64_t kept = 0;
    std::int32_t before = kNone;
    for (std::int32_t index = oldest_; index != kNone;
         index = pages_[static_cast<std::size_t>(index)].kept_after) {
        MR_CHECK(pages_[static_cast<std::size_t>(index)].kept_before == before,
                 "kept pages are linked both ways");
        before = index;
        MR_CHECK(!idle[static_cast<std::size_t>(index)]++,
                 "a kept page is neither free nor kept twice");
        MR_CHECK(pages_[static_cast<std::size_t>(index)].serial, "a kept page is published");
        ++kept;
    }
    MR_CHECK(before == newest_, "the list of kept pages ends with the newest");
    MR_CHECK(kept == kept_count_, "kept pages are counted");
    std::int64_t lost = 0;
    std::size_t published = 0, whole = 0, first = 0;
    for (std::size_t i = 0; i < pages_.size(); ++i) {
        const bool spare = pages_[i].holders == 1 && holders[i] == 0;
        lost += spare;
        MR_CHECK(spare || pages_[i].holders == holders[i], "a page counts its holders");
        MR_CHECK(idle[i] == (pages_[i].holders == 0), "a page without holders is free or kept");
        published += pages_[i].serial != 0;
        whole += pages_[i].serial != 0 && pages_[i].count == kPageTokens;
        if (!pages_[i].serial) continue;
        const auto index = static_cast<std::int32_t>(i);
        const std::int32_t before = pages_[i].sibling_before, after = pages_[i].sibling_after;
        first += before == kNone;
        MR_CHECK(before == kNone ? first_child(pages_[i].parent) == index
                                 : page(before).sibling_after == index,
                 "a page is the first child or behind a sibling");
        MR_CHECK(after == kNone || (page(after).sibling_before == index && page(after).serial &&
                                    page(after).parent == pages_[i].parent &&
                                    page(after).serial < pages_[i].serial),
                 "siblings are published, and the latest comes first");
        MR_CHECK(starts_.contains(index), "a published page is found by what it begins with");
    }
    MR_CHECK(lost == taken_count_, "no page is lost");
    MR_CHECK(whole == known_.size() && published == starts_.size() && first == children_.size(),
             "published pages can be found");
}

}  // namespace mr::model
