#include "worker.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/start_thread.h"

namespace mr::python {
namespace {

std::exception_ptr closed_error() {
    return std::make_exception_ptr(Error::usage(
        {.field = "model", .problem = "was closed while it worked", .remedy = "open it again"}));
}

// Throws if another engine was to replace this one and could not be made.
void require(const std::unique_ptr<model::Engine>& engine) {
    if (engine) return;
    throw Error::device({.field = "model",
                         .problem = "has lost its engine: there was no memory for a larger one",
                         .remedy = "open it again"});
}

}  // namespace

bool Ticket::wait(double seconds, bool text) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [&] { return ended_ || (text && !text_.empty()); });
}

std::string Ticket::take_text() {
    const std::lock_guard lock(mutex_);
    return std::exchange(text_, {});
}

bool Ticket::ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
}

void Ticket::check() {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
}

void Ticket::add_text(std::string_view text) {
    {
        const std::lock_guard lock(mutex_);
        text_ += text;
    }
    changed_.notify_all();
}

void Ticket::end(std::exception_ptr error) {
    {
        const std::lock_guard lock(mutex_);
        error_ = std::move(error);
        ended_ = true;
    }
    changed_.notify_all();
}

Worker::Worker(std::unique_ptr<model::Engine> engine)
    : process_(::getpid()),
      engine_(std::move(engine)),
      thread_(start_thread([this] { drive(); }, "to drive the engine")) {}

Worker::~Worker() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
        for (const Job& job : jobs_) job.ticket->cancel();
        if (alone_) alone_->cancel();
    }
    work_.notify_all();
    thread_.join();
}

bool Worker::here() const { return ::getpid() == process_; }

TicketPtr Worker::generate(std::vector<std::int32_t> prompt, decode::GenerateOptions options,
                           bool streams, bool on_host) {
    return put({.ticket = std::make_shared<Ticket>(cancels_),
                .prompt = std::move(prompt),
                .options = std::move(options),
                .streams = streams,
                .on_host = on_host,
                .body = {}});
}

TicketPtr Worker::alone(Body body) {
    return put({.ticket = std::make_shared<Ticket>(cancels_),
                .prompt = {},
                .options = {},
                .streams = false,
                .on_host = false,
                .body = std::move(body)});
}

TicketPtr Worker::put(Job job) {
    TicketPtr ticket = job.ticket;
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    work_.notify_all();
    return ticket;
}

// Waits until there is work; false: the worker must end.
bool Worker::has_work() {
    std::unique_lock lock(mutex_);
    if (open_.empty()) work_.wait(lock, [&] { return leaving_ || !jobs_.empty(); });
    return !leaving_;
}

// The next job, in order of arrival, if it can start now. A job that runs alone waits until nothing
// is open. Of generations, twice as many are open as run together, since every pass looks at all of
// them: the others wait here, so that a pass takes the same time with ten prompts and with a
// million.
std::optional<Worker::Job> Worker::next_job() {
    const std::lock_guard lock(mutex_);
    if (leaving_ || jobs_.empty()) return std::nullopt;
    const bool alone = static_cast<bool>(jobs_.front().body);
    const auto most = engine_ ? static_cast<std::size_t>(engine_->options().max_sequences) : 1;
    if (alone ? !open_.empty() : open_.size() >= 2 * most) return std::nullopt;
    std::optional<Job> job(std::move(jobs_.front()));
    jobs_.pop_front();
    return job;
}

// Ends generations that were cancelled before they began. It looks at all of them, and so only if
// there was a cancellation since the last time.
void Worker::end_cancelled() {
    if (const std::uint64_t cancels = *cancels_; std::exchange(seen_cancels_, cancels) == cancels) {
        return;
    }
    const std::lock_guard lock(mutex_);
    std::erase_if(jobs_, [](const Job& job) {
        if (job.body || !job.ticket->cancelled()) return false;
        job.ticket->made.reason = decode::StopReason::cancelled;
        job.ticket->end();
        return true;
    });
}

void Worker::drive() {
    while (has_work()) {
        end_cancelled();
        while (std::optional<Job> job = next_job()) job->body ? run_alone(*job) : begin(*job);
        if (!open_.empty()) step();
    }
    scheduler_.reset();
    for (const auto& [id, ticket] : open_) ticket->end(closed_error());
    const std::lock_guard lock(mutex_);
    for (const Job& job : jobs_) job.ticket->end(closed_error());
    jobs_.clear();
}

void Worker::begin(Job& job) {
    const TicketPtr ticket = job.ticket;
    try {
        require(engine_);
        if (!scheduler_) scheduler_ = std::make_unique<decode::Scheduler>(*engine_);
        job.options.cancelled = [ticket] { return ticket->cancelled(); };
        decode::OnText on_text;
        if (job.streams) {
            on_text = [ticket](std::string_view text) {
                ticket->add_text(text);
                return true;
            };
        }
        // Made first, because nothing may fail after add(): a text would run that no ticket takes.
        Open one(1);
        const decode::Scheduler::Id id =
            scheduler_->add(std::move(job.prompt), std::move(job.options), std::move(on_text));
        if (job.on_host) scheduler_->guess_on_host(id);
        one.front() = {id, ticket};
        open_.splice(open_.end(), one);
    } catch (...) {
        ticket->end(std::current_exception());
    }
}

void Worker::run_alone(Job& job) {
    scheduler_.reset();
    {
        const std::lock_guard lock(mutex_);
        alone_ = job.ticket;
        if (leaving_) alone_->cancel();
    }
    std::exception_ptr error;
    try {
        require(engine_);
        job.body(engine_, *job.ticket);
    } catch (...) {
        error = std::current_exception();
    }
    job.body = {};  // first: its objects must be gone when the caller is told
    {
        const std::lock_guard lock(mutex_);
        alone_.reset();
        if (leaving_ && !error) error = closed_error();  // its result may be incomplete
    }
    job.ticket->end(error);
}

void Worker::step() {
    try {
        scheduler_->step();
        take_ended();
    } catch (...) {
        // A scheduler whose step has thrown must be destroyed, and its requests with it.
        const std::exception_ptr error = std::current_exception();
        scheduler_.reset();
        for (const auto& [id, ticket] : std::exchange(open_, {})) ticket->end(error);
    }
}

void Worker::take_ended() {
    for (auto at = open_.begin(); at != open_.end();) {
        Ticket& ticket = *at->second;
        std::exception_ptr error;
        bool ended = true;
        try {
            std::optional<decode::Generated> made = scheduler_->take(at->first);
            ended = made.has_value();
            if (made) ticket.made = std::move(*made);
        } catch (...) {
            error = std::current_exception();
        }
        if (ended) ticket.end(error);
        at = ended ? open_.erase(at) : std::next(at);
    }
}

}  // namespace mr::python
