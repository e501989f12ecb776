// Sums the gradients of several ranks, in host memory, on its own thread while the backward pass
// continues.
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
#include "train/parallel/timed_exchange.h"

namespace mr::train {

class Exchange final : public TimedExchange {
  public:
    // Elements are sent as soon as there are `bucket` bytes of them, or when they are waited for.
    // Between add_up() or collect() and wait() or finish() `comm` belongs to the thread.
    Exchange(comm::Comm& comm, std::int64_t bucket);
    ~Exchange() override;

    int rank() const override { return comm_.rank(); }
    int ranks() const override { return comm_.size(); }
    Ticket add_up(float* elements, const comm::Shards& shards, bool whole) override;
    Ticket collect(void* elements, const comm::Shards& shards, std::size_t size) override;
    void flush() override { send_bucket(); }
    void wait(Ticket ticket) override;
    void finish() override { wait(begun_); }
    std::vector<double> gather(std::span<const double> mine) override;
    void send(int to, std::span<const std::byte> data) override { comm_.send(to, data); }
    void receive(int from, std::span<std::byte> data) override { comm_.receive(from, data); }

    std::uint64_t memory_bytes(std::span<const comm::Shards> pieces, bool whole) const override;

    double busy_seconds() const override { return busy_; }
    double waited_seconds() const override { return waited_; }
    // Memory taken so far, for tests: nothing may be in flight.
    std::uint64_t memory_taken() const {
        return packed_.capacity() * sizeof(float) + comm_.room_bytes();
    }

  private:
    // Work for the thread, in its order.
    enum class Kind { sum, share_of_sum, collect };
    struct Piece {
        Kind kind;
        std::span<std::byte> elements;
        comm::Shards shards;
        std::size_t size;  // of an element

        std::span<float> floats() const {
            return {reinterpret_cast<float*>(elements.data()), elements.size() / sizeof(float)};
        }
    };
    using Bucket = std::vector<Piece>;
    Ticket begin(const Piece& piece);
    void work();
    void reduce(const Bucket& bucket);
    void send_bucket();

    comm::Comm& comm_;
    const std::int64_t bucket_bytes_;
    Bucket open_;  // not yet sent
    std::int64_t open_bytes_ = 0;
    Ticket begun_ = kNothing, sent_ = kNothing;  // last piece begun, last piece put into a bucket
    std::vector<float> packed_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Bucket> queue_;
    Ticket queued_ = kNothing, done_ = kNothing;  // last piece of each state
    std::exception_ptr failure_;
    bool stop_ = false;
    double busy_ = 0, waited_ = 0;
    std::thread thread_;
};

}  // namespace mr::train
