#include "train/parallel/exchange.h"

#include <algorithm>
#include <utility>

#include "core/ledger.h"

namespace mr::train {
namespace {

// Shorter pieces travel together: a message costs as much as some of its bytes.
constexpr std::size_t kPacked = std::size_t{1} << 18;  // bytes

}  // namespace

Exchange::Exchange(comm::Comm& comm, std::int64_t bucket)
    : comm_(comm), bucket_bytes_(bucket), thread_([this] { work(); }) {}

Exchange::~Exchange() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        if (pending_ > 0) comm_.cancel();
    }
    changed_.notify_all();
    thread_.join();
}

void Exchange::add_up(float* elements, const comm::Shards& shards, bool whole) {
    const std::int64_t count = shards.count();
    open_.push_back({{elements, static_cast<std::size_t>(count)}, shards, whole});
    open_bytes_ += count * static_cast<std::int64_t>(sizeof(float));
    if (open_bytes_ >= bucket_bytes_) send_bucket();
}

void Exchange::send_bucket() {
    if (open_.empty()) return;
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::exchange(open_, {}));
        ++pending_;
    }
    open_bytes_ = 0;
    changed_.notify_all();
}

void Exchange::finish() {
    send_bucket();
    const Moment start = Moment::now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pending_ == 0 || failure_; });
    waited_ += Moment::now().seconds_since(start);
    if (failure_) std::rethrow_exception(failure_);
}

std::vector<double> Exchange::gather(std::span<const double> mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
    return all;
}

void Exchange::collect(float* elements, const comm::Shards& shards) {
    comm_.all_gather(std::span(elements, static_cast<std::size_t>(shards.count())), shards);
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
            --pending_;
            if (failure) failure_ = failure;
        }
        changed_.notify_all();
    }
}

// The order of a sum is that of the ranks, so it does not matter what travels together.
void Exchange::reduce(const Bucket& bucket) {
    const auto packs = [](const Piece& piece) {
        return piece.whole && piece.elements.size_bytes() < kPacked;
    };
    packed_.clear();
    for (const Piece& piece : bucket) {
        if (!packs(piece)) continue;
        packed_.insert(packed_.end(), piece.elements.begin(), piece.elements.end());
    }
    comm_.all_reduce(packed_);
    const float* from = packed_.data();
    for (const Piece& piece : bucket) {
        if (packs(piece)) {
            std::copy_n(from, piece.elements.size(), piece.elements.begin());
            from += piece.elements.size();
            continue;
        }
        comm_.reduce_scatter(piece.elements, piece.shards);
        if (piece.whole) comm_.all_gather(piece.elements, piece.shards);
    }
}

}  // namespace mr::train
