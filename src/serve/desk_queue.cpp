// The desk's queues: who may wait, and whose turn it is.
#include <algorithm>
#include <iterator>
#include <utility>

#include "serve/desk.h"
#include "serve/desk_job.h"

namespace mr::serve {
namespace {

// Requests for embeddings of one client that take turns, text by text. The others wait in its
// queue, where its texts pass them.
constexpr int kEmbedsAtATime = 4;

}  // namespace

void Desk::put(const std::string& client, std::vector<Unit> units) {
    {
        const std::lock_guard lock(mutex_);
        if (draining_) throw Failure::draining();
        if (!make_room(client, units.size())) {
            ++metrics_.refused_full;
            throw queue_full();
        }
        std::deque<Unit>& queue = queues_[client];
        const auto before = static_cast<std::ptrdiff_t>(queue.size());
        try {
            for (Unit& unit : units) queue.push_back(std::move(unit));
        } catch (...) {  // no memory: none of them waits
            queue.erase(queue.begin() + before, queue.end());
            if (queue.empty()) queues_.erase(client);
            throw;
        }
        queued_ += units.size();
        metrics_.waiting = static_cast<std::int64_t>(queued_ + embedding_);
        idle_ = false;
    }
    work_.notify_all();
}

// A full queue makes room for a client whose own part of it is smaller: the client with the longest
// part that can give loses its latest requests, as long as it keeps no less than the other then
// has. Otherwise one client with many connections could keep all others out.
bool Desk::make_room(const std::string& client, std::size_t count) {
    const std::size_t taken = queued_ + embedding_ + count;
    if (taken <= options_.queue) return true;
    const auto own = queues_.find(client);
    const std::size_t then = count + (own == queues_.end() ? 0 : own->second.size());
    auto victim = queues_.end();
    std::size_t dropped = 0;
    for (auto at = queues_.begin(); at != queues_.end(); ++at) {
        if (victim != queues_.end() && at->second.size() <= victim->second.size()) continue;
        const std::size_t gives = droppable(at->second, taken - options_.queue, then);
        if (gives == 0) continue;
        victim = at;
        dropped = gives;
    }
    if (victim == queues_.end()) return false;
    dropped_.reserve(dropped_.size() + dropped);  // throws before anything has changed
    const auto first = victim->second.end() - static_cast<std::ptrdiff_t>(dropped);
    std::move(first, victim->second.end(), std::back_inserter(dropped_));
    victim->second.erase(first, victim->second.end());
    if (victim->second.empty()) queues_.erase(victim);
    queued_ -= dropped;
    return true;
}

// Units of the latest requests that are `need` or more together; 0 if less than `keep` would be
// left.
std::size_t Desk::droppable(const std::deque<Unit>& queue, std::size_t need, std::size_t keep) {
    std::size_t dropped = 0;
    while (dropped < need) {
        const std::size_t request = waiting_units(queue, queue.size() - dropped);
        dropped += request;
        if (request == 0 || queue.size() < dropped + keep) return 0;
    }
    return dropped;
}

// Units of the request that ends before `end`; 0 if some of them have begun.
std::size_t Desk::waiting_units(const std::deque<Unit>& queue, std::size_t end) {
    if (end == 0) return 0;
    const Unit& last = queue[end - 1];
    if (last.embedding) return 1;
    if (!last.job) return 0;  // forget_left() ran out of memory
    std::size_t all = 0, here = 0;
    for (const Work& work : last.job->works) all += static_cast<std::size_t>(work.choices);
    while (here < end && queue[end - 1 - here].job == last.job) ++here;
    return here == all ? all : 0;
}

// To be tried again when the waiting texts have run, at the recent rate of finished texts.
Failure Desk::queue_full() const {
    const double rounds =
        static_cast<double>(queued_ + 1) / static_cast<double>(std::max(options_.sequences, 1));
    Failure full =
        Failure::of(429, "rate_limit_error", "the queue is full; try again later", "queue_full");
    full.retry_after_ms =
        static_cast<int>(std::clamp(1000 * seconds_a_text_ * rounds, 100.0, 60000.0));
    return full;
}

// From the next client in the order of names. A text that waits in the scheduler for pages must not
// be overtaken, so no more are taken until it runs.
bool Desk::next_unit(Unit& out) {
    const std::lock_guard lock(mutex_);
    auto next = queues_.upper_bound(last_client_);
    for (std::size_t tried = 0; tried < queues_.size(); ++tried, ++next) {
        if (next == queues_.end()) next = queues_.begin();
        std::deque<Unit>& queue = next->second;
        const auto embeds = std::ranges::count_if(
            embeddings_, [&](const auto& e) { return e->client == next->first; });
        const auto unit = embeds < kEmbedsAtATime
                              ? queue.begin()
                              : std::ranges::find(queue, nullptr, &Unit::embedding);
        if (unit == queue.end()) continue;
        last_client_ = next->first;
        out = std::move(*unit);
        queue.erase(unit);
        if (queue.empty()) queues_.erase(next);
        --queued_;
        if (out.embedding) ++embedding_;
        return true;
    }
    return false;
}

// Ends what waits in vain: requests that lost their place, that are late or whose client has left.
void Desk::forget_left() {
    std::vector<JobPtr> late;
    std::vector<std::shared_ptr<Embedding>> late_embeddings;
    std::vector<Unit> dropped;
    Failure full;
    {
        const std::lock_guard lock(mutex_);
        dropped = std::exchange(dropped_, {});
        if (!dropped.empty()) full = queue_full();
        for (auto at = queues_.begin(); at != queues_.end();) {
            queued_ -= std::erase_if(at->second, [&](const Unit& unit) {
                if (unit.embedding) {
                    if (Clock::now() > unit.embedding->deadline) {
                        late_embeddings.push_back(unit.embedding);
                        return true;
                    }
                    return unit.embedding->sink->gone();
                }
                if (!unit.job->wants_no_more()) return false;
                const bool known = std::find(late.begin(), late.end(), unit.job) != late.end();
                if (!unit.job->over && !known && unit.job->late()) late.push_back(unit.job);
                ++metrics_.ended_abort;
                return true;
            });
            at = at->second.empty() ? queues_.erase(at) : std::next(at);
        }
    }
    for (const Unit& unit : dropped) {
        if (unit.embedding || !unit.job->over) ++metrics_.refused_full;
        unit.embedding ? fail(*unit.embedding, full) : fail(unit.job, full);
    }
    for (const JobPtr& job : late) {
        ++metrics_.timed_out;
        fail(job, Failure::late());
    }
    metrics_.timed_out += late_embeddings.size();
    for (const auto& embedding : late_embeddings) fail(*embedding, Failure::late());
}

}  // namespace mr::serve
