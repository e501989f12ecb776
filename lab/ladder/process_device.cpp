#include "lab/ladder/process_device.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/error.h"

namespace mr::ladder {
namespace {

// Asks the other process for a product. Weights follow where it does not have them, then x.
struct Request {
    std::uint64_t weights;  // their name: the address in the program
    std::int32_t n, k;
    bool sends_weights, keeps_weights;
};
// Its answer, before the result.
struct Answer {
    double seconds;  // of multiplying
};

bool send_all(int fd, const void* data, std::size_t bytes) {
    const auto* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        bytes -= static_cast<std::size_t>(sent);
    }
    return true;
}

bool receive_all(int fd, void* data, std::size_t bytes) {
    auto* at = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t got = ::recv(fd, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= static_cast<std::size_t>(got);
    }
    return true;
}

std::size_t bytes_of(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); }

// The device: multiplies until the program closes the socket.
void serve_all(int fd) {
    std::unordered_map<std::uint64_t, std::vector<float>> kept;
    std::vector<float> passing, x, out;
    Request request{};
    while (receive_all(fd, &request, sizeof request)) {
        std::vector<float>& w = request.keeps_weights ? kept[request.weights] : passing;
        if (request.sends_weights) {
            w.resize(static_cast<std::size_t>(request.n) * static_cast<std::size_t>(request.k));
            if (!receive_all(fd, w.data(), bytes_of(std::int64_t{request.n} * request.k))) break;
        }
        x.resize(static_cast<std::size_t>(request.k));
        out.resize(static_cast<std::size_t>(request.n));
        if (!receive_all(fd, x.data(), bytes_of(request.k))) break;
        const Moment start = Moment::now();
        multiply_rows(out.data(), x.data(), w.data(), 0, request.n, request.k);
        const Answer answer{Moment::now().seconds_since(start)};
        if (!send_all(fd, &answer, sizeof answer) ||
            !send_all(fd, out.data(), bytes_of(request.n))) {
            break;
        }
    }
}

// It was forked, and must neither touch what other threads of the program held nor return into it.
[[noreturn]] void serve(int fd) {
    try {
        serve_all(fd);
    } catch (...) {  // out of memory: the program sees that the socket is closed
    }
    ::_exit(0);
}

class ProcessMatmul final : public Matmul {
  public:
    explicit ProcessMatmul(Residence residence) : keeps_(residence == Residence::weights) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail();
        process_ = ::fork();
        if (process_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            // A terminal's Ctrl-C is for the program, whose end ends this process.
            for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
            ::close(ends[0]);
            serve(ends[1]);
        }
        ::close(ends[1]);
        fd_ = ends[0];
        if (process_ < 0) {
            ::close(fd_);
            fail();
        }
    }
    ~ProcessMatmul() override {
        ::close(fd_);
        while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) continue;
    }
    ProcessMatmul(const ProcessMatmul&) = delete;
    ProcessMatmul& operator=(const ProcessMatmul&) = delete;

    void multiply(float* out, const float* x, const float* w, int n, int k) override {
        const Moment start = Moment::now();
        const auto name = reinterpret_cast<std::uint64_t>(w);
        const bool there = keeps_ && there_.contains(name);
        const Request request{name, n, k, !there, keeps_};
        const std::size_t weights = there ? 0 : bytes_of(std::int64_t{n} * k);
        Answer answer{};
        if (!send_all(fd_, &request, sizeof request) || !send_all(fd_, w, weights) ||
            !send_all(fd_, x, bytes_of(k)) || !receive_all(fd_, &answer, sizeof answer) ||
            !receive_all(fd_, out, bytes_of(n))) {
            throw Error::device({.field = "ladder",
                                 .problem = "the second process ended",
                                 .remedy = "see whether memory ran out"});
        }
        if (keeps_) there_.insert(name);
        if (weights > 0) ledger.add_host_to_device(weights);
        ledger.add_host_to_device(bytes_of(k));
        ledger.add_device_to_host(bytes_of(n));
        if (!split) return;
        split->kernels += answer.seconds;
        split->copies += Moment::now().seconds_since(start) - answer.seconds;
    }

  private:
    [[noreturn]] static void fail() {
        throw Error::device(
            {.field = "ladder",
             .problem = std::string("a second process cannot be started: ") + std::strerror(errno),
             .remedy = "leave the rung 'process' out with --rungs"});
    }

    const bool keeps_;
    std::unordered_set<std::uint64_t> there_;
    pid_t process_ = -1;
    int fd_ = -1;
};

}  // namespace

std::unique_ptr<Matmul> process_matmul(Residence residence) {
    return std::make_unique<ProcessMatmul>(residence);
}

}  // namespace mr::ladder
