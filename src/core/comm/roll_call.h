// Finds out which ranks are still alive. A rank that waits too long for another may be waiting for
// one that itself waits. So a thread of every rank answers at any time, and the rank that is really
// silent can be named.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/comm/messages.h"

namespace mr::comm {

class RollCall {
  public:
    using Seconds = std::chrono::duration<double>;
    // `channel`: for roll calls only, of all ranks; each makes one RollCall. `answer`: time a rank
    // has to answer; `end`: how long the destructor waits for those of the other ranks.
    explicit RollCall(std::unique_ptr<Messages> channel, Seconds answer = Seconds(2),
                      Seconds end = Seconds(3600));
    ~RollCall();
    RollCall(const RollCall&) = delete;
    RollCall& operator=(const RollCall&) = delete;

    // Ranks that do not answer now.
    std::vector<int> silent();

  private:
    enum Word : unsigned char { kAsk = 1, kHere, kEnd };
    struct Peer {
        std::byte in{};
        Messages::Transfer receiving = 0;
        bool answered = false, ended = false;
    };
    struct Sent {
        std::unique_ptr<std::byte> word;
        Messages::Transfer transfer;
    };
    void work();
    void forget_pending();
    void say(int rank, Word word);
    void listen(int rank);
    bool all_of(bool Peer::*what) const;

    std::unique_ptr<Messages> channel_;
    const Seconds answer_, end_;
    std::vector<Peer> peers_;  // by rank; this rank's own entry is unused
    std::vector<Sent> sent_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool asked_ = false, ending_ = false;
    std::thread thread_;
};

}  // namespace mr::comm
