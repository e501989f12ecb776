// NCCL from device to device. The communicator is non-blocking: calls return at once and are
// polled, so that a silent rank is given up after the timeout and kernels that wait for it are
// ended (ncclCommAbort).
#include <fmt/format.h>

#include <chrono>
#include <functional>

#include "core/comm/device_link.h"
#include "core/comm/nccl_library.h"
#include "core/cuda/check.h"
#include "core/error.h"
#include "core/shared_library.h"

namespace mr::comm {

#ifdef MR_HAS_NCCL

namespace nccl {
namespace {

Library open_library() {
    Library lib;
    const auto [file, why] =
        open_shared_library("NCCL", "MILLRACE_NCCL", {"libnccl.so.2", "libnccl.so"});
    if (!file) {
        lib.about = why;
        return lib;
    }
    std::string missing;
#define MR_LOAD(name) find_function(file, #name, lib.name, missing);
    MR_NCCL_FUNCTIONS(MR_LOAD)
#undef MR_LOAD
    if (!missing.empty()) {
        lib.about = "this NCCL lacks " + missing;
        return lib;
    }
    int version = 0;  // 22803 is 2.28.3
    lib.ncclGetVersion(&version);
    lib.about = fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    lib.there = true;
    return lib;
}

}  // namespace

const Library& library() {
    static const Library lib = open_library();
    return lib;
}

}  // namespace nccl

namespace {

using nccl::library;
using Clock = std::chrono::steady_clock;

class NcclLink : public DeviceLink {
  public:
    explicit NcclLink(Comm& comm) : comm_(comm) {
        ncclUniqueId id{};
        if (comm.first()) check(library().ncclGetUniqueId(&id), "an id");
        comm.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        check(library().ncclCommInitRankConfig(&nccl_, comm.size(), id, comm.rank(), &config),
              "a communicator");
        settle("a communicator");
    }
    ~NcclLink() override {
        if (!nccl_) return;
        // Abort rather than destroy: destroy would wait for ranks that have already left. After a
        // normal end all ranks are here anyway; after LostRank they are not.
        library().ncclCommAbort(nccl_);
    }
    NcclLink(const NcclLink&) = delete;
    NcclLink& operator=(const NcclLink&) = delete;

    std::string name() const override { return library().about; }

    void exchange(const cuda::Stream& stream, std::span<const DevicePiece> out,
                  std::span<const DevicePiece> in) override {
        require_open();
        check(library().ncclGroupStart(), "a group");
        // A failed message is reported once the group has ended: an open one would take all later
        // calls of this thread, also of other communicators, and check() aborts this one.
        ncclResult_t message = ncclSuccess;
        for (const DevicePiece& piece : out) {
            if (piece.bytes == 0 || failed(message)) continue;
            message = library().ncclSend(piece.data, piece.bytes, ncclInt8, piece.rank, nccl_,
                                         stream.raw());
        }
        for (const DevicePiece& piece : in) {
            if (piece.bytes == 0 || failed(message)) continue;
            message = library().ncclRecv(piece.data, piece.bytes, ncclInt8, piece.rank, nccl_,
                                         stream.raw());
        }
        const ncclResult_t group = library().ncclGroupEnd();
        check(message, "a message");
        check(group, "a group");
        settle("a group of messages");
    }

    bool adds_up() const override { return true; }
    void add_up(const cuda::Stream& stream, void* x, std::int64_t count) override {
        require_open();
        check(library().ncclAllReduce(x, x, static_cast<std::size_t>(count), ncclBfloat16, ncclSum,
                                      nccl_, stream.raw()),
              "a sum over ranks");
        settle("a sum over ranks");
    }

    void wait(const cuda::Event& event) override {
        until([&] { return event.done(); });
    }

  private:
    // ncclInProgress is no error: settle() waits for the call.
    static bool failed(ncclResult_t result) {
        return result != ncclSuccess && result != ncclInProgress;
    }
    void check(ncclResult_t result, const char* what) {
        if (!failed(result)) [[likely]]
            return;
        const char* const said = library().ncclGetLastError(nccl_);
        const std::string problem = library().ncclGetErrorString(result);
        abort();
        throw LostRank({.field = "NCCL",
                        .value = what,
                        .problem = said && *said ? fmt::format("{}: {}", problem, said) : problem,
                        .remedy = "check the other ranks' output; NCCL_DEBUG=WARN shows more"});
    }
    void require_open() const {
        if (!nccl_) throw LostRank({.problem = "this rank is shutting down"});
    }
    // Waits until the last call has completed on the host.
    void settle(const char* what) {
        ncclResult_t state = ncclInProgress;
        until([&] {
            library().ncclCommGetAsyncError(nccl_, &state);
            return state != ncclInProgress;
        });
        check(state, what);
    }
    // Watches for errors of other ranks while it waits.
    void until(const std::function<bool()>& done) {
        const Clock::time_point start = Clock::now();
        for (int idle = 0; !done(); ++idle) {
            ncclResult_t state = ncclSuccess;
            library().ncclCommGetAsyncError(nccl_, &state);
            check(state, "the work of other ranks");
            if (comm_.cancelled()) {
                abort();
                throw LostRank({.problem = "this rank is shutting down"});
            }
            if (comm_.timeout().count() > 0 && Clock::now() - start > comm_.timeout()) give_up();
            Transfers::rest(idle);
        }
    }
    // NCCL does not say which rank is silent; the roll call does.
    [[noreturn]] void give_up() {
        abort();
        std::vector<int> others;
        for (int r = 0; r < comm_.size(); ++r) {
            if (r != comm_.rank()) others.push_back(r);
        }
        throw comm_.lost(std::move(others));
    }
    void abort() {
        if (nccl_) library().ncclCommAbort(std::exchange(nccl_, nullptr));
    }

    Comm& comm_;
    ncclComm_t nccl_ = nullptr;
};

}  // namespace

std::string why_no_nccl() { return library().there ? "" : library().about; }

std::unique_ptr<DeviceLink> nccl_link(Comm& comm) { return std::make_unique<NcclLink>(comm); }

#else

std::string why_no_nccl() { return "this program was built without NCCL"; }
std::unique_ptr<DeviceLink> nccl_link(Comm&) {
    throw Error::device({.field = "NCCL", .problem = why_no_nccl()});
}

#endif

}  // namespace mr::comm
