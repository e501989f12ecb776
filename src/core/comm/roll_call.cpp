#include "core/comm/roll_call.h"

#include <span>
#include <utility>

#include "core/start_thread.h"

namespace mr::comm {
namespace {

constexpr std::chrono::milliseconds kLook{5};  // interval between polls for messages

}  // namespace

RollCall::RollCall(std::unique_ptr<Messages> channel, Seconds answer, Seconds end)
    : channel_(std::move(channel)),
      answer_(answer),
      end_(end),
      peers_(static_cast<std::size_t>(channel_->size())) {
    Peer& own = peers_[static_cast<std::size_t>(channel_->rank())];
    own.answered = own.ended = true;
    for (int r = 0; r < channel_->size(); ++r) {
        if (r != channel_->rank()) listen(r);
    }
    thread_ = start_thread([this] { work(); }, "to answer other ranks");
}

RollCall::~RollCall() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void RollCall::listen(int rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    peer.receiving = channel_->receive(rank, {&peer.in, 1});
}

void RollCall::say(int rank, Word word) {
    Sent sent{std::make_unique<std::byte>(static_cast<std::byte>(word)), 0};
    sent.transfer = channel_->send(rank, {sent.word.get(), 1});
    sent_.push_back(std::move(sent));
}

bool RollCall::all_of(bool Peer::*what) const {
    for (const Peer& peer : peers_) {
        if (!(peer.*what)) return false;
    }
    return true;
}

std::vector<int> RollCall::silent() {
    std::unique_lock lock(mutex_);
    for (Peer& peer : peers_) peer.answered = peer.ended;
    asked_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, answer_, [&] { return all_of(&Peer::answered); });
    std::vector<int> out;
    for (int r = 0; r < channel_->size(); ++r) {
        if (!peers_[static_cast<std::size_t>(r)].answered) out.push_back(r);
    }
    return out;
}

void RollCall::forget_pending() {
    for (const Peer& peer : peers_) {
        if (!peer.ended) channel_->forget(peer.receiving);
    }
    for (const Sent& sent : sent_) channel_->forget(sent.transfer);
}

// Runs until all ranks have said that they end: a posted receive must be matched.
void RollCall::work() {
    using Clock = std::chrono::steady_clock;
    Clock::time_point end{};
    bool said_end = false;
    std::unique_lock lock(mutex_);
    for (;;) {
        for (int r = 0; r < channel_->size(); ++r) {
            Peer& peer = peers_[static_cast<std::size_t>(r)];
            if (peer.ended || !channel_->done(peer.receiving)) continue;
            peer.answered = true;
            peer.ended = peer.in == static_cast<std::byte>(kEnd);
            if (peer.in == static_cast<std::byte>(kAsk) && !said_end) say(r, kHere);
            if (!peer.ended) listen(r);
            changed_.notify_all();
        }
        const bool ask = std::exchange(asked_, false), begins_to_end = ending_ && !said_end;
        for (int r = 0; r < channel_->size() && (ask || begins_to_end); ++r) {
            if (r == channel_->rank() || said_end) continue;
            say(r, begins_to_end ? kEnd : kAsk);
        }
        if (begins_to_end) {
            said_end = true;
            end = Clock::now() + std::chrono::duration_cast<Clock::duration>(end_);
        }
        std::erase_if(sent_, [&](const Sent& sent) { return channel_->done(sent.transfer); });
        const bool over = said_end && sent_.empty() && all_of(&Peer::ended);
        if (over) return;
        if (said_end && Clock::now() > end) return forget_pending();
        changed_.wait_for(lock, kLook, [&] { return asked_ || (ending_ && !said_end); });
    }
}

}  // namespace mr::comm
