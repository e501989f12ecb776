// The ranks of a job and their collectives. Every rank calls the same functions in the same order,
// with matching sizes.
//
// Collectives are built from messages between two ranks, so that a silent rank is known by its
// number and sums have one fixed order: a binary tree over ranks, ((0 + 1) + (2 + 3)) + ..., for
// all sizes and transports. A sum over 4 ranks of 2 grains each has the same bits as one over 2
// ranks of 4 grains, if each rank adds its own grains with tree_sum().
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/comm/messages.h"
#include "core/comm/roll_call.h"
#include "core/error.h"

namespace mr::comm {

// How a flat buffer is divided among the ranks: rank r has elements [begin(r), end(r)). Cuts lie at
// multiples of a block, so the shares of different numbers of ranks consist of the same blocks.
class Shards {
  public:
    Shards(std::int64_t count, std::int64_t block, int ranks);
    // The same cuts, of the first `count` elements.
    Shards first(std::int64_t count) const;
    // The same cuts, of the elements after the first `count`.
    Shards behind(std::int64_t count) const;

    int ranks() const { return static_cast<int>(cuts_.size()) - 1; }
    std::int64_t count() const { return cuts_.back(); }
    std::int64_t begin(int rank) const { return cuts_[static_cast<std::size_t>(rank)]; }
    std::int64_t end(int rank) const { return cuts_[static_cast<std::size_t>(rank) + 1]; }
    std::int64_t size(int rank) const { return end(rank) - begin(rank); }
    std::int64_t largest() const;

  private:
    std::vector<std::int64_t> cuts_;
};

// A rank did not answer, or answered something unexpected: the job is lost.
class LostRank : public Error {
  public:
    explicit LostRank(ErrorInfo info) : Error(ErrorKind::device, std::move(info)) {}
};

// parts[0][i] becomes the sum of all parts' element i, in the order above; the other parts are
// overwritten.
void tree_sum(std::span<float* const> parts, std::int64_t count);
double tree_sum(std::vector<double> parts);

class Comm {
  public:
    using Seconds = std::chrono::duration<double>;
    // One process: nothing is sent.
    Comm();
    // A rank that does not answer within `timeout` is given up. 0: never.
    Comm(std::unique_ptr<Messages> messages, Seconds timeout);
    ~Comm();

    int rank() const { return rank_; }
    int size() const { return size_; }
    bool alone() const { return size_ == 1; }
    bool first() const { return rank_ == 0; }
    // A Comm of some of these ranks, this one included, numbered by their place in `ranks`. All of
    // them call this with the same `ranks` and the same unused `channel` (1 or more). Different
    // Comms may be used by different threads at the same time. Messages name a rank by its number
    // in the parent. The result must not outlive the parent.
    std::unique_ptr<Comm> split(std::span<const int> ranks, int channel);
    // The number by which messages name `rank`.
    int name_of(int rank) const {
        return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)];
    }
    Seconds timeout() const { return timeout_; }

    // Each throws LostRank, which names the rank that did not answer in time.
    void barrier();
    void send(int to, std::span<const std::byte> data);
    void receive(int from, std::span<std::byte> data);
    // Copies `data` of rank `from` to all ranks.
    void broadcast(std::span<std::byte> data, int from);
    // all: [size()] pieces of mine.size() bytes, in rank order.
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
    // `data` is divided by `shards`. Before: each rank has its own share. After: all of it.
    template <typename T>
    void all_gather(std::span<T> data, const Shards& shards) {
        gather_shares(std::as_writable_bytes(data), shards, sizeof(T));
    }
    // The same for elements of `size` bytes.
    void all_gather(std::span<std::byte> data, const Shards& shards, std::size_t size) {
        gather_shares(data, shards, size);
    }
    // Before: every rank has all of `data`. After: its own share of the sum over ranks; its other
    // shares are unchanged.
    void reduce_scatter(std::span<float> data, const Shards& shards);
    void all_reduce(std::span<float> data);
    // For a few numbers: every rank gathers all of them and computes the same result.
    double sum(double mine);
    double most(double mine);
    std::vector<double> gather(double mine);
    // Checks that all ranks have given the same bytes. Every rank gets the lowest rank that differs
    // from rank 0; -1: none.
    int differing(std::span<const std::byte> mine);

    // From now on every wait for another rank throws; ends a thread that waits.
    void cancel() { cancelled_ = true; }
    bool cancelled() const { return cancelled_; }
    // Bytes of the receive buffer that reduce_scatter() has allocated.
    std::uint64_t room_bytes() const { return parts_.capacity() * sizeof(float); }
    // Bytes that this rank has sent so far.
    std::uint64_t sent_bytes() const { return sent_; }
    [[noreturn]] void abort(int exit_code);

    // Every rank of the job calls it, before any split(), with a channel that is not in use. From
    // then on ranks that do not answer at all can be named.
    void call_the_roll(int channel);
    // The error for ranks that have not answered within timeout(). If some are known to be entirely
    // silent, it names those. Nothing can be sent or received through this Comm any more.
    LostRank lost(std::vector<int> silent);

  private:
    friend class Transfers;
    // Neighbours on the ring of ranks.
    int behind(int steps) const { return (rank_ + steps) % size_; }
    int before(int steps) const { return (rank_ - steps + size_) % size_; }
    void gather_shares(std::span<std::byte> data, const Shards& shards, std::size_t element);

    std::unique_ptr<Messages> messages_;
    Seconds timeout_{};
    int rank_ = 0, size_ = 1;
    std::vector<int> names_;  // the parent's numbers, if this is a part of the ranks
    std::uint64_t sent_ = 0;
    std::atomic<bool> cancelled_{false};
    std::vector<float> parts_;  // receive buffer of reduce_scatter()
    std::unique_ptr<RollCall> own_roll_;
    RollCall* roll_ = nullptr;  // of the whole job
};

// Messages in flight together. Large ones go in pieces: MPI counts bytes with an int.
class Transfers {
  public:
    explicit Transfers(Comm& comm) : comm_(&comm) {}
    ~Transfers();                                     // gives up what has not completed
    Transfers(Transfers&& other) noexcept = default;  // leaves the other without any
    Transfers& operator=(Transfers&& other) noexcept {
        std::swap(comm_, other.comm_);
        std::swap(pending_, other.pending_);
        return *this;
    }

    void send(int to, std::span<const std::byte> data);
    void receive(int from, std::span<std::byte> data);
    // Polls the transfers. True: at least one has completed. Throws LostRank where ranks are out of
    // step.
    bool moved();
    bool empty() const { return pending_.empty(); }
    // Waits until all are done. Throws LostRank.
    void finish();
    // Yields the core: there may be more ranks than cores. `idle`: polls in a row without progress.
    static void rest(int idle);

  private:
    struct Pending {
        Messages::Transfer transfer;
        int peer;
    };
    Comm* comm_;
    std::vector<Pending> pending_;
};

}  // namespace mr::comm
