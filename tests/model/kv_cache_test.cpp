#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "core/error.h"
#include "model/kv_cases.h"

namespace mr::model::kv_cache_test {
namespace {

using test::computed;
using test::kPage;

class Cache : public testing::Test {
  protected:
    KvCache cache_{test::one_layer(), 16, 6, 16 * kPage, DType::f32};
    std::optional<KvCache::PageCopy> copy_;

    std::int64_t adopt(SeqId seq, const std::vector<std::int32_t>& tokens, std::int64_t cut = 1,
                       Form form = Form::prompt) {
        return cache_.adopt(seq, tokens, form, cut, static_cast<std::int64_t>(tokens.size()) - 1,
                            copy_);
    }
    void TearDown() override { cache_.check_books(); }
};

TEST_F(Cache, SaysNoAndTakesNothingWhereNoPageIsLeft) {
    const SeqId a = cache_.open(), b = cache_.open();
    EXPECT_TRUE(cache_.try_reserve(a, 10 * kPage));
    EXPECT_FALSE(cache_.try_reserve(b, 7 * kPage));
    EXPECT_EQ(cache_.held(b), 0);
    EXPECT_EQ(cache_.free_tokens(), 6 * kPage);
    EXPECT_TRUE(cache_.try_reserve(b, 6 * kPage));
    EXPECT_THROW(cache_.reserve(b, 7 * kPage), Error);
}

TEST_F(Cache, EqualPrefixesShareWholePages) {
    const auto tokens = test::counted(3 * kPage + 5);
    const SeqId first = computed(cache_, tokens);
    cache_.publish(first, tokens, Form::prompt);
    const SeqId second = cache_.open();
    EXPECT_EQ(adopt(second, tokens, kPage), 3 * kPage);
    EXPECT_EQ(cache_.length(second), 3 * kPage);
    EXPECT_FALSE(copy_);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(cache_.table(second)[i], cache_.table(first)[i]);
    // A sequence that differs in its second page shares the first.
    auto other = tokens;
    other[kPage + 3] = 999;
    const SeqId third = cache_.open();
    EXPECT_EQ(adopt(third, other, kPage), kPage);
    EXPECT_EQ(adopt(cache_.open(), other, 2 * kPage), 0) << "a cut is a multiple of two pages";
}

TEST_F(Cache, AFormIsPartOfWhatAPageHolds) {
    const auto tokens = test::counted(2 * kPage + 1);
    const SeqId first = computed(cache_, tokens);
    cache_.publish(first, tokens, Form::decode);
    EXPECT_EQ(adopt(cache_.open(), tokens, kPage, Form::prompt), 0);
    EXPECT_EQ(adopt(cache_.open(), tokens, kPage, Form::decode), 2 * kPage);
}

TEST_F(Cache, APageIsFoundUnderItsSaltAlone) {
    const auto tokens = test::counted(2 * kPage + 10);
    const auto most = static_cast<std::int64_t>(tokens.size()) - 1;
    const auto adopt_with = [&](std::uint64_t salt) {
        const SeqId seq = cache_.open();
        const std::int64_t found = cache_.adopt(seq, tokens, Form::prompt, 1, most, copy_, salt);
        cache_.close(seq);
        return found;
    };
    const SeqId first = computed(cache_, tokens);
    cache_.publish(first, tokens, Form::prompt, true, 7);
    cache_.close(first);
    EXPECT_EQ(adopt_with(7), most);
    // Salts are not confused with serial numbers of pages: the first page of salt 7 has one of the
    // smallest.
    for (const std::uint64_t salt : {0, 1, 2, 3, 4, 8}) EXPECT_EQ(adopt_with(salt), 0) << salt;
    // The same tokens under another salt are published separately, in their own pages.
    const SeqId second = computed(cache_, tokens);
    cache_.publish(second, tokens, Form::prompt, true);
    cache_.close(second);
    EXPECT_EQ(adopt_with(0), most);
    EXPECT_EQ(adopt_with(7), most);
    EXPECT_EQ(adopt_with(8), 0);
    EXPECT_EQ(cache_.kept_pages(), 6);
    cache_.forget_all();
    EXPECT_EQ(adopt_with(7), 0);
}

TEST_F(Cache, APrefixThatEndsInsideOfAPageIsCopied) {
    const auto tokens = test::counted(2 * kPage + 10);
    const SeqId first = computed(cache_, tokens);
    cache_.publish(first, tokens, Form::prompt, true);
    const std::int32_t part = cache_.table(first)[2];
    cache_.close(first);
    auto longer = tokens;
    longer.resize(static_cast<std::size_t>(2 * kPage + 7));
    longer.push_back(5000);
    longer.push_back(5001);
    const SeqId second = cache_.open();
    EXPECT_EQ(adopt(second, longer), 2 * kPage + 7);
    ASSERT_TRUE(copy_);
    EXPECT_EQ(copy_->from, part);
    EXPECT_EQ(copy_->to, cache_.table(second)[2]);
    EXPECT_NE(copy_->to, copy_->from);
}

TEST_F(Cache, PagesThatAreOnlyKeptAreGivenAwayTheOldestFirst) {
    const auto old = test::counted(4 * kPage), young = test::counted(4 * kPage, 1000);
    const SeqId a = computed(cache_, old);
    cache_.publish(a, old, Form::prompt);
    cache_.close(a);
    const SeqId b = computed(cache_, young);
    cache_.publish(b, young, Form::prompt);
    cache_.close(b);
    EXPECT_EQ(cache_.kept_pages(), 8);
    EXPECT_EQ(cache_.free_tokens(), 16 * kPage) << "kept pages are free to take";
    const SeqId c = cache_.open();
    EXPECT_TRUE(cache_.try_reserve(c, 11 * kPage));  // eight free ones, three of the older text
    EXPECT_EQ(adopt(cache_.open(), young, kPage), 3 * kPage);
    // The last pages of a chain are evicted first: the rest can still be found.
    EXPECT_EQ(adopt(cache_.open(), old, kPage), kPage);
}

TEST_F(Cache, AForkSharesWholePagesAndHasALastOneOfItsOwn) {
    const auto tokens = test::counted(2 * kPage + 9);
    const SeqId leader = cache_.open();
    cache_.reserve(leader, static_cast<std::int64_t>(tokens.size()));
    const SeqId follower = cache_.open();
    ASSERT_TRUE(cache_.fork(follower, leader, static_cast<std::int64_t>(tokens.size()), copy_));
    ASSERT_TRUE(copy_);
    EXPECT_EQ(copy_->from, cache_.table(leader)[2]);
    EXPECT_EQ(copy_->to, cache_.table(follower)[2]);
    EXPECT_EQ(cache_.table(follower)[1], cache_.table(leader)[1]);
    EXPECT_EQ(cache_.length(follower), 0) << "nothing is computed yet";
    cache_.close(leader);
    EXPECT_EQ(cache_.free_tokens(), (16 - 3) * kPage);
}

TEST_F(Cache, WhatIsWrittenAnewIsNotFoundAsWhatItWas) {
    const auto tokens = test::counted(2 * kPage);
    const SeqId first = computed(cache_, tokens);
    cache_.publish(first, tokens, Form::prompt);
    cache_.truncate(first, kPage + 4);  // and then continues with another text
    EXPECT_EQ(adopt(cache_.open(), test::counted(2 * kPage + 1), 1), kPage);
}

TEST_F(Cache, WeightsThatChangeMakeAllPagesUnknown) {
    const auto tokens = test::counted(2 * kPage + 1);
    const SeqId held = computed(cache_, tokens),
                given_back = computed(cache_, test::counted(kPage, 500));
    cache_.publish(held, tokens, Form::prompt);
    cache_.publish(given_back, test::counted(kPage, 500), Form::prompt);
    cache_.close(given_back);
    cache_.forget_all();
    cache_.check_books();
    EXPECT_EQ(cache_.kept_pages(), 0);
    EXPECT_EQ(adopt(cache_.open(), tokens, kPage), 0);
}

TEST_F(Cache, ASharedPageCannotBeWrittenAnew) {
    const auto tokens = test::counted(2 * kPage);
    const SeqId first = computed(cache_, tokens);
    cache_.publish(first, tokens, Form::prompt);
    const SeqId second = cache_.open();
    ASSERT_EQ(adopt(second, test::counted(2 * kPage + 1), kPage), 2 * kPage);
    EXPECT_THROW(cache_.truncate(second, kPage + 4), ContractError);
}

// A cache of many pages that never reads them: they need no memory.
KvCache large(int pages) {
    return KvCache(test::one_layer(), pages, 2, 16 * kPage, DType::f32,
                   reinterpret_cast<std::byte*>(64));
}

// Admits, computes, publishes and closes a text; returns how much of it was found.
std::int64_t served(KvCache& cache, const std::vector<std::int32_t>& tokens, std::int64_t cut,
                    bool with_part) {
    std::optional<KvCache::PageCopy> copy;
    const auto size = static_cast<std::int64_t>(tokens.size());
    const SeqId seq = cache.open();
    const std::int64_t found = cache.adopt(seq, tokens, Form::prompt, cut, size - 1, copy);
    cache.reserve(seq, size);
    cache.advance(seq, size - found);
    cache.publish(seq, tokens, Form::prompt, with_part);
    cache.close(seq);
    return found;
}

TEST(CacheOfManyTexts, FindsTheLongestPrefixOfThemAll) {
    KvCache cache = large(4000);
    std::vector<std::vector<std::int32_t>> texts;
    std::mt19937 random(7);
    for (int i = 0; i < 1000; ++i) {
        // Few different tokens: many texts begin alike.
        std::vector<std::int32_t> text(1 + random() % (2 * kPage));
        for (std::size_t k = 0; k < text.size(); ++k) text[k] = k % 9 ? 1 : random() % 3;
        if (i % 3 == 1) {  // another text, and then something else
            text = texts[random() % texts.size()];
            text.resize(1 + random() % text.size());
            text.insert(text.end(), 10, static_cast<std::int32_t>(random() % 3));
        }
        std::ptrdiff_t longest = 0;
        for (const auto& other : texts) {
            const auto same = std::mismatch(text.begin(), text.end(), other.begin(), other.end());
            longest = std::max(longest, same.first - text.begin());
        }
        longest = std::min(longest, static_cast<std::ptrdiff_t>(text.size()) - 1);
        ASSERT_EQ(served(cache, text, 1, true), longest) << "text " << i;
        texts.push_back(text);
        if (i % 50 == 0) cache.check_books();
    }
    cache.check_books();
}

// Every page is the first of its text, so all are children of one root. While each was looked at
// for every text and every eviction, this took minutes; now it takes a second of the processor.
TEST(CacheOfManyTexts, ATextTakesNoTimeForEachOfThem) {
    constexpr int kPages = 60'000;
    KvCache cache = large(kPages);
    const std::clock_t begin = std::clock();
    auto tokens = test::counted(kPage + 1);
    for (const std::int64_t cut : {std::int64_t{kPage}, std::int64_t{1}}) {
        for (int i = 0; i < kPages; ++i) {
            ++tokens[cut == 1 ? 1 : 0];
            EXPECT_EQ(served(cache, tokens, cut, false), cut == 1 ? 1 : 0);
        }
    }
    EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 20);
    EXPECT_EQ(cache.kept_pages(), kPages - 1);
    cache.check_books();
}

// A window gives pages back from the front, so the oldest kept page is the first of a long chain,
// and the last one is evicted first. While every eviction walked the whole chain, this took
// minutes.
TEST(CacheOfManyTexts, AnEvictionWalksNoWholeChain) {
    constexpr int kPages = 40'000, kTexts = 10'000;
    KvCache cache(test::one_layer(), kPages, 2, std::int64_t{kPages} * kPage, DType::f32,
                  reinterpret_cast<std::byte*>(64));
    const auto tokens = test::counted(kPages * kPage);
    const SeqId seq = computed(cache, tokens);
    cache.publish(seq, tokens, Form::prompt);
    for (int page = 1; page <= kPages; ++page) cache.release_before(seq, page * kPage);
    cache.close(seq);
    const std::clock_t begin = std::clock();
    for (int i = 1; i <= kTexts; ++i) {
        EXPECT_EQ(served(cache, std::vector<std::int32_t>(kPage + 1, -i), kPage, false), 0);
    }
    EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 10);
    cache.check_books();
    // What is left of the chain is its beginning. A text has a whole page to keep and one to free.
    EXPECT_EQ(served(cache, test::counted(kPages * kPage), kPage, false) / kPage,
              kPages - kTexts - 1);
}

}  // namespace
}  // namespace mr::model::kv_cache_test
