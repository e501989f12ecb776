// The log of a run, metrics.jsonl. A log error never ends a run: the run continues, says so once,
// tries again at every step and says so again at its end.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "core/error.h"
#include "train/run.h"

namespace mr::train {

namespace fs = std::filesystem;

// Like all paths by descriptor, with the folder's name in what say() says.
std::string Run::log_path() const { return in_folder(kMetricsName); }

// Continues after step `after` with the existing file, or with a new one.
bool Run::reopen_log(std::int64_t after) {
    metrics_file_.reset();
    try {
        metrics_file_ = std::make_unique<MetricsWriter>(log_path(), after);
        return true;
    } catch (const Error& error) {
        log_problem_ = error.what();
        say(fmt::format("{}; the run goes on without its log", error.what()));
        return false;
    }
}

void Run::open_log() {
    if (!reopen_log(state_.step)) return;
    const std::string path = log_path();
    try {
        metrics_ = read_metrics(path);
    } catch (const Error& error) {  // another file took its place: record() detects it
        say(error.what());
    }
    if (const auto& damaged = metrics_file_->damaged(); !damaged.empty()) {
        say(fmt::format("{}: {} damaged {} left out (line {}); the others stay", path,
                        damaged.size(), damaged.size() == 1 ? "line was" : "lines were",
                        fmt::join(damaged, ", ")));
    }
    if (const std::size_t bytes = metrics_file_->torn_bytes(); bytes > 0) {
        say(fmt::format(
            "{}: {} bytes at its end are no line (a power cut?) and were cut off; lines up "
            "to step {} stay, and the run goes on from step {}",
            path, bytes, metrics_file_->last(), state_.step));
    }
}

// If the file was removed or moved, a new one gets all lines. A foreign file in its place is left
// alone. False, with log_problem_ set, if the lines were not written.
bool Run::write_log(std::span<const StepMetrics> lines) {
    try {
        if (metrics_file_ && !metrics_file_->lost()) {
            metrics_file_->append(lines);
        } else {
            metrics_file_.reset();
            metrics_file_ = std::make_unique<MetricsWriter>(log_path());
            metrics_file_->append(metrics_);
            const std::int64_t first = metrics_.empty() ? 1 : metrics_.front().step;
            say(fmt::format("{}: was not there any more, and was written anew{}", log_path(),
                            first > 1 ? fmt::format(" from step {} on", first) : ""));
        }
        log_problem_.clear();
        return true;
    } catch (const std::exception& error) {
        log_problem_ = error.what();
        return false;
    }
}

// Writes the line of a step.
void Run::record(const StepMetrics& metrics) {
    metrics_.push_back(metrics);
    if (!folder_) return;
    if (metrics_file_ && metrics_file_->lost()) own_folder();  // with its log, or only the log?
    const bool said = !log_problem_.empty();
    if (write_log({&metrics, 1}) || said) return;
    say(fmt::format("{}; the run goes on, and writes the missing lines when it can", log_problem_));
}

// Called before a checkpoint, so that the log has all steps that a resumed run builds on. A log
// error must not prevent the checkpoint: record() reports it with the next line.
void Run::sync_log() {
    try {
        if (metrics_file_) metrics_file_->sync();
    } catch (const Error& error) {
        if (log_problem_.empty()) say(error.what());
    }
}

// The message may have been hours ago: repeat it.
void Run::end_log() {
    if (!folder_ || state_.step == started_at_ || write_log({})) return;
    say(fmt::format("{}; lines of this run's steps are missing", log_problem_));
}

}  // namespace mr::train
