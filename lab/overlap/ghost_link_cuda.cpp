#include "lab/overlap/ghost_link.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "core/comm/device_link.h"
#include "core/error.h"
#include "lab/overlap/kernels.h"
#include "lab/streams/arrays.h"

namespace mr::overlap {
namespace {

std::size_t padded_floats(std::int64_t count) {
    return cuda::DeviceArena::padded(static_cast<std::size_t>(count) * sizeof(float));
}
std::size_t ghost_bytes(const GhostSizes& sizes) {
    return 2 * padded_floats(sizes.parts) + 2 * padded_floats(sizes.others);
}
std::size_t device_bytes(const GhostSizes& sizes, bool host) {
    return padded_floats(sizes.parts) + padded_floats(sizes.own) + (host ? 0 : ghost_bytes(sizes));
}
constexpr std::size_t kWordBytes = 256;  // spacing of words: each has its own cache line

}  // namespace

MemoryPlan GhostLink::host_plan(std::span<const Gradient> gradients, const LinkOptions& options) {
    MemoryPlan plan;
    if (options.host) {
        plan.add("what ghosts send and receive, pinned",
                 ghost_bytes(ghost_sizes(gradients, options.rank)));
    }
    return plan;
}

GhostLink::GhostLink(const cuda::Stream& training, std::vector<Gradient> gradients,
                     const LinkOptions& options)
    : training_(training),
      gradients_(std::move(gradients)),
      options_(options),
      sizes_(ghost_sizes(gradients_, options.rank)),
      device_("what ghosts send", device_bytes(sizes_, options.host)),
      words_(3 * kWordBytes) {
    const auto floats = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    memory_.arrived = device_.array<float>(floats(sizes_.parts));
    memory_.packed = device_.array<float>(floats(sizes_.own));
    if (options_.host) pinned_ = cuda::PinnedBuffer(std::max<std::size_t>(ghost_bytes(sizes_), 1));
    std::byte* next = pinned_.data();
    const auto take = [&](std::int64_t count) {
        if (!options_.host) return device_.array<float>(floats(count));
        return reinterpret_cast<float*>(std::exchange(next, next + padded_floats(count)));
    };
    memory_.parts = take(sizes_.parts);
    memory_.got_sums = take(sizes_.parts);
    memory_.sums = take(sizes_.others);
    memory_.got_parts = take(sizes_.others);
    buckets_ =
        plan_buckets(gradients_, options_.rank, memory_, options_.bucket_bytes, options_.rate);
    std::memset(words_.data(), 0, words_.size());
    const auto word = [&](std::byte* base, std::size_t i) {
        return reinterpret_cast<std::uint32_t*>(base + i * kWordBytes);
    };
    started_ = word(words_.on_device(), 0);
    released_ = word(words_.on_device(), 1);
    go_ = word(words_.on_device(), 2);
    pacer_.emplace(word(words_.data(), 0), word(words_.data(), 1));
}

GhostLink::~GhostLink() {
    pacer_.reset();  // opens all gates, so that streams end
    try {
        training_.synchronize();
        out_.synchronize();
        in_.synchronize();
    } catch (const Error&) {
        // The operation that failed has thrown this error, or is throwing it.
    }
}

void GhostLink::write(float* to, std::span<const float> from) const {
    if (options_.host) {
        std::ranges::copy(from, to);
        return;
    }
    in_.to_device(to, from.data(), from.size_bytes(), nullptr);
    in_.synchronize();
}

void GhostLink::read(std::vector<float>& to, const float* from) const {
    if (options_.host) {
        std::copy_n(from, to.size(), to.data());
        return;
    }
    in_.to_host(to.data(), from, to.size() * sizeof(float), nullptr);
    in_.synchronize();
}

void GhostLink::record(std::span<const float> sums, ThreadPool& pool) {
    write(memory_.parts, recorded_parts(gradients_, options_.rank, pool));
    write(memory_.sums, shares_of_others(gradients_, options_.rank, sums));
}

void GhostLink::poison() {
    constexpr int kNan = 0xff;
    const auto bytes = [](std::int64_t count) {
        return static_cast<std::size_t>(count) * sizeof(float);
    };
    in_.fill(memory_.arrived, kNan, bytes(sizes_.parts));
    in_.fill(memory_.packed, kNan, bytes(sizes_.own));
    if (options_.host) {
        std::memset(memory_.got_parts, kNan, bytes(sizes_.others));
        std::memset(memory_.got_sums, kNan, bytes(sizes_.parts));
    } else {
        in_.fill(memory_.got_parts, kNan, bytes(sizes_.others));
        in_.fill(memory_.got_sums, kNan, bytes(sizes_.parts));
    }
    in_.synchronize();
}

void GhostLink::require_left(std::span<const float> own, std::span<const float> sums) const {
    std::vector<float> got(static_cast<std::size_t>(sizes_.others));
    read(got, memory_.got_parts);
    const std::vector<float> shares = shares_of_others(gradients_, options_.rank, own);
    streams::require_same_bits(got.data(), shares.data(), got.size(), "gradients that ghosts got");
    got.resize(static_cast<std::size_t>(sizes_.parts));
    read(got, memory_.got_sums);
    const float* at = got.data();
    for (const Bucket& bucket : buckets_) {
        for (int ghost = 1; ghost < gradients_.front().shards.ranks(); ++ghost) {
            for (std::size_t i = bucket.first; i < bucket.end; ++i) {
                const Gradient& g = gradients_[i];
                const auto count = static_cast<std::size_t>(g.shards.size(options_.rank));
                const float* const wanted = sums.data() + g.begin + g.shards.begin(options_.rank);
                streams::require_same_bits(at, wanted, count, "sums that ghosts got");
                at += count;
            }
        }
    }
}

void GhostLink::copy(const cuda::Stream& stream, const std::vector<Copy>& copies, bool out) {
    if (!options_.host) {
        if (!copy_on_device(stream, copies)) by_engines_ = false;
        return;
    }
    for (const Copy& c : copies) {
        if (out) {
            stream.to_host(c.to, c.from, c.bytes, nullptr);
        } else {
            stream.to_device(c.to, c.from, c.bytes, nullptr);
        }
    }
}

// The stream of copies in tells the pacer when a phase begins, after it has waited for everything
// the phase needs. The first round waits for nothing else: the previous phase ended with a wait for
// its last round.
void GhostLink::run(const Phase& phase) {
    const Pacer::Ticket ticket = pacer_->announce(phase.times);
    write_value(in_, started_, ticket.start);
    for (std::size_t round = 0; round < phase.times.size(); ++round) {
        const std::uint32_t over = ticket.first + static_cast<std::uint32_t>(round);
        if (round > 0) {
            wait_value(out_, released_, over);
            wait_value(in_, released_, over);
        }
        copy(out_, phase.out[round], true);
        copy(in_, phase.in[round], false);
    }
    const std::uint32_t end = ticket.first + static_cast<std::uint32_t>(phase.times.size());
    wait_value(out_, released_, end);
    wait_value(in_, released_, end);
}

void GhostLink::exchange(std::size_t index) {
    const Bucket& bucket = buckets_[index];
    training_.record(ready_);
    out_.wait(ready_);
    in_.wait(ready_);
    run(bucket.scatter);
    out_.record(left_);
    comm::tree_sum(in_, bucket.sums, options_.rank, gradients_.front().shards.ranks());
    in_.record(summed_);
    out_.wait(summed_);
    in_.wait(left_);  // sums of others overwrite the gradients that were sent
    run(bucket.gather);
}

void GhostLink::join() {
    out_.record(out_done_);
    in_.record(in_done_);
    training_.wait(out_done_);
    training_.wait(in_done_);
}

double GhostLink::alone(std::size_t first, std::size_t end) {
    if (first >= end) return 0;
    // Everything is issued before it begins, so that the host's calls are not measured; unless the
    // driver's queues fill up first, and the host would wait for itself.
    constexpr std::chrono::milliseconds kMostHeld{20};
    const std::uint32_t go = ++goes_;
    auto* const host_word = reinterpret_cast<std::uint32_t*>(words_.data() + 2 * kWordBytes);
    const auto release = [&] { std::atomic_ref(*host_word).store(go, std::memory_order_release); };
    training_.synchronize();
    wait_value(training_, go_, go);
    {
        const std::jthread limit([&] {
            std::this_thread::sleep_for(kMostHeld);
            release();
        });
        training_.record(begin_);
        for (std::size_t i = first; i < end; ++i) exchange(i);
        join();
        training_.record(end_);
        release();
    }
    end_.synchronize();
    return end_.seconds_since(begin_);
}

std::uint64_t GhostLink::sent_bytes() const {
    std::uint64_t sum = 0;
    for (const Bucket& bucket : buckets_) sum += bucket.scatter.out_bytes + bucket.gather.out_bytes;
    return sum;
}

double GhostLink::link_seconds() const {
    std::uint64_t sum = 0;
    for (const Bucket& bucket : buckets_) {
        for (const Phase* phase : {&bucket.scatter, &bucket.gather}) {
            for (const std::uint64_t time : phase->times) sum += time;
        }
    }
    return static_cast<double>(sum) * 1e-9;
}

}  // namespace mr::overlap
