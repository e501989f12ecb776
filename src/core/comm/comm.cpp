#include "core/comm/comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/error.h"

namespace mr::comm {

Shards::Shards(std::int64_t count, std::int64_t block, int ranks) {
    MR_CHECK(count >= 0 && block > 0 && ranks > 0, "a buffer is cut for some ranks");
    const std::int64_t blocks = (count + block - 1) / block;
    for (std::int64_t r = 0; r <= ranks; ++r) {
        cuts_.push_back(std::min(blocks * r / ranks * block, count));
    }
}

Shards Shards::first(std::int64_t count) const {
    Shards out = *this;
    for (std::int64_t& cut : out.cuts_) cut = std::min(cut, count);
    return out;
}

Shards Shards::behind(std::int64_t count) const {
    Shards out = *this;
    for (std::int64_t& cut : out.cuts_) cut = std::max(cut, count) - count;
    return out;
}

std::int64_t Shards::largest() const {
    std::int64_t most = 0;
    for (int r = 0; r < ranks(); ++r) most = std::max(most, size(r));
    return most;
}

void tree_sum(std::span<float* const> parts, std::int64_t count) {
    for (std::size_t step = 1; step < parts.size(); step *= 2) {
        for (std::size_t i = 0; i + step < parts.size(); i += 2 * step) {
            float* const to = parts[i];
            const float* const from = parts[i + step];
            for (std::int64_t j = 0; j < count; ++j) to[j] += from[j];
        }
    }
}

double tree_sum(std::vector<double> parts) {
    MR_CHECK(!parts.empty(), "there is something to add up");
    for (std::size_t step = 1; step < parts.size(); step *= 2) {
        for (std::size_t i = 0; i + step < parts.size(); i += 2 * step) parts[i] += parts[i + step];
    }
    return parts[0];
}

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 28;

template <typename Begin>
void in_pieces(std::size_t bytes, Begin&& begin) {
    for (std::size_t at = 0; at < bytes; at += kPiece) begin(at, std::min(kPiece, bytes - at));
}

}  // namespace

Transfers::~Transfers() {
    for (const Pending& t : pending_) comm_->messages_->forget(t.transfer);
}

void Transfers::send(int to, std::span<const std::byte> data) {
    comm_->sent_ += data.size();
    in_pieces(data.size(), [&](std::size_t at, std::size_t bytes) {
        pending_.push_back({comm_->messages_->send(to, data.subspan(at, bytes)), to});
    });
}

void Transfers::receive(int from, std::span<std::byte> data) {
    in_pieces(data.size(), [&](std::size_t at, std::size_t bytes) {
        pending_.push_back({comm_->messages_->receive(from, data.subspan(at, bytes)), from});
    });
}

bool Transfers::moved() {
    const std::size_t before = pending_.size();
    std::erase_if(pending_, [&](const Pending& t) { return comm_->messages_->done(t.transfer); });
    if (before > 0 && comm_->messages_->out_of_step()) {
        throw LostRank({.problem = "a rank sent an unexpected message",
                        .remedy = "report this, with the commands of all ranks"});
    }
    return pending_.size() < before;
}

void Transfers::finish() {
    using Clock = std::chrono::steady_clock;
    Clock::time_point last = Clock::now();
    for (int idle = 0; !pending_.empty();) {
        if (moved()) {
            last = Clock::now();
            idle = 0;
            continue;
        }
        if (comm_->cancelled_) throw LostRank({.problem = "this rank is shutting down"});
        if (comm_->timeout_.count() > 0 && Clock::now() - last > comm_->timeout_) {
            std::vector<int> silent;
            for (const Pending& t : pending_) silent.push_back(t.peer);
            throw comm_->lost(std::move(silent));
        }
        rest(++idle);
    }
}

void Transfers::rest(int idle) {
    if (idle < 200) return;
    if (idle < 2000) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void Comm::call_the_roll(int channel) {
    if (alone()) return;
    std::vector<int> all(static_cast<std::size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    // On a busy machine a rank that is alive may take seconds to answer, and --comm-timeout says
    // how busy it may be.
    const Seconds answer = std::clamp(timeout_ / 2, Seconds(2), Seconds(30));
    own_roll_ = std::make_unique<RollCall>(messages_->channel(all, channel), answer);
    roll_ = own_roll_.get();
}

LostRank Comm::lost(std::vector<int> silent) {
    cancel();
    for (int& rank : silent) rank = name_of(rank);
    if (const std::vector<int> gone = roll_ ? roll_->silent() : std::vector<int>(); !gone.empty()) {
        silent = gone;
    }
    std::ranges::sort(silent);
    silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
    const bool one = silent.size() == 1;
    return LostRank(
        {.problem = fmt::format("rank{} {} {} not answered for {:g} s", one ? "" : "s",
                                fmt::join(silent, ", "), one ? "has" : "have", timeout_.count()),
         .remedy = "check its output, or raise --comm-timeout"});
}

Comm::Comm() = default;
Comm::Comm(std::unique_ptr<Messages> messages, Seconds timeout)
    : messages_(std::move(messages)), timeout_(timeout) {
    rank_ = messages_->rank();
    size_ = messages_->size();
}
Comm::~Comm() = default;

std::unique_ptr<Comm> Comm::split(std::span<const int> ranks, int channel) {
    MR_CHECK(std::ranges::count(ranks, rank_) == 1, "this rank is one of them, once");
    if (ranks.size() == 1) return std::make_unique<Comm>();
    auto out = std::make_unique<Comm>(messages_->channel(ranks, channel), timeout_);
    for (const int rank : ranks) out->names_.push_back(name_of(rank));
    out->roll_ = roll_;
    return out;
}

void Comm::abort(int exit_code) {
    if (messages_) messages_->abort(exit_code);
    std::_Exit(exit_code);
}

// After k rounds a rank has heard, directly or not, from the 2^k - 1 ranks before it.
void Comm::barrier() {
    for (int step = 1; step < size_; step *= 2) {
        const std::byte out{};
        std::byte in{};
        Transfers exchange(*this);
        exchange.send(behind(step), {&out, 1});
        exchange.receive(before(step), {&in, 1});
        exchange.finish();
    }
}

void Comm::send(int to, std::span<const std::byte> data) {
    Transfers exchange(*this);
    exchange.send(to, data);
    exchange.finish();
}

void Comm::receive(int from, std::span<std::byte> data) {
    Transfers exchange(*this);
    exchange.receive(from, data);
    exchange.finish();
}

// A binomial tree: in round k the 2^k ranks that have the data send it on.
void Comm::broadcast(std::span<std::byte> data, int from) {
    const int me = (rank_ - from + size_) % size_;  // ranks counted from `from`
    for (int step = 1; step < size_; step *= 2) {
        if (me < step && me + step < size_) {
            send(behind(step), data);
        } else if (me >= step && me < 2 * step) {
            receive(before(step), data);
        }
    }
}

void Comm::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    MR_CHECK(all.size() == mine.size() * static_cast<std::size_t>(size_),
             "there is room for a piece of every rank");
    if (mine.empty()) return;
    std::memmove(all.data() + static_cast<std::size_t>(rank_) * mine.size(), mine.data(),
                 mine.size());
    gather_shares(all, Shards(std::ssize(all), std::ssize(mine), size_), 1);
}

void Comm::gather_shares(std::span<std::byte> data, const Shards& shards, std::size_t element) {
    MR_CHECK(shards.ranks() == size_ &&
                 data.size() == static_cast<std::size_t>(shards.count()) * element,
             "the buffer is cut for these ranks");
    const auto share = [&](int rank) {
        return data.subspan(static_cast<std::size_t>(shards.begin(rank)) * element,
                            static_cast<std::size_t>(shards.size(rank)) * element);
    };
    Transfers exchange(*this);
    for (int i = 1; i < size_; ++i) {
        exchange.receive(before(i), share(before(i)));
        exchange.send(behind(i), share(rank_));
    }
    exchange.finish();
}

void Comm::reduce_scatter(std::span<float> data, const Shards& shards) {
    MR_CHECK(shards.ranks() == size_ && std::ssize(data) == shards.count(),
             "the buffer is cut for these ranks");
    if (size_ == 1) return;
    const std::int64_t mine = shards.size(rank_);
    if (const auto room = static_cast<std::size_t>(mine * (size_ - 1)); parts_.size() < room) {
        parts_.clear();
        parts_.reserve(room);  // exactly the planned size
        parts_.resize(room);
    }
    std::vector<float*> parts(static_cast<std::size_t>(size_));
    float* room = parts_.data();
    for (int r = 0; r < size_; ++r) {
        parts[static_cast<std::size_t>(r)] = r == rank_ ? data.data() + shards.begin(r) : room;
        if (r != rank_) room += mine;
    }
    Transfers exchange(*this);
    for (int i = 1; i < size_; ++i) {
        const int from = before(i), to = behind(i);
        exchange.receive(from,
                         std::as_writable_bytes(std::span(parts[static_cast<std::size_t>(from)],
                                                          static_cast<std::size_t>(mine))));
        exchange.send(to, std::as_bytes(data.subspan(static_cast<std::size_t>(shards.begin(to)),
                                                     static_cast<std::size_t>(shards.size(to)))));
    }
    exchange.finish();
    tree_sum(parts, mine);
    if (rank_ != 0 && mine > 0) {
        std::copy_n(parts[0], mine, data.data() + shards.begin(rank_));
    }
}

void Comm::all_reduce(std::span<float> data) {
    const Shards shards(std::ssize(data), 1, size_);
    reduce_scatter(data, shards);
    all_gather(data, shards);
}

std::vector<double> Comm::gather(double mine) {
    std::vector<double> all(static_cast<std::size_t>(size_));
    all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    return all;
}
double Comm::sum(double mine) { return tree_sum(gather(mine)); }
double Comm::most(double mine) { return std::ranges::max(gather(mine)); }

int Comm::differing(std::span<const std::byte> mine) {
    // Sizes first: a rank whose size differs must not be asked for as many bytes.
    const std::vector<double> sizes = gather(static_cast<double>(mine.size()));
    const auto other =
        std::ranges::find_if(sizes, [&](double size) { return size != sizes.front(); });
    if (other != sizes.end()) return static_cast<int>(other - sizes.begin());
    std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(size_));
    all_gather(mine, all);
    for (int r = 1; r < size_; ++r) {
        const auto at = all.begin() + static_cast<std::ptrdiff_t>(mine.size()) * r;
        if (!std::equal(at, at + std::ssize(mine), all.begin())) return r;
    }
    return -1;
}

}  // namespace mr::comm
