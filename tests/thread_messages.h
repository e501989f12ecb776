// Messages between threads of one process (core/comm/messages.h): ranks for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/comm/comm.h"
#include "core/comm/messages.h"
#include "core/error.h"

namespace mr::comm {

// Sent but not yet received messages, by (channel, from, to), which are global ranks. A message is
// copied when it is sent.
struct Mail {
    std::mutex mutex;
    std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes;
};

class ThreadMessages : public Messages {
  public:
    // This is number `rank` of `ranks`.
    ThreadMessages(std::shared_ptr<Mail> mail, std::vector<int> ranks, int rank, int channel = 0)
        : mail_(std::move(mail)), ranks_(std::move(ranks)), rank_(rank), channel_(channel) {}

    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(ranks_.size()); }
    Transfer send(int to, std::span<const std::byte> data) override {
        const std::lock_guard lock(mail_->mutex);
        mail_->boxes[{channel_, in_all(rank_), in_all(to)}].emplace_back(data.begin(), data.end());
        return kSent;
    }
    Transfer receive(int from, std::span<std::byte> data) override {
        asked_.emplace(++last_, Asked{from, data});
        return last_;
    }
    bool done(Transfer transfer) override {
        if (transfer == kSent) return true;
        const auto asked = asked_.find(transfer);
        MR_CHECK(asked != asked_.end(), "the transfer is on its way");
        // In the order of the requests.
        for (const auto& [other, what] : asked_) {
            if (other < transfer && what.from == asked->second.from) return false;
        }
        const std::lock_guard lock(mail_->mutex);
        auto& box = mail_->boxes[{channel_, in_all(asked->second.from), in_all(rank_)}];
        if (box.empty()) return false;
        MR_CHECK(box.front().size() == asked->second.data.size(),
                 "a message is received in its size");
        if (!box.front().empty()) {
            std::memcpy(asked->second.data.data(), box.front().data(), box.front().size());
        }
        box.pop_front();
        asked_.erase(asked);
        return true;
    }
    void forget(Transfer transfer) override { asked_.erase(transfer); }
    std::unique_ptr<Messages> channel(std::span<const int> ranks, int number) override {
        std::vector<int> of;
        int me = 0;
        for (const int rank : ranks) {
            if (rank == rank_) me = static_cast<int>(of.size());
            of.push_back(in_all(rank));
        }
        return std::make_unique<ThreadMessages>(mail_, std::move(of), me, number);
    }
    [[noreturn]] void abort(int exit_code) override { std::_Exit(exit_code); }

  private:
    int in_all(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

    static constexpr Transfer kSent = 0;
    struct Asked {
        int from;
        std::span<std::byte> data;
    };
    std::shared_ptr<Mail> mail_;
    std::vector<int> ranks_;
    int rank_, channel_;
    Transfer last_ = kSent;
    std::map<Transfer, Asked> asked_;
};

// One for each of `ranks` threads.
inline std::vector<std::unique_ptr<Messages>> thread_messages(int ranks) {
    const auto mail = std::make_shared<Mail>();
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::unique_ptr<Messages>> out;
    for (int r = 0; r < ranks; ++r) {
        out.push_back(std::make_unique<ThreadMessages>(mail, all, r));
    }
    return out;
}

// Runs body(comm) in a thread for each rank; an exception fails the test and names the rank.
inline void on_ranks(int ranks, const std::function<void(Comm&)>& body, double timeout = 60) {
    std::vector<std::thread> threads;
    std::vector<std::string> thrown(static_cast<std::size_t>(ranks));
    auto messages = thread_messages(ranks);
    for (int r = 0; r < ranks; ++r) {
        threads.emplace_back([&, r] {
            Comm comm(std::move(messages[static_cast<std::size_t>(r)]), Comm::Seconds(timeout));
            try {
                body(comm);
            } catch (const std::exception& error) {
                thrown[static_cast<std::size_t>(r)] = error.what();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < ranks; ++r) EXPECT_EQ(thrown[static_cast<std::size_t>(r)], "") << r;
}

}  // namespace mr::comm
