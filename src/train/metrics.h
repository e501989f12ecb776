// The log of a training run, metrics.jsonl: one JSON object per line for every step,
//   {"step": 100, "loss": 2.31, "val_loss": 2.4, "bits_per_byte": 1.1, "lr": 0.001,
//    "grad_norm": 0.8, "tokens_per_second": 51234.5, "data_wait_seconds": 0, "skipped": false,
//    "seconds": 0.64}
// "val_loss" and "bits_per_byte" are there only if validation ran, "masked" only with the diffusion
// objective; a number that is not finite is null. Numbers are written so that they read back as the
// same doubles: two runs are equal if these lines are equal.
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
    double loss = kNone;             // nats per token, mean over the batch, before the update
    std::optional<double> val_loss;  // nats per token over the validation split, after the update
    std::optional<double> bits_per_byte;  // ... over the bytes of the same tokens' text
    std::optional<std::int64_t> masked;   // diffusion: number of masked tokens
    double lr = 0;
    double grad_norm = kNone;  // of all gradients, before clipping
    double tokens_per_second = 0;
    double data_wait_seconds = 0;  // part of `seconds` spent waiting for its batch
    bool skipped = false;          // loss or gradient not finite: nothing was updated
    double seconds = 0;            // of the step only: no validation, no saving
};

// One line with its newline.
std::string metrics_line(const StepMetrics& metrics);

// Appends lines to a metrics.jsonl; each is one write(), so that a crash tears at most the last
// one.
class MetricsWriter {
  public:
    // Continues after step `after`: lines of later steps, a last one torn by a crash and lines
    // that are not metrics (damaged()) are removed. 0: a new file, or an emptied one. Error
    // (input) if there is a link, a folder or a pipe, or a text without any line of a run: it
    // stays as it is.
    MetricsWriter(const std::string& path, std::int64_t after);
    // A new file. Error (input) if anything is there, which stays as it is.
    explicit MetricsWriter(const std::string& path);
    ~MetricsWriter();
    MetricsWriter(const MetricsWriter&) = delete;
    MetricsWriter& operator=(const MetricsWriter&) = delete;

    // Error (input) if the disk is full: the file then still ends with a whole line, and the next
    // call also writes these lines.
    void append(std::span<const StepMetrics> metrics);
    void append(const StepMetrics& metrics) { append(std::span(&metrics, 1)); }
    // Syncs everything to disk. Error (input) if that fails.
    void sync();
    // Whether the file was removed or replaced by another: appended lines would be lost.
    bool lost() const;
    // The numbers, from 1, of lines in the file that could not be kept.
    const std::vector<std::int64_t>& damaged() const { return damaged_; }
    // Number of bytes cut off after the last newline, if they contain zeros or the lines before
    // them do not reach `after`: a process that merely died does not leave that. 0: none.
    std::size_t torn_bytes() const { return torn_bytes_; }
    // The last step in the lines that were kept.
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

// All steps of a file, which is not trusted: Error (input) naming file, line and field for a line
// that is not an object, lacks a field, has a wrong type, or has steps that do not rise. A last
// line without its newline is still being written: it is skipped.
std::vector<StepMetrics> read_metrics(const std::string& path);

}  // namespace mr::train
