#include "train/parallel/device_exchange.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/device_link.h"
#include "core/error.h"
#include "core/ledger.h"
#include "core/start_thread.h"
#include "model/train/params.h"

namespace mr::train {
namespace {

std::unique_ptr<comm::Comm> all_ranks(comm::Comm& comm, int channel) {
    std::vector<int> ranks(static_cast<std::size_t>(comm.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return comm.split(ranks, channel);
}

class DeviceExchange final : public TimedExchange {
  public:
    DeviceExchange(comm::Comm& comm, const DeviceExchangeOptions& options)
        : comm_(comm),
          options_(options),
          messages_(all_ranks(comm, options.channel)),
          link_(comm::device_link(*messages_)),
          stream_(cuda::Stream::Priority::high) {
        if (options.fast && !link_->adds_up()) {
            throw Error::usage({.field = "--reduce",
                                .value = "fast",
                                .problem = "is NCCL's own sum, and ranks use " + link_->name(),
                                .remedy = "give every rank a GPU of its own and NCCL, or leave "
                                          "--reduce exact"});
        }
        const std::int64_t most = options.bucket / static_cast<std::int64_t>(sizeof(float));
        limit_ = std::max(most / comm.size(), model::kParamBlock);
        room_count_ = std::max(limit_ * (comm.size() - 1), most / 2);
        thread_ = start_thread([this] { work(); }, "to exchange gradients");
    }
    ~DeviceExchange() override {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
            if (done_ < last_) messages_->cancel();
        }
        changed_.notify_all();
        thread_.join();
        try {
            stream_.synchronize();
        } catch (const Error&) {
            // The operation that failed has thrown this error, or is throwing it.
        }
    }
    DeviceExchange(const DeviceExchange&) = delete;
    DeviceExchange& operator=(const DeviceExchange&) = delete;

    int rank() const override { return comm_.rank(); }
    int ranks() const override { return comm_.size(); }
    // By now the engine has checked its plan, including this buffer, against free memory.
    void attach(const cuda::Stream* training) override {
        training_ = training;
        if (room_) return;
        const auto count = static_cast<std::size_t>(room_count_);
        memory_ = cuda::DeviceArena("what other ranks send", count * sizeof(float));
        room_ = memory_.array<float>(count);
    }

    Ticket add_up(float* elements, const comm::Shards& shards, bool whole) override {
        return begin({elements, shards, whole ? Wanted::all : Wanted::share, sizeof(float)});
    }
    Ticket collect(void* elements, const comm::Shards& shards, std::size_t size) override {
        const Ticket ticket = begin({elements, shards, Wanted::gathered, size});
        send_bucket();  // it will be waited for soon
        return ticket;
    }
    void flush() override { send_bucket(); }
    void finish() override { wait(begun_); }
    void wait(Ticket ticket) override {
        if (ticket > last_) send_bucket();
        const Moment start = Moment::now();
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_ >= ticket || failure_; });
        waited_ += Moment::now().seconds_since(start);
        if (failure_) std::rethrow_exception(failure_);
    }
    std::vector<double> gather(std::span<const double> mine) override {
        std::vector<double> all(mine.size() * static_cast<std::size_t>(comm_.size()));
        comm_.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
        return all;
    }
    void send(int to, std::span<const std::byte> data) override { comm_.send(to, data); }
    void receive(int from, std::span<std::byte> data) override { comm_.receive(from, data); }

    // On the device, independent of the pieces.
    std::uint64_t memory_bytes(std::span<const comm::Shards>, bool) const override {
        return static_cast<std::uint64_t>(room_count_) * sizeof(float);
    }

    double busy_seconds() const override { return busy_; }
    double waited_seconds() const override { return waited_; }
    std::string about() const override { return link_->name(); }

  private:
    enum class Wanted { all, share, gathered };
    struct Piece {
        void* elements;
        comm::Shards shards;
        Wanted wanted;
        std::size_t size;  // of an element

        float* floats() const { return static_cast<float*>(elements); }
    };
    struct Job {
        std::vector<Piece> pieces;
        cuda::Event ready, done;
    };
    // Elements [from, to) of every rank's share of a piece.
    struct Part {
        const Piece* piece;
        std::int64_t from, to;
        std::byte* begin(int rank) const {
            const std::int64_t at = piece->shards.begin(rank) + std::min(from, size(rank));
            return static_cast<std::byte*>(piece->elements) +
                   static_cast<std::size_t>(at) * piece->size;
        }
        std::int64_t count(int rank) const {
            return std::min(to, size(rank)) - std::min(from, size(rank));
        }
        std::int64_t size(int rank) const { return piece->shards.size(rank); }
    };

    Ticket begin(const Piece& piece) {
        open_.push_back(piece);
        open_bytes_ += piece.shards.count() * static_cast<std::int64_t>(piece.size);
        ++begun_;
        if (open_bytes_ >= options_.bucket) send_bucket();
        return begun_;
    }

    void send_bucket() {
        if (open_.empty()) return;
        MR_CHECK(training_ != nullptr, "the exchange has the stream that gradients come from");
        Job job;
        job.pieces = std::exchange(open_, {});
        open_bytes_ = 0;
        training_->record(job.ready);
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(std::move(job));
            last_ = begun_;
        }
        changed_.notify_all();
    }

    void work() {
        for (;;) {
            Job job;
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] { return stop_ || (!queue_.empty() && !failure_); });
                if (stop_) return;
                job = std::move(queue_.front());
                queue_.pop_front();
            }
            std::exception_ptr failure;
            double took = 0;
            try {
                link_->wait(job.ready);  // gradients come later; the clock starts with them
                const Moment start = Moment::now();
                exchange(job);
                stream_.record(job.done);
                link_->wait(job.done);
                took = Moment::now().seconds_since(start);
            } catch (...) {
                failure = std::current_exception();
            }
            {
                const std::lock_guard lock(mutex_);
                busy_ += took;
                done_ += std::ssize(job.pieces);
                if (failure) failure_ = failure;
            }
            changed_.notify_all();
        }
    }

    // All ranks cut alike: by the largest share.
    void exchange(const Job& job) {
        stream_.wait(job.ready);
        std::vector<Part> batch;
        std::int64_t taken = 0;
        const auto flush = [&] {
            exchange(batch);
            batch.clear();
            taken = 0;
        };
        for (const Piece& piece : job.pieces) {
            if (options_.fast && piece.wanted != Wanted::gathered) {
                add_up_fast(piece);
                continue;
            }
            const std::int64_t largest = piece.shards.largest();
            for (std::int64_t from = 0; from < largest;) {
                const std::int64_t to = std::min(largest, from + limit_ - taken);
                batch.push_back({&piece, from, to});
                taken += to - from;
                from = to;
                if (taken == limit_) flush();
            }
        }
        if (!batch.empty()) flush();
    }

    void exchange(std::span<const Part> batch) {
        const int me = rank();
        std::vector<comm::DevicePiece> out, in;
        float* room = room_;
        for (const Part& part : batch) {
            if (part.piece->wanted == Wanted::gathered) continue;
            const std::int64_t mine = part.count(me);
            for (int r = 0; r < ranks(); ++r) {
                if (r == me) continue;
                out.push_back(piece_of(r, part.begin(r), part.count(r), sizeof(float)));
                in.push_back(piece_of(r, room, mine, sizeof(float)));
                room += mine;
            }
        }
        link_->exchange(stream_, out, in);
        room = room_;
        out.clear();
        in.clear();
        std::vector<comm::SumPiece> sums;
        for (const Part& part : batch) {
            const std::int64_t mine = part.count(me);
            if (part.piece->wanted != Wanted::gathered) {
                auto* const own = reinterpret_cast<float*>(part.begin(me));
                sums.push_back({own, room, nullptr, mine});
                room += mine * (ranks() - 1);
            }
            if (part.piece->wanted == Wanted::share) continue;
            for (int r = 0; r < ranks(); ++r) {
                if (r == me) continue;
                const std::size_t size = part.piece->size;
                out.push_back(piece_of(r, part.begin(me), mine, size));
                in.push_back(piece_of(r, part.begin(r), part.count(r), size));
            }
        }
        comm::tree_sum(stream_, sums, me, ranks());
        if (!out.empty()) link_->exchange(stream_, out, in);
    }
    static comm::DevicePiece piece_of(int rank, void* data, std::int64_t count, std::size_t size) {
        return {rank, data, static_cast<std::size_t>(count) * size};
    }

    void add_up_fast(const Piece& piece) {
        const std::int64_t most = 2 * room_count_;  // as bf16
        for (std::int64_t at = 0; at < piece.shards.count(); at += most) {
            const std::int64_t count = std::min(most, piece.shards.count() - at);
            comm::to_bf16(stream_, room_, piece.floats() + at, count);
            link_->add_up(stream_, room_, count);
            comm::to_f32(stream_, piece.floats() + at, room_, count);
        }
    }

    comm::Comm& comm_;
    const DeviceExchangeOptions options_;
    std::unique_ptr<comm::Comm> messages_;  // for the thread
    std::unique_ptr<comm::DeviceLink> link_;
    const cuda::Stream* training_ = nullptr;
    cuda::Stream stream_;
    cuda::DeviceArena memory_;
    float* room_ = nullptr;  // f32 [room_count_]: received from others
    std::int64_t room_count_ = 0;
    std::int64_t limit_ = 0;  // elements of a share sent at once

    std::vector<Piece> open_;  // not yet sent
    std::int64_t open_bytes_ = 0;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> queue_;
    Ticket begun_ = kNothing, last_ = kNothing, done_ = kNothing;  // the last piece of each state
    std::exception_ptr failure_;
    bool stop_ = false;
    double busy_ = 0, waited_ = 0;
    std::thread thread_;
};

}  // namespace

std::unique_ptr<TimedExchange> make_device_exchange(comm::Comm& comm,
                                                    const DeviceExchangeOptions& options) {
    return std::make_unique<DeviceExchange>(comm, options);
}

}  // namespace mr::train
