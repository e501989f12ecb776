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
        waiting_.put(client, std::move(units));
        metrics_.waiting = static_cast<std::int64_t>(waiting_.size() + embedding_);
        idle_ = false;
    }
    work_.notify_all();
}

// A full queue makes room for a client whose own part of it is smaller: the client with the longest
// part that can give loses its latest requests, as long as it keeps no less than the other then
// has. Otherwise one client with many connections could keep all others out.
bool Desk::make_room(const std::string& client, std::size_t count) {
    const std::size_t all = waiting_.size() + embedding_ + count;
    if (all <= options_.queue) return true;
    const std::size_t keep = waiting_.of(client) + count;
    dropped_.reserve(dropped_.size() + waiting_.size());  // throws before anything has changed
    std::vector<Unit> latest = waiting_.take_latest(
        [&](const Queue& queue) { return droppable(queue, all - options_.queue, keep); });
    std::ranges::move(latest, std::back_inserter(dropped_));
    return !latest.empty();
}

std::size_t Desk::droppable(const Queue& queue, std::size_t need, std::size_t keep) {
    std::size_t dropped = 0;
    while (dropped < need) {
        const std::size_t request = waiting_units(queue, queue.size() - dropped);
        dropped += request;
        if (request == 0 || queue.size() < dropped + keep) return 0;
    }
    return dropped;
}

std::size_t Desk::waiting_units(const Queue& queue, std::size_t end) {
    if (end == 0) return 0;
    const Unit& last = queue[end - 1];
    if (last.embedding) return 1;
    std::size_t all = 0, here = 0;
    for (const Work& work : last.job->works) all += static_cast<std::size_t>(work.choices);
    while (here < end && queue[end - 1 - here].job == last.job) ++here;
    return here == all ? all : 0;
}

// To be tried again when the waiting texts have run, at the recent rate of finished texts.
Failure Desk::queue_full() const {
    const double rounds = static_cast<double>(waiting_.size() + 1) /
                          static_cast<double>(std::max(options_.sequences, 1));
    Failure full =
        Failure::of(429, "rate_limit_error", "the queue is full; try again later", "queue_full");
    full.retry_after_ms =
        static_cast<int>(std::clamp(1000 * seconds_a_text_ * rounds, 100.0, 60000.0));
    return full;
}

std::optional<Desk::Unit> Desk::next_text() {
    const std::lock_guard lock(mutex_);
    return waiting_.take([](const Unit& unit) { return !unit.embedding; });
}

// The first ones of every client. They cost it no turn of a text.
void Desk::take_embeddings() {
    std::map<std::string_view, int> at_a_time;
    for (const auto& embedding : embeddings_) ++at_a_time[embedding->client];
    const std::lock_guard lock(mutex_);
    waiting_.erase_if([&](Unit& unit) {
        if (!unit.embedding) return false;
        int& open = at_a_time[unit.embedding->client];
        if (open == kEmbedsAtATime) return false;
        embeddings_.push_back(unit.embedding);
        ++open;
        ++embedding_;
        return true;
    });
}

// Ends what waits in vain: requests that lost their place, that are late or whose client has left.
void Desk::forget_left() {
    const std::lock_guard lock(mutex_);
    for (; !dropped_.empty(); dropped_.pop_back()) {
        const Unit& unit = dropped_.back();
        if (!unit.embedding && unit.job->over) continue;
        fail(unit, queue_full());
        ++metrics_.refused_full;
    }
    waiting_.erase_if([&](const Unit& unit) {
        return unit.embedding ? give_up(*unit.embedding) : give_up(unit.job);
    });
    // The first one may wait long for pages, and the others behind it. One with pages is looked at
    // before its next piece.
    embedding_ -= embeddings_.remove_if([&](const std::shared_ptr<Embedding>& embedding) {
        return !embedding->sequence && give_up(*embedding);
    });
}

}  // namespace mr::serve
