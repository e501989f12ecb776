#include "lab/overlap/pacer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>

namespace mr::overlap {
namespace {

using Clock = std::chrono::steady_clock;

// Plays the device: words in memory, which it sets and waits for.
struct Words {
    std::uint32_t started = 0, released = 0;

    void start(const Pacer::Ticket& ticket) {
        std::atomic_ref(started).store(ticket.start, std::memory_order_release);
    }
    std::uint32_t now() { return std::atomic_ref(released).load(std::memory_order_acquire); }
    // Seconds until `rounds` rounds of the phase are over.
    double until(const Pacer::Ticket& ticket, std::uint32_t rounds, Clock::time_point from) {
        while (static_cast<std::int32_t>(now() - (ticket.first + rounds)) < 0) {
            std::this_thread::yield();
        }
        return std::chrono::duration<double>(Clock::now() - from).count();
    }
};

TEST(Pacer, RoundsAreNotReleasedBeforeTheirTime) {
    Words words;
    Pacer pacer(&words.started, &words.released);
    const std::vector<std::uint64_t> times = {2'000'000, 1'000'000, 3'000'000};
    const Pacer::Ticket ticket = pacer.announce(times);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(words.now(), 0u);  // nothing before it has started
    const auto from = Clock::now();
    words.start(ticket);
    EXPECT_GE(words.until(ticket, 1, from), 2e-3);
    EXPECT_GE(words.until(ticket, 2, from), 3e-3);
    EXPECT_GE(words.until(ticket, 3, from), 6e-3);
}

TEST(Pacer, APhaseWaitsUntilTheLinkIsFree) {
    Words words;
    Pacer pacer(&words.started, &words.released);
    const std::vector<std::uint64_t> times = {4'000'000};
    const Pacer::Ticket first = pacer.announce(times), second = pacer.announce(times);
    const auto from = Clock::now();
    words.start(second);  // both
    EXPECT_GE(words.until(first, 1, from), 4e-3);
    EXPECT_GE(words.until(second, 1, from), 8e-3);
}

TEST(Pacer, AnEmptyPhaseIsOverAtOnce) {
    Words words;
    Pacer pacer(&words.started, &words.released);
    const std::vector<std::uint64_t> none = {0};
    for (int i = 0; i < 100; ++i) {
        const Pacer::Ticket ticket = pacer.announce(none);
        words.start(ticket);
        words.until(ticket, 1, Clock::now());
    }
    EXPECT_EQ(words.now(), 100u);
}

TEST(Pacer, ItsEndReleasesAll) {
    Words words;
    std::optional<Pacer> pacer;
    pacer.emplace(&words.started, &words.released);
    const std::vector<std::uint64_t> times(7, 1'000);
    pacer->announce(times);
    pacer->announce(times);
    pacer.reset();  // neither was started
    EXPECT_EQ(words.now(), 14u);
}

}  // namespace
}  // namespace mr::overlap
