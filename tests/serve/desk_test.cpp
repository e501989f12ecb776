// The desk over a tiny model: turns, limits, and independence of requests.
#include <cmath>

#include "desk_fixture.h"

namespace mr::serve {
namespace {

TEST_F(DeskTest, TextsAreTheSameAloneAndTogether) {
    open({.sequences = 4});
    std::vector<std::string> alone;
    const auto nth = [&](int i) {
        return work(i % 2 ? "Once upon a time" : "The cat", 10 + i, static_cast<std::uint64_t>(i));
    };
    for (int i = 0; i < 8; ++i) {
        const KeptPtr kept = ask("a", nth(i));
        ASSERT_TRUE(kept->wait());
        alone.push_back(kept->texts[0]);
        EXPECT_EQ(kept->drawn, 10 + i);
    }
    std::vector<KeptPtr> together;
    for (int i = 0; i < 8; ++i) together.push_back(ask(i % 3 ? "a" : "b", nth(i)));
    for (std::size_t i = 0; i < 8; ++i) {
        ASSERT_TRUE(together[i]->wait());
        EXPECT_EQ(together[i]->texts[0], alone[i]) << i;
    }
    // Choice i draws with seed + i.
    const KeptPtr choices = ask("a", work("Once upon a time", 11, 1, 3));
    ASSERT_TRUE(choices->wait());
    EXPECT_EQ(choices->texts[0], alone[1]);
    const KeptPtr third = ask("a", work("Once upon a time", 11, 3));
    ASSERT_TRUE(third->wait());
    EXPECT_EQ(choices->texts[2], third->texts[0]);
    EXPECT_NE(choices->texts[2], choices->texts[0]);
    EXPECT_EQ(metrics_.ended_length, 20U);
    // Every pass reads the weights at least once.
    EXPECT_GE(metrics_.bytes_read, metrics_.passes * tiny()->weights.bytes_per_token());
    EXPECT_GT(metrics_.flops, 0U);
}

// A sink that blocks at its first piece of text.
class Held : public Kept {
  public:
    using Kept::Kept;
    void text(int choice, std::string_view piece) override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return let_go_; });
        lock.unlock();
        Kept::text(choice, piece);
    }
    void let_go() {
        const std::lock_guard lock(mutex_);
        let_go_ = true;
        changed_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool let_go_ = false;
};

TEST_F(DeskTest, TheEngineDoesNotWaitForSinks) {
    open({.sequences = 2});
    const KeptPtr alone = ask("a", work("Once upon a time", 40, 7));
    ASSERT_TRUE(alone->wait());
    const std::uint64_t before = metrics_.generated_tokens;
    const auto held = std::make_shared<Held>();
    std::vector<Desk::Work> works;
    works.push_back(work("Once upon a time", 40, 7));
    desk_->generate("a", std::move(works), held);
    const auto end = Desk::Clock::now() + test::kHang;
    while (metrics_.generated_tokens < before + 40 && Desk::Clock::now() < end) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(metrics_.generated_tokens, before + 40);
    desk_->drain();
    EXPECT_FALSE(desk_->wait_drained(50ms));  // finished text has not arrived yet
    held->let_go();
    EXPECT_TRUE(desk_->wait_drained(test::kHang));
    EXPECT_TRUE(held->wait(0s));
    EXPECT_EQ(held->texts[0], alone->texts[0]);
    EXPECT_EQ(held->drawn, 40);
}

TEST_F(DeskTest, ClientsTakeTurns) {
    open({.sequences = 1});
    // Has the one place until all others wait, however slow this machine is.
    const KeptPtr running = ask("a", work("The cat", kLong, 1));
    ASSERT_TRUE(running->wait_for_text());
    std::atomic<int> order = 0;
    std::vector<KeptPtr> greedy, modest;
    for (int i = 0; i < 10; ++i) greedy.push_back(ask("a", work("The cat", 8, 1), &order));
    for (int i = 0; i < 2; ++i) modest.push_back(ask("b", work("The dog", 8, 1), &order));
    running->left = true;
    for (const KeptPtr& kept : greedy) ASSERT_TRUE(kept->wait());
    for (const KeptPtr& kept : modest) ASSERT_TRUE(kept->wait());
    EXPECT_EQ(greedy[0]->place, 1);
    EXPECT_EQ(modest[0]->place, 2);
    EXPECT_EQ(greedy[1]->place, 3);
    EXPECT_EQ(modest[1]->place, 4);
    EXPECT_EQ(greedy[9]->place, 12);
}

TEST_F(DeskTest, TheQueueHasABound) {
    open({.sequences = 1, .queue = 3});
    const KeptPtr running = ask("a", work("The cat", kLong, 1));
    ASSERT_TRUE(running->wait_for_text());
    std::vector<KeptPtr> waiting;
    for (int i = 0; i < 3; ++i) waiting.push_back(ask("a", work("The cat", 2, 1)));
    try {
        ask("a", work("The cat", 2, 1));
        FAIL() << "there was room";
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status, 429);
        EXPECT_GE(failure.retry_after_ms, 100);
        EXPECT_LE(failure.retry_after_ms, 60000);
    }
    try {
        ask("b", work("The cat", 2, 1, 4));
        FAIL() << "there can never be room";
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status, 400);
        EXPECT_EQ(failure.param, "n");
    }
    try {
        desk_->generate("b", std::vector<Desk::Work>(4, work("The cat", 2, 1)),
                        std::make_shared<Kept>(4));
        FAIL() << "there can never be room";
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status, 400);
        EXPECT_EQ(failure.param, "prompt");
        EXPECT_NE(failure.message.find("4 texts"), std::string::npos) << failure.message;
    }
    running->left = true;
    for (const KeptPtr& kept : waiting) ASSERT_TRUE(kept->wait());
    EXPECT_EQ(metrics_.refused_full, 1U);
    ASSERT_TRUE(ask("b", work("The cat", 2, 1))->wait());
}

// A client that fills the queue does not keep another one out.
TEST_F(DeskTest, AFullQueueMakesRoomForAnotherClient) {
    open({.sequences = 1, .queue = 4});
    const KeptPtr running = ask("a", work("The cat", kLong, 1));
    ASSERT_TRUE(running->wait_for_text());
    const KeptPtr first = ask("a", work("The cat", 2, 1)), second = ask("a", work("The cat", 2, 1)),
                  pair = ask("a", work("The cat", 2, 1, 2));
    // The latest request of the longest queue goes, whole.
    const KeptPtr other = ask("b", work("The cat", 2, 1));
    ASSERT_TRUE(pair->wait());
    ASSERT_TRUE(pair->failure);
    EXPECT_EQ(pair->failure->status, 429);
    EXPECT_GE(pair->failure->retry_after_ms, 100);
    const KeptPtr more = ask("b", work("The cat", 2, 1));
    // Now both have two: neither takes from the other.
    for (const char* client : {"a", "b"}) {
        EXPECT_THROW(ask(client, work("The cat", 2, 1)), Failure) << client;
    }
    // A third takes one, and no request of more texts than it would leave.
    EXPECT_THROW(ask("c", work("The cat", 2, 1, 2)), Failure);
    const KeptPtr third = ask("c", work("The cat", 2, 1));
    ASSERT_TRUE(second->wait());
    ASSERT_TRUE(second->failure);
    EXPECT_EQ(metrics_.refused_full, 5U);
    running->left = true;
    for (const KeptPtr& kept : {first, other, more, third}) {
        ASSERT_TRUE(kept->wait());
        EXPECT_FALSE(kept->failure);
    }
}

// The longest queue cannot give, and another one can.
TEST_F(DeskTest, ARequestThatHasBegunProtectsNoOtherClient) {
    open({.sequences = 1, .queue = 5});
    const KeptPtr begun = ask("a", work("The cat", kLong, 1, 4));
    ASSERT_TRUE(begun->wait_for_text());
    const KeptPtr first = ask("b", work("The cat", 2, 1)), second = ask("b", work("The cat", 2, 1));
    const KeptPtr other = ask("c", work("The cat", 2, 1));
    ASSERT_TRUE(second->wait());
    EXPECT_TRUE(second->failure);
    begun->left = true;
    for (const KeptPtr& kept : {first, other}) {
        ASSERT_TRUE(kept->wait());
        EXPECT_FALSE(kept->failure);
    }
}

// A request of which a text runs already keeps its place.
TEST_F(DeskTest, ARequestThatHasBegunKeepsItsPlace) {
    open({.sequences = 1, .queue = 3});
    const KeptPtr begun = ask("a", work("The cat", kLong, 1, 3));
    ASSERT_TRUE(begun->wait_for_text());
    const KeptPtr later = ask("a", work("The cat", 2, 1)), other = ask("b", work("The cat", 2, 1));
    ASSERT_TRUE(later->wait());
    EXPECT_TRUE(later->failure);
    EXPECT_THROW(ask("c", work("The cat", 2, 1)), Failure);
    EXPECT_FALSE(begun->failure);
    begun->left = true;
    ASSERT_TRUE(other->wait());
    EXPECT_FALSE(other->failure);
}

TEST_F(DeskTest, OneThatLeavesOrFailsEndsAlone) {
    open({.sequences = 2});
    const KeptPtr stays = ask("a", work("Once upon a time", 60, 5));
    const KeptPtr leaves = ask("b", work("The cat", kLong, 5));
    const KeptPtr waits = ask("c", work("The dog", kLong, 5));
    waits->left = true;  // while it waits
    ASSERT_TRUE(leaves->wait_for_text());
    leaves->left = true;
    Desk::Work bad = work("x", 4, 1);
    bad.prompt = {1, 1 << 20};
    const KeptPtr fails = ask("b", std::move(bad));
    ASSERT_TRUE(fails->wait());
    EXPECT_EQ(fails->failure->status, 400);
    ASSERT_TRUE(stays->wait());
    EXPECT_FALSE(stays->failure);
    const KeptPtr again = ask("a", work("Once upon a time", 60, 5));
    ASSERT_TRUE(again->wait());
    EXPECT_EQ(again->texts, stays->texts);
    desk_->drain();
    ASSERT_TRUE(desk_->wait_drained(test::kHang));
    EXPECT_LT(leaves->pieces, kLong);
    EXPECT_EQ(waits->pieces, 0);
    EXPECT_EQ(metrics_.running, 0);
    EXPECT_EQ(metrics_.cache_free, metrics_.cache_tokens);  // every page is free again
    EXPECT_THROW(ask("a", work("x", 1, 1)), Failure);
}

TEST_F(DeskTest, DeadlinesAndTheCut) {
    open({.sequences = 1, .most = 300ms});
    const KeptPtr slow = ask("a", work("The cat", kLong, 1));
    const KeptPtr behind = ask("a", work("The cat", kLong, 1));
    for (const KeptPtr& kept : {slow, behind}) {
        ASSERT_TRUE(kept->wait());
        ASSERT_TRUE(kept->failure);
        EXPECT_EQ(kept->failure->status, 504);
    }
    open({.sequences = 1});
    const KeptPtr cut = ask("a", work("The cat", kLong, 1));
    const KeptPtr queued = ask("a", work("The cat", kLong, 1));
    ASSERT_TRUE(cut->wait_for_text());
    desk_->cut();
    ASSERT_TRUE(cut->wait());
    ASSERT_TRUE(queued->wait());
    ASSERT_TRUE(cut->failure && queued->failure);
    EXPECT_EQ(cut->failure->status, 503);
    EXPECT_EQ(queued->failure->status, 503);
    EXPECT_TRUE(desk_->wait_drained(test::kHang));
}

// Many embeddings of one client fill the queue, and leave room and turns to another.
TEST_F(DeskTest, EmbeddingsLeaveRoom) {
    open({.sequences = 1, .queue = 8});
    const KeptPtr running = ask("a", work("The cat", kLong, 1));
    ASSERT_TRUE(running->wait_for_text());
    const std::vector<std::vector<std::int32_t>> texts(
        200, decode::encode_prompt(*tiny(), "Once upon a time there was a small dog."));
    std::vector<std::shared_ptr<KeptVectors>> many;
    int refused = 0;
    while (refused == 0) {
        auto sink = std::make_shared<KeptVectors>();
        try {
            desk_->embed("a", texts, false, sink);
            many.push_back(sink);
        } catch (const Failure&) {
            ++refused;
        }
    }
    const KeptPtr other = ask("b", work("The cat", 2, 1));
    running->left = true;
    ASSERT_TRUE(other->wait());
    EXPECT_FALSE(other->failure);
    desk_->cut();
}

TEST_F(DeskTest, VectorsBesideTexts) {
    open({.sequences = 2});
    const std::string text =
        "Once upon a time there was a small dog who lived by the sea. Every day the dog went to "
        "the beach and looked for shells.";
    const auto embed = [&](bool last) {
        auto sink = std::make_shared<KeptVectors>();
        desk_->embed("a",
                     {decode::encode_prompt(*tiny(), text), decode::encode_prompt(*tiny(), "x")},
                     last, sink);
        return sink;
    };
    const auto alone = embed(false)->wait();
    const KeptPtr first = ask("a", work("Once upon a time", 40, 5));
    ASSERT_TRUE(first->wait());
    const KeptPtr kept = ask("a", work("Once upon a time", 40, 5));
    const auto mean = embed(false), last = embed(true);
    EXPECT_EQ(mean->wait(), alone);
    const auto other = last->wait();
    ASSERT_TRUE(kept->wait());
    EXPECT_EQ(kept->texts, first->texts);  // its bits do not depend on concurrent work
    ASSERT_EQ(alone.size(), 2U);
    EXPECT_NE(other[0], alone[0]);
    // One token: the mean is its own vector, unless a beginning-of-text token is added.
    for (const std::vector<float>& vector : alone) {
        double square = 0;
        for (const float x : vector) square += double{x} * x;
        EXPECT_NEAR(square, 1, 1e-5);
        EXPECT_EQ(vector.size(), static_cast<std::size_t>(tiny()->spec.dim));
    }
}

}  // namespace
}  // namespace mr::serve
