// The gradients of several ranks, in host memory, added up by a thread of its own while the
// backward pass goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/comm/comm.h"
#include "train/parallel/device_exchange.h"

namespace mr::train {

class Exchange final : public TimedExchange {
  public:
    // Elements are sent as soon as `bucket` bytes of them are there. Between add_up() and finish()
    // `comm` is the thread's.
    Exchange(comm::Comm& comm, std::int64_t bucket);
    ~Exchange() override;

    int rank() const override { return comm_.rank(); }
    int ranks() const override { return comm_.size(); }
    void add_up(float* elements, const comm::Shards& shards, bool whole) override;
    void finish() override;
    std::vector<double> gather(std::span<const double> mine) override;
    void collect(float* elements, const comm::Shards& shards) override;
    void send(int to, std::span<const std::byte> data) override { comm_.send(to, data); }
    void receive(int from, std::span<std::byte> data) override { comm_.receive(from, data); }

    double busy_seconds() const override { return busy_; }
    double waited_seconds() const override { return waited_; }

  private:
    struct Piece {
        std::span<float> elements;
        comm::Shards shards;
        bool whole;
    };
    using Bucket = std::vector<Piece>;
    void work();
    void reduce(const Bucket& bucket);
    void send_bucket();

    comm::Comm& comm_;
    const std::int64_t bucket_bytes_;
    Bucket open_;  // not yet sent
    std::int64_t open_bytes_ = 0;
    std::vector<float> packed_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Bucket> queue_;
    int pending_ = 0;  // buckets that are queued or worked on
    std::exception_ptr failure_;
    bool stop_ = false;
    double busy_ = 0, waited_ = 0;
    std::thread thread_;
};

}  // namespace mr::train
