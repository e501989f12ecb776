// The access log: a separate thread writes lines, so that a slow reader (a full pipe, a disk) never
// delays a connection. Lines that do not fit into the queue are dropped and counted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "serve/http.h"

namespace mr::serve {

class AccessLog {
  public:
    enum class Kind { none, text, json };
    using Write = std::function<void(std::string_view)>;

    AccessLog(Kind kind, Write write);
    ~AccessLog();  // writes the remaining lines, for at most a second
    AccessLog(const AccessLog&) = delete;
    AccessLog& operator=(const AccessLog&) = delete;

    void add(const Access& access);

  private:
    static constexpr std::size_t kMost = 4096;  // lines that may wait

    struct State {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<std::string> lines;
        std::uint64_t dropped = 0;
        bool leaving = false, ended = false;
    };
    static void run(const std::shared_ptr<State>& state, const Write& write);

    const Kind kind_;
    std::shared_ptr<State> state_ = std::make_shared<State>();
};

// One line, with its end.
std::string access_line(const Access& access, AccessLog::Kind kind, std::string_view time);

}  // namespace mr::serve
