#include "lab/overlap/ghost_exchange.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "lab/overlap/kernels.h"

namespace mr::overlap {

Occupier::Occupier(const cuda::Stream& training, int multiprocessors)
    : training_(training),
      multiprocessors_(multiprocessors),
      memory_("the occupier's words", 2 * cuda::DeviceArena::padded(sizeof(*held_))) {
    stop_ = memory_.array<std::uint32_t>(1);
    held_ = memory_.array<unsigned long long>(1);
    stream_.fill(memory_.data(), 0, memory_.size());
    stream_.synchronize();
}

Occupier::~Occupier() {
    try {
        if (number_ > 0) write_value(training_, stop_, number_);
        training_.synchronize();
        stream_.synchronize();
    } catch (const Error&) {
        // The operation that failed has thrown this error, or is throwing it.
    }
}

void Occupier::begin() {
    training_.record(ready_);
    stream_.wait(ready_);
    launch_occupy(stream_, multiprocessors_, stop_, ++number_, held_);
}

void Occupier::end() { write_value(training_, stop_, number_); }

double Occupier::held_seconds() const {
    unsigned long long held = 0;
    stream_.to_host(&held, held_, sizeof held, nullptr);
    stream_.synchronize();
    return static_cast<double>(held) * 1e-9 / std::max(multiprocessors_, 1);
}

std::vector<Gradient> GhostExchange::noted() {
    noting_ = false;
    return std::exchange(noted_, {});
}

model::GradExchange::Ticket GhostExchange::add_up(float* elements, const comm::Shards& shards,
                                                  bool whole) {
    MR_CHECK(whole, "ghosts exchange whole gradients");
    if (noting_) noted_.push_back({elements, shards, 0});
    if (occupier_ && next_ == 0) occupier_->begin();
    ++next_;
    const auto ticket = static_cast<Ticket>(next_);
    if (!link_) return ticket;
    MR_CHECK(bucket_ < link_->buckets().size(), "a step has the ranges that were noted");
    if (next_ == link_->buckets()[bucket_].end) link_->exchange(bucket_++);
    return ticket;
}

void GhostExchange::finish() {
    if (std::exchange(next_, 0) == 0) return;
    if (link_) {
        MR_CHECK(bucket_ == link_->buckets().size(), "a step has the ranges that were noted");
        link_->join();
    }
    bucket_ = 0;
    if (occupier_) occupier_->end();
}

std::vector<double> GhostExchange::gather(std::span<const double> mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(ranks_));
    std::ranges::copy(mine, all.begin() + std::ssize(mine) * rank_);
    return all;
}

model::GradExchange::Ticket GhostExchange::collect(void*, const comm::Shards&, std::size_t) {
    MR_CHECK(false, "ghosts share no state");
    return kNothing;
}
void GhostExchange::wait(Ticket) { MR_CHECK(false, "ghosts share no state"); }
void GhostExchange::send(int, std::span<const std::byte>) {
    MR_CHECK(false, "ghosts share no state");
}
void GhostExchange::receive(int, std::span<std::byte>) { MR_CHECK(false, "ghosts share no state"); }

}  // namespace mr::overlap
