// Messages by MPI. A module of its own: mpi_module.h says why.
#include <mpi.h>

#include <cstdlib>
#include <unordered_map>

#include "core/comm/mpi_module.h"

namespace mr::comm {
namespace {

class MpiMessages : public Messages {
  public:
    MpiMessages() {
        // One thread at a time calls, but not always the same.
        int given = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size_);
    }
    ~MpiMessages() override { MPI_Finalize(); }

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    Transfer send(int to, std::span<const std::byte> data) override {
        MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, kTag, MPI_COMM_WORLD,
                  &pending_[++last_].request);
        return last_;
    }
    Transfer receive(int from, std::span<std::byte> data) override {
        Pending& pending = pending_[++last_];
        pending.bytes = static_cast<int>(data.size());
        MPI_Irecv(data.data(), pending.bytes, MPI_BYTE, from, kTag, MPI_COMM_WORLD,
                  &pending.request);
        return last_;
    }
    bool done(Transfer transfer) override {
        const auto at = pending_.find(transfer);
        int flag = 0, bytes = 0;
        MPI_Status status{};
        MPI_Test(&at->second.request, &flag, &status);
        if (!flag) return false;
        const int wanted = at->second.bytes;
        pending_.erase(at);
        if (wanted < 0) return true;  // it was sent
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        out_of_step_ = out_of_step_ || bytes != wanted;
        return true;
    }
    bool out_of_step() const override { return out_of_step_; }
    [[noreturn]] void abort(int exit_code) override {
        MPI_Abort(MPI_COMM_WORLD, exit_code);
        std::_Exit(exit_code);
    }

  private:
    static constexpr int kTag = 1;
    int rank_ = 0, size_ = 1;
    Transfer last_ = 0;
    struct Pending {
        MPI_Request request = MPI_REQUEST_NULL;
        int bytes = -1;  // that are to be received
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
