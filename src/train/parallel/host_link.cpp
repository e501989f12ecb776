#include "train/parallel/host_link.h"

#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/ledger.h"
#include "core/start_thread.h"

namespace mr::train {
namespace {

std::span<std::byte> bytes_of(Tensor x) { return {static_cast<std::byte*>(x.data), x.bytes()}; }

}  // namespace

HostLink::HostLink(std::unique_ptr<comm::Comm> passes, std::unique_ptr<comm::Comm> between)
    : passes_(std::move(passes)),
      between_(std::move(between)),
      thread_(start_thread([this] { work(); }, "to pass activations on")) {}

HostLink::~HostLink() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

HostLink::Ticket HostLink::add(bool sends, int stage, Tensor x) {
    Ticket ticket = kNone;
    {
        const std::lock_guard lock(mutex_);
        ticket = ++last_;
        orders_.push_back({ticket, sends, stage, bytes_of(x)});
        pending_.emplace(ticket, stage);
    }
    changed_.notify_all();
    return ticket;
}

HostLink::Ticket HostLink::send(int stage, Tensor x) { return add(true, stage, x); }
HostLink::Ticket HostLink::receive(int stage, Tensor x) { return add(false, stage, x); }

void HostLink::wait(Ticket ticket) {
    if (ticket == kNone) return;
    const Moment start = Moment::now();
    std::unique_lock lock(mutex_);
    const auto done = [&] { return !pending_.contains(ticket) || failure_; };
    const std::chrono::duration<double> limit = passes_->timeout();
    bool came = true;
    if (limit.count() > 0) {
        came = changed_.wait_for(lock, limit, done);
    } else {
        changed_.wait(lock, done);
    }
    waited_ += Moment::now().seconds_since(start);
    if (failure_) std::rethrow_exception(failure_);
    if (!came) throw passes_->lost({pending_.at(ticket)});
}

void HostLink::meet() {
    const Moment start = Moment::now();
    between_->barrier();
    waited_ += Moment::now().seconds_since(start);
}

std::vector<double> HostLink::gather(std::span<const double> mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(between_->size()));
    between_->all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
    return all;
}

void HostLink::swap(int stage, Tensor mine, Tensor theirs) {
    comm::Transfers both(*between_);
    both.receive(stage, bytes_of(theirs));
    both.send(stage, bytes_of(mine));
    both.finish();
}

void HostLink::work() {
    struct Begun {
        Ticket ticket;
        comm::Transfers transfers;
    };
    std::vector<Begun> begun;
    for (int idle = 0;;) {
        std::deque<Order> orders;
        {
            std::unique_lock lock(mutex_);
            if (begun.empty() || failure_) {
                changed_.wait(lock, [&] { return stop_ || (!orders_.empty() && !failure_); });
            }
            if (stop_) return;
            orders = std::exchange(orders_, {});
        }
        std::vector<Ticket> done;
        std::exception_ptr failure;
        try {
            for (const Order& order : orders) {
                begun.push_back({order.ticket, comm::Transfers(*passes_)});
                Begun& now = begun.back();
                if (order.sends) {
                    now.transfers.send(order.stage, order.data);
                } else {
                    now.transfers.receive(order.stage, order.data);
                }
            }
            std::erase_if(begun, [&](Begun& one) {
                one.transfers.moved();
                if (!one.transfers.empty()) return false;
                done.push_back(one.ticket);
                return true;
            });
        } catch (...) {
            failure = std::current_exception();
        }
        if (done.empty() && !failure) {
            idle = orders.empty() ? idle + 1 : 0;
            comm::Transfers::rest(idle);
            continue;
        }
        idle = 0;
        {
            const std::lock_guard lock(mutex_);
            for (const Ticket ticket : done) pending_.erase(ticket);
            if (failure) failure_ = failure;
        }
        changed_.notify_all();
    }
}

}  // namespace mr::train
