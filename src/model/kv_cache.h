// The paged KV cache: one pool of pages, allocated once, and the state of every sequence: its
// committed length, its base (the first position whose page it still holds) and its pages.
// Sequences with equal prefixes share pages.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/arena.h"
#include "model/batch.h"
#include "model/spec.h"
#include "ops/attention/paged/attention.h"

namespace mr::model {

class KvCache {
  public:
    static constexpr int kPageTokens = ops::kPageTokens;
    static constexpr std::int64_t pages_for(std::int64_t tokens) {
        return (tokens + kPageTokens - 1) / kPageTokens;
    }
    // Pages of a pool of `tokens` positions: the last page of every sequence may be partly empty.
    static std::int64_t pool_pages(std::int64_t tokens, int sequences) {
        return pages_for(tokens) + sequences - 1;
    }

    // Entries of the circular table of a sequence (ops/attention/paged/page_table.h): a power of
    // two, and no fewer than the pages that one sequence can hold at once.
    static std::int64_t table_entries(std::int64_t pages, std::int64_t context);

    // At most `sequences` at a time, each of at most `context` positions. The pages lie in the
    // cache's own memory, or in the bytes() at `memory`, which may be a device's: the cache never
    // reads them.
    KvCache(const ModelSpec& spec, std::int64_t pages, int sequences, std::int64_t context,
            DType dtype, std::byte* memory = nullptr);
    KvCache(const KvCache&) = delete;  // the order of starts_ refers to pages_
    KvCache& operator=(const KvCache&) = delete;

    static std::uint64_t bytes(const ModelSpec& spec, std::int64_t pages, DType dtype);

    SeqId open();          // a new, empty sequence
    void close(SeqId id);  // frees its pages; published ones can be found until they are reused
    // Call before anything is released. Pages of its sinks stay when others are released.
    void set_stream(SeqId id, const Stream& stream);
    const Stream& stream(SeqId id) const { return at(id).stream; }
    // Pages of sinks that lie before the base.
    std::span<const std::int32_t> front(SeqId id) const { return at(id).front; }
    // Reserves pages for positions [base, length); returns false and takes none if there are too
    // few.
    bool try_reserve(SeqId id, std::int64_t length);
    // Reserves positions [base, prefix) as above, and all later ones in a ring of `pages` pages of
    // the sequence's own: page i after `prefix` is overwritten as page i + `pages`, when room is
    // made for that one and release_before() has passed page i. Shared and published pages lie
    // before `prefix`, so they are never overwritten.
    bool try_reserve_circle(SeqId id, std::int64_t prefix, std::int64_t pages);
    // The same, but throws Error (device) instead of returning false.
    void reserve(SeqId id, std::int64_t length);
    // Releases whole pages before `position` (at most the committed length), which no later query
    // sees. Shared pages lose a holder, published ones can be found until they are reused, those of
    // a ring stay the sequence's own. Pages of sinks stay, too.
    void release_before(SeqId id, std::int64_t position);
    // Drops positions from `length` on, which must not lie before the base, and frees their pages
    // (a ring and the pages before it stay). Pages that will be overwritten, including that of
    // `length`, must be the sequence's own; they can no longer be found.
    void truncate(SeqId id, std::int64_t length);

    std::int64_t length(SeqId id) const;  // committed positions
    void advance(SeqId id, std::int64_t count);
    std::int64_t base(SeqId id) const;  // a multiple of kPageTokens
    std::int64_t held(SeqId id) const;  // pages that it holds, shared ones included
    // Circular, and a power of two of entries: some of them may be unused.
    std::span<const std::int32_t> table(SeqId id) const;
    std::int32_t page_at(SeqId id, std::int64_t position) const;
    // The part of the table for the pages of positions [base, end), to copy it elsewhere: entries
    // [first, first + pages.size()). `end` -1: all reserved pages, and those that a ring will write
    // next.
    struct TablePart {
        std::int64_t first;
        std::span<const std::int32_t> pages;
    };
    TablePart table_part(SeqId id, std::int64_t end = -1) const;
    // The ring of a sequence. Pages below `end` have their entries. From there on page i takes the
    // entry of page i - pages; pages 0: there is no ring.
    struct Circle {
        std::int64_t end, pages;
    };
    Circle circle(SeqId id) const;
    ops::PagedKv layer(int index) const;
    DType dtype() const { return dtype_; }
    std::int64_t page_count() const { return static_cast<std::int64_t>(pages_.size()); }
    // Positions that can still be reserved: in free pages, and in pages that are only kept to be
    // found again.
    std::int64_t free_tokens() const;
    // Takes a page that belongs to no sequence, permanently.
    std::int32_t take_page();

    // Publishes the sequence's whole pages: positions [0, length) were computed from `tokens` in
    // this form, and adopt() can find them from now on, whether or not the sequence continues.
    // Pages of a ring are left out. `with_part`: the sequence is no longer written, so a partial
    // last page and the pages of a ring are published, too. Pages before the base are published
    // already or never. `salt`: only adopt() with the same salt finds them. Use few salts: each
    // stays in memory.
    void publish(SeqId id, std::span<const std::int32_t> tokens, Form form, bool with_part = false,
                 std::uint64_t salt = 0);
    // Gives an empty sequence the pages of the longest known prefix of `tokens` in this form, a
    // multiple of `cut` and at most `most` positions long, and returns its length. If the prefix
    // ends inside a page, `copy` says which page to copy to which.
    struct PageCopy {
        std::int32_t to = -1, from = -1;
    };
    std::int64_t adopt(SeqId id, std::span<const std::int32_t> tokens, Form form, std::int64_t cut,
                       std::int64_t most, std::optional<PageCopy>& copy, std::uint64_t salt = 0);
    // Makes the empty sequence `to` share the pages of the first `length` positions of `from`,
    // filled or not; `from` must hold all of them, and none may lie in its ring. A partial last
    // page is not shared: `to` gets a new one, and `copy` says what to copy once it is written.
    // Commits nothing. False: no page was left.
    bool fork(SeqId to, SeqId from, std::int64_t length, std::optional<PageCopy>& copy);

    // Drops all published pages, because the weights have changed.
    void forget_all();

    // For tests: every page is free, kept, or held by as many sequences as its count says.
    void check_books() const;
    std::int64_t kept_pages() const { return kept_count_; }

  private:
    static constexpr std::int32_t kNone = -1;
    struct Sequence {
        bool open = false;
        std::int64_t length = 0, base = 0;
        std::int64_t end = 0;             // pages [base / kPageTokens, end) have entries
        std::int64_t circle = 0;          // pages of the ring
        std::int64_t prefix = 0;          // pages before the ring
        std::vector<std::int32_t> table;  // [table_entries()]
        Stream stream;
        std::vector<std::int32_t> front;  // pages of sinks before the base

        std::int64_t first() const { return base / kPageTokens; }
        std::int32_t& page(std::int64_t i) {
            return table[ops::table_entry(static_cast<std::size_t>(i), table.size())];
        }
        std::int32_t page(std::int64_t i) const { return const_cast<Sequence*>(this)->page(i); }
        // Calls use(page number) for all pages it holds, from the front.
        template <typename Use>
        void each(Use&& use) const {
            for (const std::int32_t index : front) use(index);
            for (std::int64_t i = first(); i < (circle > 0 ? prefix : end); ++i) use(page(i));
            for (std::int64_t i = end - circle; i < end; ++i) use(page(i));
        }
    };
    struct Page {
        std::int32_t holders = 0;  // sequences that hold it
        // For a published page: its tokens, and the page before it. Serial numbers are never
        // reused, so a page's place in a chain is exact and does not rely on a hash.
        std::uint64_t serial = 0, parent = 0;  // 0: not published; of a first page, its salt's root
        Form form = Form::prompt;
        std::int32_t count = 0;  // number of its tokens
        std::int32_t tokens[kPageTokens] = {};
        // The published pages behind the same parent, latest first.
        std::int32_t sibling_before = kNone, sibling_after = kNone;
        // Published pages that no sequence holds, least recently used first.
        std::int32_t kept_before = kNone, kept_after = kNone;
    };
    // What a page begins with, and the order of pages by it. In this order the page that has most
    // tokens in common with a text is next to the text's own place.
    struct Start {
        std::uint64_t parent;
        Form form;
        std::span<const std::int32_t> tokens;
    };
    struct ByStart {
        using is_transparent = void;
        const Page* pages = nullptr;
        Start start(std::int32_t index) const {
            const Page& p = pages[index];
            return {p.parent, p.form, {p.tokens, static_cast<std::size_t>(p.count)}};
        }
        static std::strong_ordering compare(const Start& a, const Start& b);
        bool operator()(std::int32_t a, std::int32_t b) const;
        bool operator()(std::int32_t page, const Start& text) const;
    };
    Sequence& at(SeqId id);
    const Sequence& at(SeqId id) const;
    Page& page(std::int32_t index) { return pages_[static_cast<std::size_t>(index)]; }
    const Page& page(std::int32_t index) const { return pages_[static_cast<std::size_t>(index)]; }
    bool available(std::int64_t count) const;
    void push(Sequence& sequence, std::int32_t index);
    void pop_to(Sequence& sequence, std::int64_t end);
    std::int32_t take();
    void find_oldest();
    std::int32_t first_child(std::uint64_t parent) const;
    void drop(std::int32_t index);
    void hold(std::int32_t index);
    void keep(std::int32_t index);
    void unkeep(std::int32_t index);
    void forget(std::int32_t index);
    void make_known(std::int32_t index, std::uint64_t parent, Form form,
                    std::span<const std::int32_t> tokens);
    static std::uint64_t key_of(std::uint64_t parent, Form form, const std::int32_t* tokens);
    std::int32_t find(std::uint64_t parent, Form form, const std::int32_t* tokens) const;
    std::int32_t find_part(const Start& text, std::int64_t& length) const;

    DType dtype_;
    Arena arena_;
    std::vector<ops::PagedKv> layers_;
    std::vector<Sequence> sequences_;
    std::vector<Page> pages_;
    std::vector<std::int32_t> free_;
    std::int32_t oldest_ = kNone, newest_ = kNone;  // of the kept pages
    std::int64_t kept_count_ = 0, taken_count_ = 0;
    std::uint64_t next_serial_ = 1;
    // The parent of first pages, by salt: a serial number without a page. Salt 0 has 0.
    std::unordered_map<std::uint64_t, std::uint64_t> roots_{{0, 0}};
    // Published pages. A root may have as many children as the pool has pages, and every admission
    // looks them up and evicts some: nothing here may take time for each of them.
    std::unordered_multimap<std::uint64_t, std::int32_t> known_;  // whole pages, by key_of()
    std::unordered_map<std::uint64_t, std::int32_t> children_;    // the latest child, by parent
    std::set<std::int32_t, ByStart> starts_;                      // all pages
};

}  // namespace mr::model
