#include "lab/overlap/pacer.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace mr::overlap {
namespace {

bool reached(std::uint32_t* word, std::uint32_t value) {
    const std::uint32_t now = std::atomic_ref(*word).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(now - value) >= 0;
}
void set(std::uint32_t* word, std::uint32_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
}

}  // namespace

Pacer::Pacer(std::uint32_t* started, std::uint32_t* released)
    : started_(started), released_(released), thread_([this] { work(); }) {}

Pacer::~Pacer() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
    set(released_, next_.first);
}

Pacer::Ticket Pacer::announce(std::span<const std::uint64_t> times) {
    const Ticket ticket = next_;
    next_.start += 1;
    next_.first += static_cast<std::uint32_t>(times.size());
    {
        const std::lock_guard lock(mutex_);
        phases_.push_back({ticket, {times.begin(), times.end()}});
    }
    changed_.notify_all();
    return ticket;
}

bool Pacer::stopped() {
    const std::lock_guard lock(mutex_);
    return stop_;
}

void Pacer::work() {
    for (;;) {
        Phase phase;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return stop_ || !phases_.empty(); });
            if (stop_) return;
            phase = std::move(phases_.front());
            phases_.pop_front();
        }
        pace(phase);
    }
}

// Spins: a sleeping thread would wake up too late for a round.
void Pacer::pace(const Phase& phase) {
    constexpr int kSpins = 1 << 12;
    for (int spins = 1; !reached(started_, phase.ticket.start); ++spins) {
        if (spins % kSpins != 0) continue;
        if (stopped()) return;
        std::this_thread::yield();
        spins = 0;
    }
    Clock::time_point at = std::max(Clock::now(), free_);
    for (std::size_t round = 0; round < phase.times.size(); ++round) {
        at += std::chrono::nanoseconds(phase.times[round]);
        while (Clock::now() < at) {
        }
        set(released_, phase.ticket.first + static_cast<std::uint32_t>(round) + 1);
    }
    free_ = at;
}

}  // namespace mr::overlap
