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
    // One line that is about no single request.
    void note(std::string_view text);

  private:
    static constexpr std::size_t kMost = 4096;  // lines that may wait

    struct State {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<std::string> lines;
        std::uint64_t dropped = 0;
        bool leaving = false, ended = false;
    };
    static void run(const std::shared_ptr<State>& state, const Write& write, Kind kind);
    void put(std::string line);

    const Kind kind_;
    std::shared_ptr<State> state_ = std::make_shared<State>();
};

// One line each, with its end.
std::string access_line(const Access& access, AccessLog::Kind kind, std::string_view time);
std::string note_line(std::string_view text, AccessLog::Kind kind, std::string_view time);
// {"time", KIND: TEXT}
std::string json_note(std::string_view kind, std::string_view text, std::string_view time);
// Now, as the log has it: "2026-11-19T17:03:04.250Z".
std::string log_time();

}  // namespace mr::serve
