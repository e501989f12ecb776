// What waits at the desk and in what order it comes: embeddings beside texts, places in the queue,
// deadlines, and how ends are counted. A brake holds the engine between two passes, so no outcome
// depends on time.
#include "desk_fixture.h"

namespace mr::serve {
namespace {

// The engine has a sequence for them.
TEST_F(DeskTest, EmbeddingsRunBesideAFullEngine) {
    open({.sequences = 1});
    Brake brake;
    const KeptPtr text = ask_with(brake);
    const VectorsPtr vectors = embed("a");
    brake.run(2);  // one that embeds it, and one that delivers it
    EXPECT_TRUE(vectors->over());
    EXPECT_EQ(vectors->status(), 0);
    EXPECT_EQ(metrics_.running, 1);
}

TEST_F(DeskTest, EmbeddingsTakeTurnsTextByText) {
    open({.sequences = 1});
    Brake brake;
    const KeptPtr text = ask_with(brake);
    std::atomic<int> order = 0;
    const VectorsPtr longest = embed("a", 200, &order), middle = embed("a", 100, &order),
                     shortest = embed("b", 2, &order);
    brake.run(5);
    EXPECT_FALSE(shortest->over(0ms));  // its second text is the sixth
    brake.run(2);
    EXPECT_TRUE(shortest->over());
    EXPECT_LE(metrics_.embedded_texts, 8U);
    brake.release();
    longest->wait();
    EXPECT_EQ(shortest->place, 1);
    EXPECT_EQ(middle->place, 2);
    EXPECT_EQ(longest->place, 3);
}

// A client has four that take turns. Its others wait in the queue, where they can make room, and
// are told so.
TEST_F(DeskTest, EmbeddingsThatWaitMakeRoomForAnotherClient) {
    open({.sequences = 1, .queue = 8});
    Brake brake;
    const KeptPtr text = ask_with(brake);
    std::vector<VectorsPtr> many;
    for (int i = 0; i < 8; ++i) many.push_back(embed("a", 20));
    EXPECT_THROW(embed("a"), Failure);
    brake.run();
    const VectorsPtr other = embed("b", 20);
    const KeptPtr short_text = ask("b", work("The cat", 2, 1));
    brake.run(2);
    for (std::size_t i = 6; i < 8; ++i) {
        EXPECT_EQ(many[i]->status(), 429) << i;
        EXPECT_GE(many[i]->failure->retry_after_ms, 100);
    }
    EXPECT_EQ(metrics_.refused_full, 3U);
    // Both have their part now, and those that take turns keep their place.
    EXPECT_THROW(embed("b"), Failure);
    text->left = true;
    brake.release();
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(many[i]->status(), 0) << i;
    EXPECT_EQ(other->status(), 0);
    ASSERT_TRUE(short_text->wait());
    EXPECT_FALSE(short_text->failure);
    EXPECT_EQ(metrics_.waiting, 0);
}

// Those that take turns and those that wait in the queue.
TEST_F(DeskTest, EmbeddingsHaveADeadline) {
    constexpr auto kMost = 4s;  // the first one is made before, however slow this machine is
    open({.sequences = 1, .most = kMost});
    Brake brake;
    const KeptPtr text = ask_with(brake);
    std::vector<VectorsPtr> all;
    for (int i = 0; i < 6; ++i) all.push_back(embed("a", 5));
    brake.run();
    EXPECT_EQ(metrics_.embedded_texts, 1U);
    std::this_thread::sleep_for(kMost + 50ms);
    brake.release();
    for (const VectorsPtr& one : all) EXPECT_EQ(one->status(), 504);
    ASSERT_TRUE(text->wait());
    EXPECT_EQ(metrics_.timed_out, 7U);
    EXPECT_EQ(metrics_.embedded_texts, 1U);
}

TEST_F(DeskTest, EmbeddingsOfAClientThatLeftEnd) {
    open({.sequences = 1});
    Brake brake;
    const KeptPtr text = ask_with(brake);
    std::vector<VectorsPtr> all;
    for (int i = 0; i < 6; ++i) all.push_back(embed("a", 5));
    brake.run();
    EXPECT_EQ(metrics_.waiting, 6);
    for (const VectorsPtr& one : all) one->left = true;
    brake.run(6);
    EXPECT_EQ(metrics_.embedded_texts, 1U);
    EXPECT_EQ(metrics_.waiting, 0);
    for (const VectorsPtr& one : all) EXPECT_FALSE(one->over(0ms));
}

// A text takes turns with those of other clients, whatever its client embeds meanwhile.
TEST_F(DeskTest, EmbeddingsCostNoTurnOfAText) {
    open({.sequences = 1});
    Brake brake;
    const KeptPtr running = ask_with(brake, "0");
    std::atomic<int> order = 0;
    const KeptPtr first = ask("a", work("The cat", 2, 1), &order),
                  second = ask("b", work("The cat", 2, 1), &order),
                  third = ask("c", work("The cat", 2, 1), &order);
    for (int i = 0; i < 3; ++i) {
        const VectorsPtr a = embed("a"), b = embed("b");
        brake.run(4);
        EXPECT_EQ(a->status(), 0);
        EXPECT_EQ(b->status(), 0);
    }
    running->left = true;
    brake.release();
    for (const KeptPtr& kept : {first, second, third}) ASSERT_TRUE(kept->wait());
    EXPECT_EQ(first->place, 1);
    EXPECT_EQ(second->place, 2);
    EXPECT_EQ(third->place, 3);
}

// Embeddings that wait for pages are not overtaken by a text for which there would be some.
TEST_F(DeskTest, NoTextOvertakesAnEmbeddingThatWaitsForPages) {
    constexpr int kTokens = 600;
    open({.sequences = 3}, 1000);
    Brake brake;
    const KeptPtr running = ask_with(brake, "brake", kTokens);
    const auto long_text = std::vector<std::int32_t>(700, 5);
    const auto vectors = std::make_shared<KeptVectors>();
    desk_->embed("a", {long_text}, false, vectors);
    brake.run(2);
    const KeptPtr text = ask("b", work("The cat", 2, 1));
    brake.run(20);
    EXPECT_EQ(metrics_.running, 1);
    EXPECT_EQ(metrics_.ended_length, 0U);
    EXPECT_EQ(metrics_.embedded_texts, 0U);
    running->left = true;
    brake.release();
    EXPECT_EQ(vectors->status(), 0);
    ASSERT_TRUE(text->wait());
    EXPECT_FALSE(text->failure);
}

// The first embedding may wait for minutes. Those behind it end as if they waited in the queue.
TEST_F(DeskTest, EmbeddingsBehindOneThatWaitsForPagesEnd) {
    open({.sequences = 2}, 1000);
    Brake brake;
    const KeptPtr running = ask_with(brake, "brake", 600);
    const auto large = std::make_shared<KeptVectors>();
    desk_->embed("a", {std::vector<std::int32_t>(700, 5)}, false, large);
    brake.run(2);
    const VectorsPtr behind = embed("a"), other = embed("b");
    brake.run(2);
    EXPECT_EQ(metrics_.waiting, 3);
    behind->left = true;
    brake.run(2);
    EXPECT_EQ(metrics_.waiting, 2);
    large->left = true;  // nothing waits for pages any more
    const KeptPtr text = ask("b", work("The cat", 2, 1));
    brake.run(8);
    EXPECT_EQ(other->status(), 0);
    ASSERT_TRUE(text->wait());
    EXPECT_FALSE(text->failure);
    EXPECT_EQ(metrics_.waiting, 0);
    running->left = true;
    brake.release();
    for (const VectorsPtr& one : {large, behind}) EXPECT_FALSE(one->over(0ms));
}

// While a text waits for pages in the scheduler, the others keep their turns at the desk, and may
// make room for another client.
TEST_F(DeskTest, TextsBehindOneThatWaitsForPagesStayInTheQueue) {
    open({.sequences = 4, .queue = 2}, 1000);
    Brake brake;
    const KeptPtr running = ask_with(brake, "brake", 600);
    const KeptPtr large = ask("a", work("The cat", 700, 1));
    brake.run(2);
    const KeptPtr first = ask("a", work("The cat", 2, 1)), second = ask("a", work("The cat", 2, 1));
    brake.run(5);
    EXPECT_EQ(metrics_.running, 1);
    const KeptPtr other = ask("b", work("The cat", 2, 1));
    brake.run(2);
    ASSERT_TRUE(second->wait());
    ASSERT_TRUE(second->failure);
    EXPECT_EQ(second->failure->status, 429);
    EXPECT_EQ(first->pieces + other->pieces, 0);
    running->left = true;
    brake.release();
    for (const KeptPtr& kept : {large, first, other}) {
        ASSERT_TRUE(kept->wait());
        EXPECT_FALSE(kept->failure);
    }
}

// Texts of a request of which some have begun are not dropped, whatever waits before them.
TEST_F(DeskTest, ARequestThatHasBegunIsNotDroppedBehindEmbeddings) {
    open({.sequences = 2, .queue = 9});
    Brake brake;
    const KeptPtr running = ask_with(brake);
    std::vector<VectorsPtr> many;
    for (int i = 0; i < 6; ++i) many.push_back(embed("a", 50));
    brake.run();  // four take turns, and two wait
    const KeptPtr begun = ask("a", work("The cat", kLong, 1, 3));
    brake.run(5);
    const VectorsPtr full = embed("c", 50);
    brake.run(2);
    EXPECT_EQ(metrics_.running, 2);
    EXPECT_EQ(metrics_.waiting, 9);
    EXPECT_THROW(ask("b", work("The cat", 2, 1)), Failure);
    brake.run(2);
    EXPECT_FALSE(begun->failure);
    EXPECT_FALSE(many.back()->over(0ms));
    begun->left = running->left = true;
    brake.release();
}

// "Try again" says when by how long texts took lately.
TEST_F(DeskTest, QuickTextsMakeShortWaits) {
    open({.sequences = 1, .queue = 1});
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(ask("a", work("The cat", 1, 1))->wait());
    Brake brake;
    const KeptPtr running = ask_with(brake);
    const KeptPtr waits = ask("a", work("The cat", 1, 1));
    try {
        ask("a", work("The cat", 1, 1));
        FAIL() << "there was room";
    } catch (const Failure& failure) {  // two rounds, of a second each before any text has ended
        EXPECT_LT(failure.retry_after_ms, 1000);
    }
    running->left = true;
    brake.release();
    EXPECT_TRUE(waits->wait());
}

// Each text has one end, however its request ends.
TEST_F(DeskTest, EveryTextIsCountedOnce) {
    const auto ends = [&] {
        return std::array{metrics_.ended_stop.load(), metrics_.ended_length.load(),
                          metrics_.ended_abort.load(), metrics_.ended_error.load()};
    };
    using Ends = std::array<std::uint64_t, 4>;
    open({.sequences = 2, .most = 300ms});
    const KeptPtr late = ask("a", work("The cat", kLong, 1, 4));  // two run, and two wait
    ASSERT_TRUE(late->wait());
    EXPECT_EQ(late->failure->status, 504);
    desk_->drain();
    ASSERT_TRUE(desk_->wait_drained(test::kHang));
    EXPECT_EQ(ends(), (Ends{0, 0, 0, 4}));
    EXPECT_EQ(metrics_.timed_out, 1U);

    open({.sequences = 2});
    const KeptPtr left = ask("a", work("The cat", kLong, 1, 3));
    ASSERT_TRUE(left->wait_for_text());
    left->left = true;
    ASSERT_TRUE(ask("a", work("The cat", 2, 1))->wait());
    EXPECT_EQ(ends(), (Ends{0, 1, 3, 4}));
    Desk::Work bad = work("x", 4, 1, 3);
    bad.prompt = {1, 1 << 20};
    ASSERT_TRUE(ask("a", std::move(bad))->wait());
    EXPECT_EQ(ends(), (Ends{0, 1, 3, 7}));

    // One of two texts ends before the other is cut off.
    open({.sequences = 1});
    Brake brake;
    std::vector<Desk::Work> works{work("The cat", 2, 1), work("The cat", kLong, 1)};
    works[1].options.filter = brake.filter();
    const auto half = std::make_shared<Kept>(2);
    desk_->generate("a", std::move(works), half);
    brake.wait_until_it_stands();
    EXPECT_EQ(ends(), (Ends{0, 2, 3, 7}));
    desk_->cut();
    brake.release();
    ASSERT_TRUE(half->wait());
    EXPECT_EQ(ends(), (Ends{0, 2, 3, 8}));
}

}  // namespace
}  // namespace mr::serve
