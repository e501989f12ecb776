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
        MPI_Request& request = requests_[++last_];
        MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, kTag, MPI_COMM_WORLD,
                  &request);
        return last_;
    }
    Transfer receive(int from, std::span<std::byte> data) override {
        MPI_Request& request = requests_[++last_];
        MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, from, kTag, MPI_COMM_WORLD,
                  &request);
        return last_;
    }
    bool done(Transfer transfer) override {
        const auto at = requests_.find(transfer);
        int flag = 0;
        MPI_Test(&at->second, &flag, MPI_STATUS_IGNORE);
        if (flag) requests_.erase(at);
        return flag != 0;
    }
    [[noreturn]] void abort(int exit_code) override {
        MPI_Abort(MPI_COMM_WORLD, exit_code);
        std::_Exit(exit_code);
    }

  private:
    static constexpr int kTag = 1;
    int rank_ = 0, size_ = 1;
    Transfer last_ = 0;
    std::unordered_map<Transfer, MPI_Request> requests_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) std::unique_ptr<Messages>
millrace_mpi_messages() {
    return std::make_unique<MpiMessages>();
}

}  // namespace mr::comm
