// Messages over MPI. Built as a separate module: mpi_module.h says why.
#include <mpi.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "core/comm/mpi_module.h"

namespace mr::comm {
namespace {

// MPI itself, shared by all channels: one thread calls it at a time, not always the same one.
struct World {
    World() {
        int given = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given);
        if (given >= MPI_THREAD_SERIALIZED) return;
        MPI_Finalize();
        throw std::runtime_error(
            "this MPI lets only the thread that started it send and receive; use one that gives "
            "MPI_THREAD_SERIALIZED");
    }
    ~World() { MPI_Finalize(); }
    World(const World&) = delete;
    World& operator=(const World&) = delete;
    std::mutex mutex;
};

class MpiMessages : public Messages {
  public:
    MpiMessages() : world_(std::make_shared<World>()) {
        int size = 1;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        for (int r = 0; r < size; ++r) ranks_.push_back(r);
    }

    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(ranks_.size()); }
    Transfer send(int to, std::span<const std::byte> data) override {
        const std::lock_guard lock(world_->mutex);
        MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, in_world(to), tag_,
                  MPI_COMM_WORLD, &pending_[++last_].request);
        return last_;
    }
    Transfer receive(int from, std::span<std::byte> data) override {
        const std::lock_guard lock(world_->mutex);
        Pending& pending = pending_[++last_];
        pending.bytes = static_cast<int>(data.size());
        MPI_Irecv(data.data(), pending.bytes, MPI_BYTE, in_world(from), tag_, MPI_COMM_WORLD,
                  &pending.request);
        return last_;
    }
    bool done(Transfer transfer) override {
        const std::lock_guard lock(world_->mutex);
        const auto at = pending_.find(transfer);
        int flag = 0, bytes = 0;
        MPI_Status status{};
        MPI_Test(&at->second.request, &flag, &status);
        if (!flag) return false;
        const int wanted = at->second.bytes;
        pending_.erase(at);
        if (wanted < 0) return true;  // a send
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        out_of_step_ = out_of_step_ || bytes != wanted;
        return true;
    }
    void forget(Transfer transfer) override {
        const std::lock_guard lock(world_->mutex);
        const auto at = pending_.find(transfer);
        MPI_Request& request = at->second.request;
        // A send only reads, and MPI cannot always take one back.
        const bool receives = at->second.bytes >= 0;
        if (receives) MPI_Cancel(&request);
        // A receive that nothing has matched ends at once. One in the middle of a message may not,
        // if its sender is lost, and is not waited for.
        int flag = 0;
        for (int tries = 0; receives && !flag && tries < kForgetTries; ++tries) {
            MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
        }
        if (!flag) MPI_Request_free(&request);
        pending_.erase(at);
    }
    bool out_of_step() const override { return out_of_step_; }
    std::unique_ptr<Messages> channel(std::span<const int> ranks, int number) override {
        return std::unique_ptr<Messages>(new MpiMessages(*this, ranks, number));
    }
    [[noreturn]] void abort(int exit_code) override {
        // Without the lock: its holder may be waiting for this thread.
        MPI_Abort(MPI_COMM_WORLD, exit_code);
        std::_Exit(exit_code);
    }

  private:
    static constexpr int kForgetTries = 1000;  // below a millisecond
    static constexpr int kTag = 1;  // of the channel of all ranks; channel n has kTag + n

    MpiMessages(const MpiMessages& all, std::span<const int> ranks, int number)
        : world_(all.world_), tag_(kTag + number) {
        for (const int r : ranks) {
            if (r == all.rank_) rank_ = static_cast<int>(ranks_.size());
            ranks_.push_back(all.in_world(r));
        }
    }
    int in_world(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

    std::shared_ptr<World> world_;
    const int tag_ = kTag;
    int rank_ = 0;
    std::vector<int> ranks_;  // their ranks in MPI_COMM_WORLD
    Transfer last_ = 0;
    struct Pending {
        MPI_Request request = MPI_REQUEST_NULL;
        int bytes = -1;  // expected bytes of a receive; -1: a send
    };
    std::unordered_map<Transfer, Pending> pending_;
    bool out_of_step_ = false;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) std::unique_ptr<Messages>
millrace_mpi_messages() {
    return std::make_unique<MpiMessages>();
}

}  // namespace mr::comm
