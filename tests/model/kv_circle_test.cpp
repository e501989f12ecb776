// Sequences that release pages: the base, rings of pages, and what is shared of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "model/kv_cases.h"

namespace mr::model {
namespace {

using test::kPage;

class Circle : public testing::Test {
  protected:
    // Contexts are longer than the pool: tables have 16 entries, and positions wrap around in them.
    KvCache cache_{test::one_layer(), 16, 6, 1000 * kPage, DType::f32};
    std::optional<KvCache::PageCopy> copy_;

    SeqId computed(const std::vector<std::int32_t>& tokens) {
        return test::computed(cache_, tokens);
    }
    std::int64_t adopt(SeqId seq, const std::vector<std::int32_t>& tokens) {
        return cache_.adopt(seq, tokens, Form::prompt, kPage,
                            static_cast<std::int64_t>(tokens.size()) - 1, copy_);
    }
    std::int64_t free_pages() const { return cache_.free_tokens() / kPage; }
    void TearDown() override { cache_.check_books(); }
};

TEST_F(Circle, ATableHasAPowerOfTwoOfEntries) {
    EXPECT_EQ(KvCache::table_entries(100, 1), 1);
    EXPECT_EQ(KvCache::table_entries(100, 5 * kPage), 8);
    EXPECT_EQ(KvCache::table_entries(100, 64 * kPage), 64);
    EXPECT_EQ(KvCache::table_entries(17, 1000 * kPage), 32);
    EXPECT_EQ(cache_.table(cache_.open()).size(), 16u);
}

TEST_F(Circle, WholePagesAreGivenBack) {
    const SeqId seq = computed(test::counted(5 * kPage + 3));
    const std::int32_t third = cache_.page_at(seq, 2 * kPage);
    cache_.release_before(seq, kPage - 1);
    EXPECT_EQ(cache_.base(seq), 0);
    cache_.release_before(seq, 3 * kPage - 1);
    EXPECT_EQ(cache_.base(seq), 2 * kPage);
    EXPECT_EQ(cache_.held(seq), 4);
    EXPECT_EQ(free_pages(), 12);
    EXPECT_EQ(cache_.length(seq), 5 * kPage + 3) << "positions keep their numbers";
    EXPECT_EQ(cache_.page_at(seq, 2 * kPage), third);
    EXPECT_THROW(cache_.page_at(seq, 2 * kPage - 1), ContractError);
    cache_.release_before(seq, kPage);  // released already
    EXPECT_EQ(cache_.base(seq), 2 * kPage);
    EXPECT_THROW(cache_.release_before(seq, 6 * kPage), ContractError);  // not committed
    cache_.check_books();
    cache_.release_before(seq, cache_.length(seq));
    EXPECT_EQ(cache_.held(seq), 1);
    cache_.close(seq);
    EXPECT_EQ(free_pages(), 16);
}

TEST_F(Circle, AnOpenedSequenceBeginsAnew) {
    const SeqId seq = computed(test::counted(5 * kPage));
    cache_.release_before(seq, 5 * kPage);
    EXPECT_EQ(cache_.held(seq), 0);
    cache_.close(seq);
    const SeqId next = cache_.open();
    EXPECT_EQ(next, seq);
    EXPECT_EQ(cache_.base(next), 0);
    EXPECT_EQ(cache_.circle(next).pages, 0);
}

TEST_F(Circle, TruncationEndsAtTheBase) {
    const SeqId seq = computed(test::counted(5 * kPage));
    cache_.release_before(seq, 2 * kPage);
    EXPECT_THROW(cache_.truncate(seq, 2 * kPage - 1), ContractError);
    cache_.truncate(seq, 3 * kPage + 5);
    EXPECT_EQ(cache_.held(seq), 2);
    cache_.truncate(seq, 2 * kPage);
    EXPECT_EQ(cache_.held(seq), 0);
    EXPECT_EQ(free_pages(), 16);
    cache_.reserve(seq, 4 * kPage);
    EXPECT_EQ(cache_.held(seq), 2);
}

TEST_F(Circle, ASharedPageLosesAHolderAndIsFoundAsBefore) {
    const auto tokens = test::counted(4 * kPage + 1);
    const SeqId first = computed(tokens);
    cache_.publish(first, tokens, Form::prompt);
    const SeqId second = cache_.open();
    ASSERT_EQ(adopt(second, tokens), 4 * kPage);
    const std::int32_t shared = cache_.page_at(first, 0);
    cache_.release_before(first, 4 * kPage);
    cache_.check_books();
    EXPECT_EQ(cache_.kept_pages(), 0);
    EXPECT_EQ(cache_.page_at(second, 0), shared);
    cache_.release_before(second, 4 * kPage);
    EXPECT_EQ(cache_.kept_pages(), 4) << "they have no holder, and they can be found";
    const SeqId third = cache_.open();
    EXPECT_EQ(adopt(third, tokens), 4 * kPage);
    EXPECT_EQ(cache_.page_at(third, 0), shared);
}

// Pages are released from the front, one by one, as a window moves. When a page is needed, the last
// one of the chain is evicted: the others can still be found.
TEST_F(Circle, AChainIsGivenAwayFromItsEnd) {
    const auto tokens = test::counted(6 * kPage + 1);
    const SeqId first = computed(tokens);
    cache_.publish(first, tokens, Form::prompt);
    for (int i = 1; i <= 6; ++i) cache_.release_before(first, i * kPage);
    EXPECT_EQ(cache_.kept_pages(), 6);
    const SeqId other = cache_.open();
    cache_.reserve(other, free_pages() * kPage - 5 * kPage);  // all free ones and a kept one
    EXPECT_EQ(cache_.kept_pages(), 5);
    const SeqId second = cache_.open();
    EXPECT_EQ(adopt(second, tokens), 5 * kPage);
}

// Pages before a ring that will be overwritten must be the sequence's own by then.
TEST_F(Circle, GoingBackBeforeACircleTouchesNoSharedPage) {
    const auto tokens = test::counted(4 * kPage + 1);
    const SeqId first = cache_.open();
    ASSERT_TRUE(cache_.try_reserve_circle(first, 4 * kPage, 2));
    cache_.advance(first, 4 * kPage);
    cache_.publish(first, tokens, Form::prompt);
    const SeqId second = cache_.open();
    ASSERT_EQ(adopt(second, tokens), 4 * kPage);
    EXPECT_THROW(cache_.truncate(first, kPage), ContractError);
    cache_.close(second);
    cache_.truncate(first, kPage);
    const SeqId third = cache_.open();
    EXPECT_EQ(adopt(third, tokens), kPage) << "what is written again is not found";
}

// Later pages are published after released ones, as long as those are known.
TEST_F(Circle, PublishingGoesOnBehindTheBase) {
    const auto tokens = test::counted(6 * kPage + 1);
    const SeqId seq = cache_.open();
    cache_.reserve(seq, 6 * kPage);
    cache_.advance(seq, 3 * kPage);
    cache_.publish(seq, tokens, Form::prompt);
    cache_.release_before(seq, 2 * kPage);
    cache_.advance(seq, 3 * kPage);
    cache_.publish(seq, tokens, Form::prompt);
    EXPECT_EQ(adopt(cache_.open(), tokens), 6 * kPage);
    // Unknown ones break the chain: nothing after them is published.
    const auto other = test::counted(6 * kPage + 1, 1000);
    const SeqId late = computed(other);
    cache_.release_before(late, 2 * kPage);
    cache_.publish(late, other, Form::prompt);
    cache_.check_books();
    EXPECT_EQ(adopt(cache_.open(), other), 0);
}

TEST_F(Circle, PagesAreWrittenAgainInOrder) {
    const SeqId seq = cache_.open();
    ASSERT_TRUE(cache_.try_reserve_circle(seq, kPage + 9, 3));  // two that it keeps
    EXPECT_EQ(cache_.held(seq), 5);
    EXPECT_EQ(cache_.circle(seq).end, 5);
    EXPECT_EQ(cache_.circle(seq).pages, 3);
    std::vector<std::int32_t> pages;
    for (int i = 0; i < 5; ++i) pages.push_back(cache_.page_at(seq, i * kPage));
    constexpr int kWindow = 2 * kPage + 1;
    for (int position = 0; position < 200 * kPage; ++position) {
        cache_.release_before(seq, std::max(0, position - kWindow + 1));
        cache_.reserve(seq, position + 1);
        cache_.advance(seq, 1);
        const int page = position / kPage;
        if (page >= 5) {
            ASSERT_EQ(cache_.page_at(seq, position),
                      pages[static_cast<std::size_t>(2 + (page - 2) % 3)]);
        }
        if (position % 100 == 0) cache_.check_books();
    }
    EXPECT_EQ(cache_.held(seq), 3) << "what it kept has left the window";
    EXPECT_EQ(free_pages(), 13);
    cache_.close(seq);
    EXPECT_EQ(free_pages(), 16);
}

TEST_F(Circle, APageIsNotWrittenAgainBeforeItIsGivenBack) {
    const SeqId seq = cache_.open();
    ASSERT_TRUE(cache_.try_reserve_circle(seq, 0, 3));
    cache_.advance(seq, 3 * kPage);
    EXPECT_THROW(cache_.reserve(seq, 3 * kPage + 1), ContractError);
    cache_.release_before(seq, kPage);
    EXPECT_NO_THROW(cache_.reserve(seq, 3 * kPage + 1));
    EXPECT_THROW(cache_.reserve(seq, 4 * kPage + 1), ContractError);
}

TEST_F(Circle, SaysNoAndTakesNothingWhereNoPageIsLeft) {
    const SeqId a = cache_.open(), b = cache_.open();
    ASSERT_TRUE(cache_.try_reserve_circle(a, 4 * kPage, 7));
    EXPECT_FALSE(cache_.try_reserve_circle(b, 2 * kPage, 4));
    EXPECT_EQ(cache_.held(b), 0);
    EXPECT_EQ(free_pages(), 5);
    EXPECT_THROW(cache_.try_reserve_circle(a, 4 * kPage, 1), ContractError) << "it has one";
    EXPECT_TRUE(cache_.try_reserve_circle(b, kPage, 4));
    EXPECT_FALSE(cache_.try_reserve(cache_.open(), 1));
}

// Shared pages lie before a ring. Pages of a ring are the sequence's own and cannot be found.
TEST_F(Circle, WhatGoesRoundIsNotShared) {
    const auto tokens = test::counted(4 * kPage + 1);
    const SeqId seq = cache_.open();
    ASSERT_TRUE(cache_.try_reserve_circle(seq, 2 * kPage, 2));
    cache_.advance(seq, 4 * kPage);
    cache_.publish(seq, tokens, Form::prompt);
    const SeqId other = cache_.open();
    EXPECT_EQ(adopt(other, tokens), 2 * kPage);
    EXPECT_EQ(cache_.page_at(other, 0), cache_.page_at(seq, 0));
    const SeqId fork = cache_.open();
    EXPECT_THROW(cache_.fork(fork, seq, 3 * kPage, copy_), ContractError);
    EXPECT_TRUE(cache_.fork(fork, seq, kPage + 3, copy_));
    EXPECT_EQ(copy_->from, cache_.page_at(seq, kPage));
    // It adopted pages and has a ring after them: they are never written.
    ASSERT_TRUE(cache_.try_reserve_circle(other, 2 * kPage, 2));
    const std::int32_t kept[] = {cache_.page_at(seq, 0), cache_.page_at(seq, kPage)};
    for (int position = 2 * kPage; position < 40 * kPage; ++position) {
        cache_.release_before(other, position - 3);
        cache_.reserve(other, position + 1);
        cache_.advance(other, 1);
        const std::int32_t page = cache_.page_at(other, position);
        ASSERT_TRUE(page != kept[0] && page != kept[1]);
    }
    cache_.release_before(seq, kPage);
    EXPECT_THROW(cache_.fork(cache_.open(), seq, kPage, copy_), ContractError);
    // A sequence that is no longer written publishes its last pages, too.
    const SeqId done = cache_.open();
    const auto last = test::counted(3 * kPage + 4, 5000);
    ASSERT_TRUE(cache_.try_reserve_circle(done, kPage, 3));
    cache_.advance(done, 3 * kPage + 4);
    cache_.publish(done, last, Form::prompt, true);
    cache_.close(done);
    EXPECT_EQ(adopt(cache_.open(), last), 3 * kPage);
}

TEST_F(Circle, ATruncatedCircleKeepsItsPages) {
    const SeqId seq = cache_.open();
    ASSERT_TRUE(cache_.try_reserve_circle(seq, 0, 3));
    cache_.advance(seq, 3 * kPage);
    cache_.release_before(seq, 2 * kPage);
    cache_.reserve(seq, 5 * kPage);
    cache_.advance(seq, kPage + 5);
    cache_.truncate(seq, 3 * kPage + 1);
    EXPECT_EQ(cache_.held(seq), 3);
    EXPECT_THROW(cache_.truncate(seq, 2 * kPage - 1), ContractError);
    EXPECT_NO_THROW(cache_.reserve(seq, 5 * kPage));
}

TEST_F(Circle, ThePartOfATableThatIsSent) {
    const SeqId seq = computed(test::counted(10 * kPage));
    EXPECT_EQ(cache_.table_part(seq).first, 0);
    EXPECT_EQ(cache_.table_part(seq).pages.size(), 10u);
    EXPECT_EQ(cache_.table_part(seq, 3 * kPage + 1).pages.size(), 4u);
    cache_.release_before(seq, 9 * kPage);
    EXPECT_EQ(cache_.table_part(seq).first, 9);
    cache_.reserve(seq, 16 * kPage);
    EXPECT_EQ(cache_.table_part(seq).pages.size(), 7u);
    cache_.reserve(seq, 17 * kPage);  // page 16 has entry 0
    EXPECT_EQ(cache_.table_part(seq).first, 0);
    EXPECT_EQ(cache_.table_part(seq).pages.size(), 16u);
    cache_.advance(seq, 7 * kPage);
    cache_.release_before(seq, 17 * kPage);
    cache_.reserve(seq, 20 * kPage);
    EXPECT_EQ(cache_.table_part(seq).first, 1);
    EXPECT_EQ(cache_.table_part(seq).pages.size(), 3u);
}

// A device that continues by itself needs the pages before the base that will be written next.
TEST_F(Circle, ThePartThatGoesOnByItself) {
    const SeqId seq = cache_.open();
    ASSERT_TRUE(cache_.try_reserve_circle(seq, 0, 6));
    cache_.advance(seq, 6 * kPage);
    cache_.release_before(seq, 5 * kPage);
    cache_.reserve(seq, 9 * kPage);
    EXPECT_EQ(cache_.table_part(seq, 9 * kPage).first, 5);
    EXPECT_EQ(cache_.table_part(seq, 9 * kPage).pages.size(), 4u);
    const KvCache::TablePart part = cache_.table_part(seq);
    EXPECT_EQ(part.first, 3);
    EXPECT_EQ(part.pages.size(), 6u);
    const KvCache::Circle circle = cache_.circle(seq);
    for (std::int64_t page = circle.end; page < circle.end + 2; ++page) {
        const std::int32_t next = part.pages[static_cast<std::size_t>(page - circle.pages - 3)];
        cache_.reserve(seq, (page + 1) * kPage);
        EXPECT_EQ(cache_.page_at(seq, page * kPage), next);
    }
}

// A row on a device has a copy of the table and applies the rule by itself: page `end` and later
// ones take the entry of the page `pages` before them. From any place in the ring it has the same
// pages as the cache.
TEST(CircleRow, GoesRoundWithoutTheBook) {
    for (const int window : {1, 12, 33, 75}) {
        for (const int kept : {0, 1, 40, 64, 150}) {
            const int piece = kept > 0 ? 1 : 96;
            const std::int64_t circle = ops::pages_spanned(window - 1 + piece);
            const std::vector<int> all{1, 96, 100, 190, 192, 320, 333, 992, 1000};
            for (const int joins : kept > 0 ? std::vector<int>{kept} : all) {  // after its prompt
                KvCache cache(test::one_layer(), KvCache::pages_for(kept) + circle + 3, 1, 100000,
                              DType::f32);
                const SeqId seq = cache.open();
                ASSERT_TRUE(cache.try_reserve_circle(seq, kept, circle));
                const auto feed = [&](std::int64_t count) {
                    const std::int64_t length = cache.length(seq);
                    cache.release_before(seq, std::max<std::int64_t>(0, length - window + 1));
                    cache.reserve(seq, length + count);
                    cache.advance(seq, count);
                };
                if (kept > 0) feed(joins);
                while (cache.length(seq) < joins) {
                    feed(std::min<std::int64_t>(piece, joins - cache.length(seq)));
                }
                const auto entries = static_cast<std::int64_t>(cache.table(seq).size());
                std::vector<std::int32_t> row(static_cast<std::size_t>(entries), -1);
                const KvCache::TablePart part = cache.table_part(seq);
                std::copy(part.pages.begin(), part.pages.end(), row.begin() + part.first);
                const KvCache::Circle rule = cache.circle(seq);
                const auto entry = [&](std::int64_t page) -> std::int32_t& {
                    return row[static_cast<std::size_t>(ops::table_entry(page, entries))];
                };
                for (std::int64_t position = joins; position < joins + 3000; ++position) {
                    const std::int64_t page = position / kPage;
                    if (position % kPage == 0 && page >= rule.end) {
                        entry(page) = entry(page - rule.pages);
                    }
                    feed(1);
                    for (std::int64_t p = std::max<std::int64_t>(0, position - window + 1);
                         p <= position; ++p) {
                        ASSERT_EQ(entry(p / kPage), cache.page_at(seq, p))
                            << "window " << window << " kept " << kept << " joins " << joins
                            << " position " << position << " key " << p;
                    }
                }
            }
        }
    }
}

// Random sequences that come and go, with and without rings, with shared prefixes. Every page
// remembers what was written to it: any position that a sequence can still see holds what it, or
// the sequence it shares with, wrote.
TEST(CircleLoad, EveryVisiblePositionIsWhatWasWritten) {
    constexpr int kPages = 40, kWindow = 50, kSequences = 7;
    KvCache cache(test::one_layer(), kPages, kSequences, 100000, DType::f32);
    std::vector<std::int64_t> written(kPages * kPage, -1);  // the token number at every place
    struct Text {
        SeqId seq;
        std::vector<std::int32_t> tokens;
        std::int64_t end, piece;
        bool published = false;
    };
    std::vector<Text> texts;
    std::uint64_t number = 0;
    const auto pick = [&](std::int64_t most) {
        return static_cast<std::int64_t>(philox(1, 2, ++number)[0] %
                                         static_cast<std::uint32_t>(most));
    };
    const auto place = [&](SeqId seq, std::int64_t position) -> std::int64_t& {
        return written[static_cast<std::size_t>(cache.page_at(seq, position) * kPage +
                                                position % kPage)];
    };
    std::int64_t ended = 0, shared = 0, turned = 0;
    for (int step = 0; step < 20000; ++step) {
        if (static_cast<int>(texts.size()) < kSequences && pick(4) == 0) {
            Text next{cache.open(), {}, 1 + pick(1500), 1 + pick(40)};
            const auto prompt = static_cast<int>(std::min<std::int64_t>(next.end, 1 + pick(200)));
            next.tokens = test::counted(prompt, static_cast<int>(pick(3)) * 10000);
            std::optional<KvCache::PageCopy> copy;
            const std::int64_t found =
                cache.adopt(next.seq, next.tokens, Form::prompt, kPage, prompt - 1, copy);
            const std::int64_t circle = ops::pages_spanned(kWindow - 1 + next.piece);
            const bool plain = pick(3) == 0;
            if (plain ? cache.try_reserve(next.seq, prompt)
                      : cache.try_reserve_circle(next.seq, prompt, circle)) {
                shared += found;
                texts.push_back(std::move(next));
            } else {
                cache.close(next.seq);
            }
        }
        if (texts.empty()) continue;
        const auto index = static_cast<std::size_t>(pick(static_cast<std::int64_t>(texts.size())));
        Text& t = texts[index];
        const std::int64_t from = cache.length(t.seq);
        const auto prompt = static_cast<std::int64_t>(t.tokens.size());
        const std::int64_t count = std::min(t.piece, (from < prompt ? prompt : t.end) - from);
        if (from >= prompt) {
            cache.release_before(t.seq, std::max<std::int64_t>(0, from - kWindow + 1));
        }
        const bool room = count > 0 && cache.try_reserve(t.seq, from + count);
        if (room) {
            for (std::int64_t i = from; i < from + count; ++i) {
                place(t.seq, i) =
                    i < prompt ? t.tokens[static_cast<std::size_t>(i)] : 1000000 * (t.seq + 1) + i;
            }
            for (std::int64_t i = std::max<std::int64_t>(0, from - kWindow + 1); i < from + count;
                 ++i) {
                ASSERT_EQ(place(t.seq, i), i < prompt ? t.tokens[static_cast<std::size_t>(i)]
                                                      : 1000000 * (t.seq + 1) + i)
                    << "position " << i << " of sequence " << t.seq << " in step " << step;
            }
            cache.advance(t.seq, count);
            if (!t.published && cache.length(t.seq) >= prompt) {
                cache.publish(t.seq, t.tokens, Form::prompt);
                t.published = true;
            }
        }
        if (!room || cache.length(t.seq) >= t.end) {
            turned += cache.base(t.seq) > 0;
            cache.close(t.seq);
            texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(index));
            ++ended;
        }
        if (step % 10 == 0) cache.check_books();
    }
    EXPECT_GT(ended, 200);
    EXPECT_GT(shared, 2000);
    EXPECT_GT(turned, 100);
}

}  // namespace
}  // namespace mr::model
