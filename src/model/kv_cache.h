// The paged KV cache: one pool of pages, allocated once, and the book of every sequence: its
// committed length, its base (the first position whose page it still holds) and its pages.
// Sequences with equal prefixes share pages.
#pragma once

#include <cstdint>
#include <optional>
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
    // Pages of a pool of `tokens` positions: every sequence may leave its last page part empty.
    static std::int64_t pool_pages(std::int64_t tokens, int sequences) {
        return pages_for(tokens) + sequences - 1;
    }

    // Entries of the circular table of a sequence (ops/attention/paged/page_table.h): a power of
    // two, and no fewer than the pages that one sequence can hold at once.
    static std::int64_t table_entries(std::int64_t pages, std::int64_t context);

    // At most `sequences` at a time, each of at most `context` positions. The pages lie in memory
    // of its own, or in the bytes() at `memory`, which may be a device's: it never looks into them.
    KvCache(const ModelSpec& spec, std::int64_t pages, int sequences, std::int64_t context,
            DType dtype, std::byte* memory = nullptr);

    static std::uint64_t bytes(const ModelSpec& spec, std::int64_t pages, DType dtype);

    SeqId open();          // a new, empty sequence
    void close(SeqId id);  // gives its pages back; published ones can be found until they are taken
    // Before anything is given back. The pages of its sinks stay when others are given back.
    void set_stream(SeqId id, const Stream& stream);
    const Stream& stream(SeqId id) const { return at(id).stream; }
    // The pages of sinks that lie before the base.
    std::span<const std::int32_t> front(SeqId id) const { return at(id).front; }
    // Makes room for positions [base, length); where no page is left it takes none and says no.
    bool try_reserve(SeqId id, std::int64_t length);
    // Makes room for positions [base, prefix) as above, and for all that follow in `pages` pages of
    // the sequence's own, once and for all: page i behind `prefix` is written again as page i +
    // `pages`, when room is made for that one and release_before() has passed page i. So no shared
    // or published page is ever written again: those lie before `prefix`.
    bool try_reserve_circle(SeqId id, std::int64_t prefix, std::int64_t pages);
    // ... and throws Error (device) instead of saying no.
    void reserve(SeqId id, std::int64_t length);
    // Gives back the whole pages before `position`, which is committed at most: no query to come
    // sees them. Those that are shared lose a holder, those that are published can be found until
    // they are taken, those of a circle stay the sequence's own. Those of sinks stay, too.
    void release_before(SeqId id, std::int64_t position);
    // Forgets positions from `length` on, not before the base, and gives back the pages behind
    // them (a circle and the pages before it stay). Pages that will be written again, that of
    // `length` among them, must be the sequence's own; they are not found any more.
    void truncate(SeqId id, std::int64_t length);

    std::int64_t length(SeqId id) const;  // committed positions
    void advance(SeqId id, std::int64_t count);
    std::int64_t base(SeqId id) const;                    // a multiple of kPageTokens
    std::int64_t held(SeqId id) const;                    // pages that it has, shared ones included
    std::span<const std::int32_t> table(SeqId id) const;  // [table_entries()]
    std::int32_t page_at(SeqId id, std::int64_t position) const;
    // The part of the table that has the pages of positions [base, end), to send it elsewhere:
    // entries [first, first + pages.size()). `end` -1: all for which there is room, and those that
    // a circle will write next.
    struct TablePart {
        std::int64_t first;
        std::span<const std::int32_t> pages;
    };
    TablePart table_part(SeqId id, std::int64_t end = -1) const;
    // Pages below `end` have their entries. From there on page i takes the entry of page i - pages;
    // 0 pages: there is no circle.
    struct Circle {
        std::int64_t end, pages;
    };
    Circle circle(SeqId id) const;
    ops::PagedKv layer(int index) const;
    DType dtype() const { return dtype_; }
    std::int64_t page_count() const { return static_cast<std::int64_t>(pages_.size()); }
    // Positions that could still be reserved: of free pages, and of pages that are only kept to be
    // found again.
    std::int64_t free_tokens() const;
    // A page that belongs to no sequence, for good.
    std::int32_t take_page();

    // The positions [0, length) of the sequence were computed from `tokens` in this form: its whole
    // pages can be found from now on, whether or not the sequence goes on; not those of a circle.
    // `with_part`: the sequence is written no more, and its last page, too, where that is not
    // whole, and those of a circle. Pages before the base are published already or never.
    // `salt`: only adopt() with the same one finds them. Salts are few: each stays in the books.
    void publish(SeqId id, std::span<const std::int32_t> tokens, Form form, bool with_part = false,
                 std::uint64_t salt = 0);
    // Gives an empty sequence the pages that hold the longest known prefix of `tokens` in this
    // form, a multiple of `cut` and at most `most` positions long, and returns its length. Where
    // the prefix ends inside of a page, `copy` says which page is to be copied to which.
    struct PageCopy {
        std::int32_t to = -1, from = -1;
    };
    std::int64_t adopt(SeqId id, std::span<const std::int32_t> tokens, Form form, std::int64_t cut,
                       std::int64_t most, std::optional<PageCopy>& copy, std::uint64_t salt = 0);
    // Makes the empty sequence `to` share the pages that hold the first `length` positions of
    // `from`, as they are or will be; `from` has given back none of them, and none lies in its
    // circle. A last page that is not whole is not shared but taken anew:
    // `copy` says so, and is due when it is written. Commits nothing. False: no page was left.
    bool fork(SeqId to, SeqId from, std::int64_t length, std::optional<PageCopy>& copy);

    // What is published is not found any more: the weights have changed.
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
        std::int64_t circle = 0;          // pages that go round
        std::int64_t prefix = 0;          // pages before those
        std::vector<std::int32_t> table;  // [table_entries()]
        Stream stream;
        std::vector<std::int32_t> front;  // pages of sinks before the base

        std::int64_t first() const { return base / kPageTokens; }
        std::int32_t& page(std::int64_t i) {
            return table[ops::table_entry(static_cast<std::size_t>(i), table.size())];
        }
        std::int32_t page(std::int64_t i) const { return const_cast<Sequence*>(this)->page(i); }
        // Calls use(page number) for all that it holds, from the front.
        template <typename Use>
        void each(Use&& use) const {
            for (const std::int32_t index : front) use(index);
            for (std::int64_t i = first(); i < (circle > 0 ? prefix : end); ++i) use(page(i));
            for (std::int64_t i = end - circle; i < end; ++i) use(page(i));
        }
    };
    struct Page {
        std::int32_t holders = 0;  // sequences that have it
        // Of a published page: what it holds, and after which page. Serial numbers are never used
        // twice, so a page's place in a chain is exact and no hash has to be trusted.
        std::uint64_t serial = 0, parent = 0;  // 0: not published; a root of a first page's salt
        Form form = Form::prompt;
        std::int32_t count = 0;  // of tokens that it holds
        std::int32_t tokens[kPageTokens] = {};
        // Published pages that no sequence holds, the longest unused first.
        std::int32_t kept_before = kNone, kept_after = kNone;
    };
    Sequence& at(SeqId id);
    const Sequence& at(SeqId id) const;
    Page& page(std::int32_t index) { return pages_[static_cast<std::size_t>(index)]; }
    bool available(std::int64_t count) const;
    void push(Sequence& sequence, std::int32_t index);
    void pop_to(Sequence& sequence, std::int64_t end);
    std::int32_t take();
    std::int32_t last_kept_of_chain(std::int32_t index) const;
    void drop(std::int32_t index);
    void hold(std::int32_t index);
    void keep(std::int32_t index);
    void unkeep(std::int32_t index);
    void forget(std::int32_t index);
    void make_known(std::int32_t index, std::uint64_t parent, Form form,
                    std::span<const std::int32_t> tokens);
    static std::uint64_t key_of(std::uint64_t parent, Form form, const std::int32_t* tokens);
    std::int32_t find(std::uint64_t parent, Form form, const std::int32_t* tokens) const;

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
    std::unordered_multimap<std::uint64_t, std::int32_t> known_;     // whole pages, by key_of()
    std::unordered_multimap<std::uint64_t, std::int32_t> children_;  // all pages, by parent
};

}  // namespace mr::model
