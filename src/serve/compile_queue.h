// A thread of its own for requests whose schema, pattern or tools are not compiled yet: a large
// one takes a second, in which the workers answer other requests.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "serve/http.h"
#include "serve/turns.h"

namespace mr::serve {

class CompileQueue {
  public:
    static constexpr std::size_t kMost = 64;          // requests that wait
    static constexpr std::size_t kMostOfClient = 48;  // of one client: the others find room
    // Of memory that they hold. One may take more, where no other waits.
    static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

    CompileQueue() = default;
    // Drops the requests that wait.
    ~CompileQueue();
    CompileQueue(const CompileQueue&) = delete;
    CompileQueue& operator=(const CompileQueue&) = delete;

    struct Job {
        ExchangePtr exchange;
        std::size_t bytes = 0;      // of memory: of the parsed body
        std::function<void()> run;  // answers the request; if it throws, that is cut
    };
    // Clients take turns. Throws Failure (503) if there is no room. The thread starts with the
    // first job.
    void put(const std::string& client, Job job);
    std::size_t waiting() const;

  private:
    void work();

    mutable std::mutex mutex_;
    std::condition_variable there_;
    Turns<Job> jobs_;
    std::size_t bytes_ = 0;  // of those that wait
    bool leaving_ = false;
    std::thread thread_;
};

}  // namespace mr::serve
