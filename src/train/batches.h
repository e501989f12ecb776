// Training batches from packed tokens, and the thread that reads them ahead.
//
// The token ids of a split are cut into windows of `seq` tokens at w * seq; each is read with the
// token after it, so that inputs are ids[0 .. seq) and targets ids[1 .. seq]. If every sequence
// must begin with a given token, it replaces ids[0]. For block diffusion, windows are made of
// whole documents instead (documents.h), with `seq` tokens and none after them. Nothing here
// keeps state: a batch is a pure function of (data, options, step), so resuming needs only the
// step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "train/documents.h"
#include "train/shards.h"

namespace mr::train {

// A permutation of [0, size) without a table: a Feistel network over the next power of four,
// repeated until the result lies inside. `key` chooses the permutation.
class IndexPermutation {
  public:
    IndexPermutation(std::uint64_t size, std::uint64_t key);
    std::uint64_t operator()(std::uint64_t index) const;  // index < size

  private:
    std::uint64_t size_;
    std::uint64_t key_;
    int half_bits_;  // of each half
};

struct BatchOptions {
    std::int64_t batch = 1;
    std::int64_t seq = 0;
    std::uint64_t seed = 0;
    bool shuffle = true;  // false: the windows in order, once (validation)
    // Replaces the first id of every window; none: windows are unchanged.
    std::optional<std::int32_t> first{};
    // > 0: windows of documents in whole blocks, padded with the token `end`; each document begins
    // with `first`, if set (documents.h).
    std::int64_t block = 0;
    std::int32_t end = 0;
    std::int64_t copies = 1;  // consecutive rows with the same window; divides batch
};

class Batches {
  public:
    // `shards` must outlive the object. Throws Error (input) if they hold less than one window.
    Batches(const Shards& shards, BatchOptions options);

    static std::uint64_t window_count(std::uint64_t tokens, std::int64_t seq);
    // Whether there is at least one window; reads the shards if windows are of documents.
    static bool has_windows(const Shards& shards, const BatchOptions& options);

    const BatchOptions& options() const { return options_; }
    std::uint64_t windows() const { return windows_; }
    // Steps that see every window once; the last may have fewer rows if not shuffled.
    std::uint64_t steps_per_epoch() const;
    std::int64_t rows() const { return options_.batch; }
    std::int64_t row_tokens() const { return options_.seq + (documents_ ? 0 : 1); }
    std::size_t batch_ids() const { return static_cast<std::size_t>(rows() * row_tokens()); }

    // The window in row `row` of step `step`. Shuffled: row number n = step * batch + row (both
    // without copies) is entry n % windows of epoch n / windows; every epoch has its own order,
    // without end.
    std::uint64_t window(std::uint64_t step, std::int64_t row) const;
    // ids: [batch, row_tokens()]. Returns the number of rows filled: `batch`, or what is left of
    // the windows in order (0 past the last); the rows after them are zeros. Thread-safe.
    std::int64_t read(std::uint64_t step, std::span<std::int32_t> ids) const;

  private:
    const Shards* shards_;
    BatchOptions options_;
    std::optional<DocumentWindows> documents_;
    std::uint64_t windows_;
};

// Splits windows of seq + 1 tokens, `ids` [batch, seq + 1], into inputs and targets: `slot` is both
// [batch, seq], one behind the other. Rows from `rows` on do not count: their targets are -1.
void split_windows(std::span<const std::int32_t> ids, std::int64_t seq, std::int64_t rows,
                   std::span<std::int32_t> slot);

// Which batches of a step belong to a rank: `here` of `all`, from `first` on, every `apart`th.
struct BatchOrder {
    std::uint64_t here = 1, all = 1, first = 0, apart = 1;
    // The global number of this rank's batch n, counted over all steps.
    std::uint64_t number(std::uint64_t n) const {
        return n / here * all + first + n % here * apart;
    }
};

// Reads the rank's batches first_step, first_step + 1, ... ahead of the current one, on its own
// thread.
class Prefetcher {
  public:
    // `buffers` belong to the caller, each [batch, row_tokens()]: one for the current batch and one
    // for each to read ahead. With only one there is no thread, and next() reads. `batches` and the
    // buffers must outlive the object.
    Prefetcher(const Batches& batches, std::uint64_t first_step,
               std::vector<std::span<std::int32_t>> buffers, BatchOrder order = {});
    ~Prefetcher();
    Prefetcher(const Prefetcher&) = delete;
    Prefetcher& operator=(const Prefetcher&) = delete;

    struct Batch {
        std::uint64_t step = 0;  // BatchOrder::number()
        std::int64_t rows = 0;
        std::span<const std::int32_t> ids;  // [batch, row_tokens()]
        std::size_t buffer = 0;             // index of its buffer
    };
    // The next batch, valid until release(). Throws what reading it threw.
    Batch next();
    // Frees the oldest batch that next() returned: its buffer may be overwritten.
    void release();
    // How long next() has waited for the disk so far.
    double wait_seconds() const { return wait_seconds_; }

  private:
    void work();

    struct Slot {
        std::int64_t rows = 0;
        std::exception_ptr failure;
    };
    const Batches& batches_;
    const std::uint64_t first_;
    const BatchOrder order_;
    std::vector<std::span<std::int32_t>> buffers_;
    std::vector<Slot> slots_;
    // Counts of batches since first_: released_ <= taken_ <= read_ <= released_ + buffers.
    std::uint64_t read_ = 0, taken_ = 0, released_ = 0;
    double wait_seconds_ = 0;
    bool stop_ = false;
    std::mutex mutex_;
    std::condition_variable filled_, freed_;
    std::thread thread_;
};

}  // namespace mr::train
