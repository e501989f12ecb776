// Pipeline stages on GPUs. A stage has up to four lanes: to and from the stage before it, to and
// from the one after it. Each has its own stream and thread and connects only two ranks, so that no
// message waits for another one that the other end does not want yet.
#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "core/comm/device_link.h"
#include "core/error.h"
#include "core/ledger.h"
#include "core/start_thread.h"
#include "train/parallel/timed_link.h"

namespace mr::train {
namespace {

class DeviceStageLink final : public TimedLink {
  public:
    DeviceStageLink(comm::Comm& comm, const std::vector<int>& ranks, int first)
        : between_(comm.split(ranks, first + 5)) {
        const int me = between_->rank(), last = between_->size() - 1;
        // Neighbouring pairs have different channels: a stage is in two of them. All stages create
        // theirs in order from the first on, so that there is no deadlock.
        const auto lane = [&](int pair, bool forth) {
            const std::array both = {ranks[static_cast<std::size_t>(pair)],
                                     ranks[static_cast<std::size_t>(pair) + 1]};
            const bool sends = (pair == me) == forth;
            lanes_.push_back(
                std::make_unique<Lane>(comm.split(both, first + pair % 2 * 2 + (forth ? 0 : 1)),
                                       pair == me ? me + 1 : me - 1, sends));
        };
        for (int pair = std::max(me - 1, 0); pair <= std::min(me, last - 1); ++pair) {
            lane(pair, true);
            lane(pair, false);
        }
        if (me == 0 || me == last) {
            const std::array both = {ranks.front(), ranks.back()};
            ends_ = std::make_unique<Lane>(comm.split(both, first + 4), me == 0 ? last : 0, true);
        }
        try {
            for (const auto& each : lanes_) {
                each->thread = start_thread([this, lane = each.get()] { work(*lane); },
                                            "to pass activations on");
            }
        } catch (...) {  // no destructor will run
            end_threads();
            throw;
        }
    }
    ~DeviceStageLink() override {
        end_threads();
        try {
            for (const auto& lane : lanes_) lane->stream.synchronize();
        } catch (const Error&) {
            // The operation that failed has thrown this error, or is throwing it.
        }
    }
    DeviceStageLink(const DeviceStageLink&) = delete;
    DeviceStageLink& operator=(const DeviceStageLink&) = delete;

    void attach(const cuda::Stream* training) override { training_ = training; }
    Ticket send(int stage, Tensor x) override { return add(stage, true, x); }
    Ticket receive(int stage, Tensor x) override { return add(stage, false, x); }

    void wait(Ticket ticket) override {
        if (ticket == kNone) return;
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return begun_.contains(ticket) || failure_; });
        if (failure_) std::rethrow_exception(failure_);
        const cuda::Event done = std::move(begun_.extract(ticket).mapped());
        Stall& stall = stalls_.emplace_back();
        training_->record(stall.begin);
        training_->wait(done);
        training_->record(stall.end);
    }

    void begin() override { stalls_.clear(); }
    void meet() override {
        training_->synchronize();
        {
            const std::lock_guard lock(mutex_);
            if (failure_) std::rethrow_exception(failure_);
        }
        for (const Stall& stall : stalls_) waited_ += stall.end.seconds_since(stall.begin);
        stalls_.clear();
        const Moment done = Moment::now();
        between_->barrier();
        waited_ += Moment::now().seconds_since(done);
    }
    double waited_seconds() const override { return waited_; }

    std::vector<double> gather(std::span<const double> mine) override {
        std::vector<double> all(mine.size() * static_cast<std::size_t>(between_->size()));
        between_->all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
        return all;
    }
    void swap(int stage, Tensor mine, Tensor theirs) override {
        MR_CHECK(ends_ && stage == ends_->stage,
                 "the ends of a pipeline give each other something");
        const cuda::Event ready, done;
        training_->record(ready);
        ends_->stream.wait(ready);
        const comm::DevicePiece out{ends_->peer(), mine.data, mine.bytes()};
        const comm::DevicePiece in{ends_->peer(), theirs.data, theirs.bytes()};
        ends_->link->exchange(ends_->stream, {&out, 1}, {&in, 1});
        ends_->stream.record(done);
        ends_->link->wait(done);
    }
    void send_bytes(int stage, std::span<const std::byte> data) override {
        between_->send(stage, data);
    }
    void receive_bytes(int stage, std::span<std::byte> data) override {
        between_->receive(stage, data);
    }

  private:
    struct Order {
        Ticket ticket = kNone;
        Tensor x{};
        cuda::Event ready{};
    };
    struct Lane {
        Lane(std::unique_ptr<comm::Comm> pair, int to, bool out)
            : comm(std::move(pair)), link(comm::device_link(*comm)), stage(to), sends(out) {}
        int peer() const { return 1 - comm->rank(); }

        std::unique_ptr<comm::Comm> comm;
        std::unique_ptr<comm::DeviceLink> link;
        int stage;  // at the other end
        bool sends;
        cuda::Stream stream{cuda::Stream::Priority::high};
        std::deque<Order> orders{};
        std::thread thread{};
    };
    struct Stall {
        cuda::Event begin{true}, end{true};
    };

    void end_threads() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
            for (const auto& lane : lanes_) lane->comm->cancel();
        }
        changed_.notify_all();
        for (const auto& lane : lanes_) {
            if (lane->thread.joinable()) lane->thread.join();
        }
    }

    Ticket add(int stage, bool sends, Tensor x) {
        const auto lane = std::ranges::find_if(
            lanes_, [&](const auto& l) { return l->stage == stage && l->sends == sends; });
        MR_CHECK(lane != lanes_.end() && training_, "stages talk with their neighbours");
        Order order{.x = x};
        training_->record(order.ready);
        Ticket ticket = kNone;
        {
            const std::lock_guard lock(mutex_);
            ticket = order.ticket = ++last_;
            (*lane)->orders.push_back(std::move(order));
        }
        changed_.notify_all();
        return ticket;
    }

    void work(Lane& lane) {
        for (;;) {
            Order order;
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] { return stop_ || (!lane.orders.empty() && !failure_); });
                if (stop_) return;
                order = std::move(lane.orders.front());
                lane.orders.pop_front();
            }
            std::exception_ptr failure;
            try {
                lane.stream.wait(order.ready);
                const comm::DevicePiece piece{lane.peer(), order.x.data, order.x.bytes()};
                const std::span one(&piece, 1);
                const std::span<const comm::DevicePiece> none;
                lane.link->exchange(lane.stream, lane.sends ? one : none, lane.sends ? none : one);
                cuda::Event done, looked_after;
                lane.stream.record(done);
                lane.stream.record(looked_after);
                {
                    const std::lock_guard lock(mutex_);
                    begun_.emplace(order.ticket, std::move(done));
                }
                changed_.notify_all();
                lane.link->wait(looked_after);
            } catch (...) {
                failure = std::current_exception();
            }
            if (!failure) continue;
            {
                const std::lock_guard lock(mutex_);
                if (!failure_) failure_ = failure;
            }
            changed_.notify_all();
        }
    }

    std::unique_ptr<comm::Comm> between_;
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::unique_ptr<Lane> ends_;  // between the first and the last stage
    const cuda::Stream* training_ = nullptr;

    std::mutex mutex_;
    std::condition_variable changed_;
    Ticket last_ = kNone;
    std::map<Ticket, cuda::Event> begun_;  // not yet waited for; the event of completion
    std::exception_ptr failure_;
    bool stop_ = false;
    std::deque<Stall> stalls_;  // since the last meet()
    double waited_ = 0;
};

}  // namespace

std::unique_ptr<TimedLink> make_device_stage_link(comm::Comm& comm, const std::vector<int>& ranks,
                                                  int first) {
    return std::make_unique<DeviceStageLink>(comm, ranks, first);
}

}  // namespace mr::train
