#include "serve/compile_queue.h"

#include <exception>
#include <utility>
#include <vector>

#include "core/start_thread.h"
#include "serve/failure.h"

namespace mr::serve {

CompileQueue::~CompileQueue() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    there_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void CompileQueue::put(const std::string& client, Job job) {
    const std::lock_guard lock(mutex_);
    const bool room = jobs_.empty() || bytes_ + job.bytes <= kMostBytes;
    if (jobs_.size() >= kMost || jobs_.of(client) >= kMostOfClient || !room) {
        Failure full = Failure::of(503, "server_error",
                                   "too many requests wait for their schemas; try again later",
                                   "schemas_full");
        full.retry_after_ms = 1000;
        throw full;
    }
    if (!thread_.joinable()) thread_ = start_thread([this] { work(); }, "for schemas");
    const std::size_t bytes = job.bytes;
    std::vector<Job> one;
    one.push_back(std::move(job));
    jobs_.put(client, std::move(one));
    bytes_ += bytes;
    there_.notify_one();
}

std::size_t CompileQueue::waiting() const {
    const std::lock_guard lock(mutex_);
    return jobs_.size();
}

void CompileQueue::work() {
    for (;;) {
        Job job;
        {
            std::unique_lock lock(mutex_);
            there_.wait(lock, [&] { return leaving_ || !jobs_.empty(); });
            if (leaving_) return;
            job = *jobs_.take();
            bytes_ -= job.bytes;
        }
        try {
            if (!job.exchange->gone()) {
                job.run();
                continue;
            }
        } catch (const std::exception&) {  // no memory for a refusal
        }
        job.exchange->cut();
    }
}

}  // namespace mr::serve
