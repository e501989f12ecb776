// The ranks of a job and what they do together. Every rank calls the same functions in the same
// order, with sizes that fit each other.
//
// Collectives are made of messages from rank to rank, so that a rank that stays silent is known by
// its number, and so that sums have one order: a binary tree over ranks, ((0 + 1) + (2 + 3)) + ...,
// whatever the sizes and the way of sending. A sum over 4 ranks of 2 grains each has the bits of
// one over 2 ranks of 4 grains, if each rank adds its own in the same way (tree_sum()).
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

// Where a flat buffer is cut for the ranks: rank r has elements [begin(r), end(r)). Cuts lie at
// multiples of a block, so the shares of different numbers of ranks consist of the same blocks.
class Shards {
  public:
    Shards(std::int64_t count, std::int64_t block, int ranks);
    // The same cuts, of the first `count` elements.
    Shards first(std::int64_t count) const;
    // The same cuts, of the elements behind those.
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

// A rank that did not answer, or answered something else: the job is lost.
class LostRank : public Error {
  public:
    explicit LostRank(ErrorInfo info) : Error(ErrorKind::device, std::move(info)) {}
};

// parts[0][i] becomes the sum of all parts' element i, in the order above; the others are written
// over.
void tree_sum(std::span<float* const> parts, std::int64_t count);
double tree_sum(std::vector<double> parts);

class Comm {
  public:
    using Seconds = std::chrono::duration<double>;
    // One process: nothing is sent.
    Comm();
    // A rank that does not answer for `timeout` is given up. 0: never.
    Comm(std::unique_ptr<Messages> messages, Seconds timeout);
    ~Comm();

    int rank() const { return rank_; }
    int size() const { return size_; }
    bool alone() const { return size_ == 1; }
    bool first() const { return rank_ == 0; }
    // Some of these ranks, this one among them, as a Comm of their own, numbered as they stand in
    // `ranks`: all of them call this with the same ranks and `channel`, from 1, which none of them
    // has used before. Different ones may be used by different threads at a time. Lines that name
    // a rank name it as this one numbers it. It must not outlive this one.
    std::unique_ptr<Comm> split(std::span<const int> ranks, int channel);
    // What a line calls a rank.
    int name_of(int rank) const {
        return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)];
    }
    Seconds timeout() const { return timeout_; }

    // Each throws LostRank that names the rank which did not answer in time.
    void barrier();
    void send(int to, std::span<const std::byte> data);
    void receive(int from, std::span<std::byte> data);
    // Of rank `from`, to all.
    void broadcast(std::span<std::byte> data, int from);
    // all: [size()] pieces of mine.size() bytes, by rank.
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
    // `data` is cut by `shards`: before, each rank has its own share; behind, all have all.
    template <typename T>
    void all_gather(std::span<T> data, const Shards& shards) {
        gather_shares(std::as_writable_bytes(data), shards, sizeof(T));
    }
    // The same of elements of `size` bytes.
    void all_gather(std::span<std::byte> data, const Shards& shards, std::size_t size) {
        gather_shares(data, shards, size);
    }
    // Before, every rank has all of `data`; behind, its own share of the sum over ranks. The other
    // shares keep what they were.
    void reduce_scatter(std::span<float> data, const Shards& shards);
    void all_reduce(std::span<float> data);
    // Few numbers: all ranks have all of them, and so the same sum.
    double sum(double mine);
    double most(double mine);
    std::vector<double> gather(double mine);
    // Whether all ranks have given the same bytes. Each rank learns the lowest rank that differs
    // from rank 0; -1: none.
    int differing(std::span<const std::byte> mine);

    // From now on every wait for another rank throws: for a thread that is to end.
    void cancel() { cancelled_ = true; }
    bool cancelled() const { return cancelled_; }
    // What reduce_scatter() has taken to receive into, in bytes.
    std::uint64_t room_bytes() const { return parts_.capacity() * sizeof(float); }
    // Bytes that this rank has sent so far.
    std::uint64_t sent_bytes() const { return sent_; }
    [[noreturn]] void abort(int exit_code);

    // Every rank of the job calls it, before any split(), with a channel that none of them has:
    // from here on ranks that do not answer at all are known.
    void call_the_roll(int channel);
    // Of ranks that have not answered for timeout(). Named are those that are silent altogether,
    // where that is known and there is one. Nothing can be sent or received here any more.
    LostRank lost(std::vector<int> silent);

  private:
    friend class Transfers;
    // Ranks in a circle.
    int behind(int steps) const { return (rank_ + steps) % size_; }
    int before(int steps) const { return (rank_ - steps + size_) % size_; }
    void gather_shares(std::span<std::byte> data, const Shards& shards, std::size_t element);

    std::unique_ptr<Messages> messages_;
    Seconds timeout_{};
    int rank_ = 0, size_ = 1;
    std::vector<int> names_;  // of a part of the ranks
    std::uint64_t sent_ = 0;
    std::atomic<bool> cancelled_{false};
    std::vector<float> parts_;  // what reduce_scatter() receives
    std::unique_ptr<RollCall> own_roll_;
    RollCall* roll_ = nullptr;  // of all ranks
};

// Messages that are on their way together. Large ones go in pieces: MPI counts bytes by an int.
class Transfers {
  public:
    explicit Transfers(Comm& comm) : comm_(&comm) {}

    void send(int to, std::span<const std::byte> data);
    void receive(int from, std::span<std::byte> data);
    // Looks after them. True: one of them was done since. Throws LostRank where ranks do not do the
    // same.
    bool moved();
    bool empty() const { return pending_.empty(); }
    // Until all are done. Throws LostRank.
    void finish();
    // Others may need the core: ranks can be more than cores. `idle`: how often nothing moved.
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
