#include "train/parallel/exchange.h"

#include <algorithm>
#include <utility>

#include "core/ledger.h"
#include "core/start_thread.h"

namespace mr::train {
namespace {

// Shorter pieces are sent together: a message has a fixed cost.
constexpr std::size_t kPacked = std::size_t{1} << 18;  // bytes

}  // namespace

Exchange::Exchange(comm::Comm& comm, std::int64_t bucket)
    : comm_(comm),
      bucket_bytes_(bucket),
      thread_(start_thread([this] { work(); }, "to exchange gradients")) {}

Exchange::~Exchange() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        if (done_ < queued_) comm_.cancel();
    }
    changed_.notify_all();
    thread_.join();
}

model::GradExchange::Ticket Exchange::add_up(float* elements, const comm::Shards& shards,
                                             bool whole) {
    const std::span floats(elements, static_cast<std::size_t>(shards.count()));
    return begin({whole ? Kind::sum : Kind::share_of_sum, std::as_writable_bytes(floats), shards,
                  sizeof(float)});
}

model::GradExchange::Ticket Exchange::collect(void* elements, const comm::Shards& shards,
                                              std::size_t size) {
    const std::span bytes(static_cast<std::byte*>(elements),
                          static_cast<std::size_t>(shards.count()) * size);
    const Ticket ticket = begin({Kind::collect, bytes, shards, size});
    send_bucket();  // it will be waited for soon
    return ticket;
}

model::GradExchange::Ticket Exchange::begin(const Piece& piece) {
    open_.push_back(piece);
    open_bytes_ += std::ssize(piece.elements);
    ++begun_;
    if (open_bytes_ >= bucket_bytes_) send_bucket();
    return begun_;
}

void Exchange::send_bucket() {
    if (open_.empty()) return;
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::exchange(open_, {}));
        queued_ = begun_;
    }
    open_bytes_ = 0;
    sent_ = begun_;
    changed_.notify_all();
}

void Exchange::wait(Ticket ticket) {
    if (ticket > sent_) send_bucket();
    const Moment start = Moment::now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= ticket || failure_; });
    waited_ += Moment::now().seconds_since(start);
    if (failure_) std::rethrow_exception(failure_);
}

std::uint64_t Exchange::memory_bytes(std::span<const comm::Shards> pieces, bool whole) const {
    std::int64_t longest = 0, packed = 0;
    const auto most = bucket_bytes_ + static_cast<std::int64_t>(kPacked);
    for (const comm::Shards& cut : pieces) {
        const std::int64_t bytes = cut.count() * static_cast<std::int64_t>(sizeof(float));
        if (whole && bytes < static_cast<std::int64_t>(kPacked)) packed += bytes;
        longest = std::max(longest, cut.size(rank()) * static_cast<std::int64_t>(sizeof(float)));
    }
    packed = std::min(packed, most);
    longest = std::max(longest, packed / ranks() + static_cast<std::int64_t>(sizeof(float)));
    return static_cast<std::uint64_t>(packed + longest * (ranks() - 1));
}

std::vector<double> Exchange::gather(std::span<const double> mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
    return all;
}

void Exchange::work() {
    for (;;) {
        Bucket bucket;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return stop_ || (!queue_.empty() && !failure_); });
            if (stop_) return;
            bucket = std::move(queue_.front());
            queue_.pop_front();
        }
        const Moment start = Moment::now();
        std::exception_ptr failure;
        try {
            reduce(bucket);
        } catch (...) {
            failure = std::current_exception();
        }
        {
            const std::lock_guard lock(mutex_);
            busy_ += Moment::now().seconds_since(start);
            done_ += std::ssize(bucket);
            if (failure) failure_ = failure;
        }
        changed_.notify_all();
    }
}

// Sums are in the order of ranks, so it does not matter which pieces are sent together.
void Exchange::reduce(const Bucket& bucket) {
    const auto packs = [](const Piece& piece) {
        return piece.kind == Kind::sum && piece.elements.size_bytes() < kPacked;
    };
    std::size_t together = 0;
    for (const Piece& piece : bucket) together += packs(piece) ? piece.floats().size() : 0;
    packed_.clear();
    packed_.reserve(together);
    for (const Piece& piece : bucket) {
        if (!packs(piece)) continue;
        packed_.insert(packed_.end(), piece.floats().begin(), piece.floats().end());
    }
    comm_.all_reduce(packed_);
    const float* from = packed_.data();
    for (const Piece& piece : bucket) {
        if (packs(piece)) {
            std::copy_n(from, piece.floats().size(), piece.floats().begin());
            from += piece.floats().size();
            continue;
        }
        if (piece.kind != Kind::collect) comm_.reduce_scatter(piece.floats(), piece.shards);
        if (piece.kind != Kind::share_of_sum) {
            comm_.all_gather(piece.elements, piece.shards, piece.size);
        }
    }
}

}  // namespace mr::train
