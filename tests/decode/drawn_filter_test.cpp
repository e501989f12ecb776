// A filter takes all earlier draws before it makes its mask, whether they have been read or not.
#include "decode/drawn_filter.h"

#include <gtest/gtest.h>

#include <vector>

namespace mr::decode::drawn_filter_test {
namespace {

constexpr std::int32_t kEnd = 9;

// Its mask is the number of tokens it has seen.
class Seen final : public ops::TokenFilter {
  public:
    explicit Seen(std::vector<std::int32_t>& tokens, std::size_t most = 100)
        : tokens_(tokens), most_(most) {}
    std::span<const std::uint32_t> mask() override {
        mask_ = static_cast<std::uint32_t>(tokens_.size());
        return {&mask_, 1};
    }
    void accept(std::int32_t token) override { tokens_.push_back(token); }
    bool finished() const override { return tokens_.size() >= most_; }

  private:
    std::vector<std::int32_t>& tokens_;
    const std::size_t most_;
    std::uint32_t mask_ = 0;
};

class DrawnFilterTest : public testing::Test {
  protected:
    DrawnFilter filter_of(std::size_t most = 100) {
        DrawnFilter filter(std::make_unique<Seen>(seen_, most),
                           [](std::int32_t token) { return token == kEnd; });
        filter.follow([this](std::int64_t number) {
            waited_.push_back(number);
            const std::int32_t token = draws_.at(static_cast<std::size_t>(number));
            if (token < 0) throw Error::input({.problem = "the logits are not finite"});
            return token;
        });
        return filter;
    }

    std::vector<std::int32_t> draws_{4, 5, 6, 7}, seen_;
    std::vector<std::int64_t> waited_;
};

TEST_F(DrawnFilterTest, AMaskWaitsForTheDrawBefore) {
    DrawnFilter filter = filter_of();
    EXPECT_EQ(filter.mask()[0], 0u);  // for the first draw
    filter.launched();
    EXPECT_EQ(filter.mask()[0], 1u);
    filter.launched();
    filter.accept(4);  // read after the next mask was made: the filter has it already
    EXPECT_EQ(filter.mask()[0], 2u);
    filter.accept(5);
    EXPECT_EQ(seen_, (std::vector<std::int32_t>{4, 5}));
    EXPECT_EQ(waited_, (std::vector<std::int64_t>{0, 1}));
}

TEST_F(DrawnFilterTest, WhatHasBeenReadIsNotWaitedFor) {
    DrawnFilter filter = filter_of();
    for (std::int32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(filter.mask()[0], static_cast<std::uint32_t>(i));
        filter.launched();
        filter.accept(4 + i);
    }
    EXPECT_EQ(seen_, (std::vector<std::int32_t>{4, 5, 6}));
    EXPECT_TRUE(waited_.empty());
}

// A draw was launched after the end; the filter sees neither of them.
TEST_F(DrawnFilterTest, NothingIsTakenBehindTheEnd) {
    draws_ = {4, kEnd, 6};
    DrawnFilter filter = filter_of();
    for (int i = 0; i < 3; ++i) {
        filter.mask();
        filter.launched();
    }
    filter.mask();
    EXPECT_EQ(seen_, (std::vector<std::int32_t>{4}));
    EXPECT_EQ(waited_, (std::vector<std::int64_t>{0, 1}));
}

TEST_F(DrawnFilterTest, NothingIsTakenByAFinishedFilter) {
    DrawnFilter filter = filter_of(2);
    for (int i = 0; i < 4; ++i) {
        filter.mask();
        filter.launched();
    }
    EXPECT_EQ(seen_, (std::vector<std::int32_t>{4, 5}));
    filter.accept(4);
    EXPECT_FALSE(filter.finished()) << "the last token has not been read";
    filter.accept(5);
    EXPECT_TRUE(filter.finished());
}

TEST_F(DrawnFilterTest, AFailedDrawIsLeftToItsReader) {
    draws_ = {4, -1, 6};
    DrawnFilter filter = filter_of();
    for (int i = 0; i < 3; ++i) {
        EXPECT_NO_THROW(filter.mask());
        filter.launched();
    }
    EXPECT_EQ(seen_, (std::vector<std::int32_t>{4}));
}

}  // namespace
}  // namespace mr::decode::drawn_filter_test
