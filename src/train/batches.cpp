#include "train/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "core/start_thread.h"

namespace mr::train {
namespace {

constexpr int kRounds = 6;
constexpr std::uint64_t kEpochStream = 0xBA7C4;  // for the draws that key an epoch's order

}  // namespace

IndexPermutation::IndexPermutation(std::uint64_t size, std::uint64_t key)
    : size_(size),
      key_(key),
      half_bits_((static_cast<int>(std::bit_width(std::max<std::uint64_t>(size, 2) - 1)) + 1) / 2) {
    MR_CHECK(size > 0, "a permutation of something");
}

std::uint64_t IndexPermutation::operator()(std::uint64_t index) const {
    MR_CHECK(index < size_, "an index inside the permutation");
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    // The domain has less than four times `size` numbers, so the walk is short. It ends, since the
    // cycle of `index` comes back to `index`, which is inside.
    do {
        std::uint64_t left = index >> half_bits_, right = index & mask;
        for (std::uint64_t round = 0; round < kRounds; ++round) {
            const std::uint64_t mixed = left ^ (philox(key_, right, round)[0] & mask);
            left = right;
            right = mixed;
        }
        index = left << half_bits_ | right;
    } while (index >= size_);
    return index;
}

std::uint64_t Batches::window_count(std::uint64_t tokens, std::int64_t seq) {
    MR_CHECK(seq > 0, "a window of at least one token");
    return tokens == 0 ? 0 : (tokens - 1) / static_cast<std::uint64_t>(seq);
}

bool Batches::has_windows(const Shards& shards, const BatchOptions& options) {
    if (options.block == 0) return window_count(shards.tokens(), options.seq) > 0;
    const DocumentWindows windows(shards, options.seq, options.block, options.end, options.first);
    return windows.count() > 0;
}

Batches::Batches(const Shards& shards, BatchOptions options)
    : shards_(&shards), options_(options), windows_(window_count(shards.tokens(), options.seq)) {
    MR_CHECK(options.batch > 0, "a batch of at least one row");
    MR_CHECK(options.copies > 0 && options.batch % options.copies == 0,
             "a batch has all copies of a window");
    if (options.block > 0) {
        documents_.emplace(shards, options.seq, options.block, options.end, options.first);
        windows_ = documents_->count();
    }
    if (windows_ > 0) return;
    throw Error::input(
        {.file = shards.shards().empty() ? "" : shards.shards().front().name(),
         .field = "tokens",
         .value = fmt::format("{}", shards.tokens()),
         .problem = fmt::format("are too few for one window: {} tokens{}", options.seq,
                                documents_ ? "" : " and the one after them"),
         .remedy = "give a shorter --seq, or more text"});
}

std::uint64_t Batches::steps_per_epoch() const {
    const auto batch = static_cast<std::uint64_t>(options_.batch / options_.copies);
    return windows_ / batch + (windows_ % batch != 0);
}

std::uint64_t Batches::window(std::uint64_t step, std::int64_t row) const {
    const std::uint64_t number =
        step * static_cast<std::uint64_t>(options_.batch / options_.copies) +
        static_cast<std::uint64_t>(row / options_.copies);
    if (!options_.shuffle) return number;
    const std::uint64_t epoch = number / windows_;
    const auto words = philox(options_.seed, epoch, kEpochStream);
    const std::uint64_t key = std::uint64_t{words[1]} << 32 | words[0];
    return IndexPermutation(windows_, key)(number % windows_);
}

std::int64_t Batches::read(std::uint64_t step, std::span<std::int32_t> ids) const {
    MR_CHECK(ids.size() == batch_ids(), "ids is [batch, row_tokens()]");
    const auto width = static_cast<std::size_t>(row_tokens());
    std::int64_t row = 0;
    for (; row < options_.batch; ++row) {
        const std::uint64_t w = window(step, row);
        if (w >= windows_) break;  // in order, and past the last
        const auto of_row = ids.subspan(static_cast<std::size_t>(row) * width, width);
        if (documents_) {
            documents_->read(w, of_row);
            continue;
        }
        shards_->read(w * static_cast<std::uint64_t>(options_.seq), of_row);
        if (options_.first) of_row.front() = *options_.first;
    }
    const auto rest = ids.subspan(static_cast<std::size_t>(row) * width);
    std::fill(rest.begin(), rest.end(), 0);
    return row;
}

void split_windows(std::span<const std::int32_t> ids, std::int64_t seq, std::int64_t rows,
                   std::span<std::int32_t> slot) {
    const auto width = static_cast<std::size_t>(seq);
    const std::span<std::int32_t> inputs = slot.first(slot.size() / 2);
    const std::span<std::int32_t> targets = slot.subspan(slot.size() / 2);
    const std::size_t batch = inputs.size() / width;
    MR_CHECK(ids.size() == batch * (width + 1) && slot.size() == 2 * batch * width,
             "ids is [batch, seq + 1], and the slot twice [batch, seq]");
    for (std::size_t row = 0; row < batch; ++row) {
        const std::int32_t* window = ids.data() + row * (width + 1);
        std::copy_n(window, width, inputs.data() + row * width);
        if (static_cast<std::int64_t>(row) < rows) {
            std::copy_n(window + 1, width, targets.data() + row * width);
        } else {
            std::fill_n(targets.data() + row * width, width, -1);
        }
    }
}

Prefetcher::Prefetcher(const Batches& batches, std::uint64_t first_step,
                       std::vector<std::span<std::int32_t>> buffers, BatchOrder order)
    : batches_(batches),
      first_(first_step),
      order_(order),
      buffers_(std::move(buffers)),
      slots_(buffers_.size()) {
    MR_CHECK(!buffers_.empty(), "at least one buffer");
    for (const auto& buffer : buffers_) {
        MR_CHECK(buffer.size() == batches.batch_ids(), "each buffer is [batch, row_tokens()]");
    }
    if (buffers_.size() == 1) return;
    thread_ = start_thread([this] { work(); }, "to read the data",
                           "use --prefetch 0, or raise the limit (ulimit -u, ulimit -v)");
}

Prefetcher::~Prefetcher() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    freed_.notify_one();
    thread_.join();
}

void Prefetcher::work() {
    for (std::uint64_t n = 0;; ++n) {
        {
            std::unique_lock lock(mutex_);
            freed_.wait(lock, [&] { return stop_ || n < released_ + buffers_.size(); });
            if (stop_) return;
        }
        // No other thread reads this slot before read_ is advanced.
        Slot& slot = slots_[n % slots_.size()];
        try {
            slot.rows = batches_.read(order_.number(first_ + n), buffers_[n % buffers_.size()]);
        } catch (...) {
            slot.failure = std::current_exception();
        }
        const bool failed = slot.failure != nullptr;
        {
            const std::lock_guard lock(mutex_);
            read_ = n + 1;
        }
        filled_.notify_one();
        if (failed) return;  // next() throws it every time
    }
}

Prefetcher::Batch Prefetcher::next() {
    const auto start = std::chrono::steady_clock::now();
    const std::uint64_t n = taken_;
    Slot& slot = slots_[n % slots_.size()];
    if (thread_.joinable()) {
        std::unique_lock lock(mutex_);
        MR_CHECK(n < released_ + buffers_.size(), "a buffer is free: release() what was taken");
        filled_.wait(lock, [&] { return n < read_; });
    } else {
        MR_CHECK(n == released_, "the buffer is free: release() what was taken");
        slot.rows = batches_.read(order_.number(first_ + n), buffers_[0]);
    }
    wait_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (slot.failure) std::rethrow_exception(slot.failure);
    taken_ = n + 1;
    const std::size_t buffer = n % buffers_.size();
    return {order_.number(first_ + n), slot.rows, buffers_[buffer], buffer};
}

void Prefetcher::release() {
    {
        const std::lock_guard lock(mutex_);
        MR_CHECK(released_ < taken_, "a batch was taken");
        ++released_;
    }
    freed_.notify_one();
}

}  // namespace mr::train
