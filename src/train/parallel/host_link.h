// A link between pipeline stages whose tensors lie in host memory: its thread handles the transfers
// while the stage computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/comm/comm.h"
#include "train/parallel/timed_link.h"

namespace mr::train {

class HostLink final : public TimedLink {
  public:
    // Two channels of the same ranks, by stage: `passes` for the thread, `between` for the caller.
    HostLink(std::unique_ptr<comm::Comm> passes, std::unique_ptr<comm::Comm> between);
    // Abandons transfers in flight.
    ~HostLink() override;

    Ticket send(int stage, Tensor x) override;
    Ticket receive(int stage, Tensor x) override;
    void wait(Ticket ticket) override;
    std::vector<double> gather(std::span<const double> mine) override;
    void swap(int stage, Tensor mine, Tensor theirs) override;
    void send_bytes(int stage, std::span<const std::byte> data) override {
        between_->send(stage, data);
    }
    void receive_bytes(int stage, std::span<std::byte> data) override {
        between_->receive(stage, data);
    }

    void meet() override;
    double waited_seconds() const override { return waited_; }

  private:
    struct Order {
        Ticket ticket = kNone;
        bool sends = false;
        int stage = 0;
        std::span<std::byte> data{};
    };
    Ticket add(bool sends, int stage, Tensor x);
    void work();

    std::unique_ptr<comm::Comm> passes_, between_;
    double waited_ = 0;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Order> orders_;       // not begun by the thread yet
    std::map<Ticket, int> pending_;  // not done: the stage of each transfer
    Ticket last_ = kNone;
    std::exception_ptr failure_;
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

}  // namespace mr::train
