// What a training run writes down of every step: metrics.jsonl, one JSON object a line,
//   {"step": 100, "loss": 2.31, "val_loss": 2.4, "bits_per_byte": 1.1, "lr": 0.001,
//    "grad_norm": 0.8, "tokens_per_second": 51234.5, "data_wait_seconds": 0, "skipped": false,
//    "seconds": 0.64}
// "val_loss" and "bits_per_byte" stand only where validation ran, "masked" only with the diffusion
// objective; a number that is not finite is
// null. Numbers are written so that they read back as the same doubles: two runs are equal when
// these lines are.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mr::train {

struct StepMetrics {
    static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

    std::int64_t step = 0;           // counted from 1: the state after this many steps
    double loss = kNone;             // nats a token, mean over the step's batch, before its update
    std::optional<double> val_loss;  // nats a token over the validation split, after the update
    std::optional<double> bits_per_byte;  // ... and the bytes that the same tokens print
    std::optional<std::int64_t> masked;   // diffusion: tokens that were to be filled in
    double lr = 0;
    double grad_norm = kNone;  // of all gradients, before clipping
    double tokens_per_second = 0;
    double data_wait_seconds = 0;  // of `seconds`: the step stood still for its batch
    bool skipped = false;          // loss or gradient not finite: nothing was updated
    double seconds = 0;            // of the step alone: no validation, no saving
};

// One line with its newline.
std::string metrics_line(const StepMetrics& metrics);

// Appends lines to a metrics.jsonl; each is one write(), so that a crash tears at most the last.
class MetricsWriter {
  public:
    // Goes on after step `after`: lines of later steps, a last one torn by a crash and those that
    // are no metrics lines (damaged()) are left out. 0: a new file, or an emptied one. Error
    // (input) where a link, a folder or a pipe is there, or a text without one line of a run: that
    // is left as it is.
    MetricsWriter(const std::string& path, std::int64_t after);
    // A new file. Error (input) where anything is there, which is left as it is.
    explicit MetricsWriter(const std::string& path);
    ~MetricsWriter();
    MetricsWriter(const MetricsWriter&) = delete;
    MetricsWriter& operator=(const MetricsWriter&) = delete;

    // Error (input) where the disk is full: the file then ends with a whole line as before, and the
    // next call writes what this one could not.
    void append(std::span<const StepMetrics> metrics);
    void append(const StepMetrics& metrics) { append(std::span(&metrics, 1)); }
    // Everything on the disk. Error (input) where that fails.
    void sync();
    // The file was removed, or another is there under its name: what is appended is lost.
    bool lost() const;
    // The numbers, from 1, of the lines that were there and could not be kept.
    const std::vector<std::int64_t>& damaged() const { return damaged_; }
    // Bytes behind the last newline that were cut off, where they hold zeros or the lines before
    // them do not come to `after`: no process that merely died leaves that. 0: none.
    std::size_t torn_bytes() const { return torn_bytes_; }
    // The last step of the lines that were there and are kept.
    std::int64_t last() const { return last_; }

  private:
    void cut_back(std::int64_t after);

    std::string path_;
    std::vector<std::int64_t> damaged_;
    std::size_t torn_bytes_ = 0;
    std::int64_t last_ = 0;
    int fd_ = -1;
    std::size_t size_ = 0;  // of the file, in bytes
    std::string waiting_;   // lines that are not written yet
};

// All steps of a file, which nobody vouches for: Error (input) naming file, line and field for what
// is no object, lacks a field, has a wrong type, or has steps that do not rise. A last line
// without its newline is still being written: it is left out.
std::vector<StepMetrics> read_metrics(const std::string& path);

}  // namespace mr::train
