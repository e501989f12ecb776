// A line on the terminal that says what the program is doing, while that takes long.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "core/progress.h"

namespace mr::cli {

// Work that says nothing is named on the terminal when it has taken this long.
inline constexpr std::chrono::milliseconds kPatience{500};
// A prompt that takes longer to read than this: the answer is awaited.
inline constexpr std::chrono::milliseconds kPromptPatience{1000};

// Redrawn as work progresses, and removed at the end. On standard error where it is a terminal; in
// a pipe it draws nothing. With an InterruptGuard, Ctrl-C throws Interrupted from update(). The
// cursor must be at the beginning of an empty row.
class ProgressLine {
  public:
    // `patience`: what ends sooner draws nothing. `bar`: with a bar beside the percentage, where
    // there is room.
    explicit ProgressLine(std::chrono::milliseconds patience = {}, bool bar = true);
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;

    // Names work that may never call update(), or not for long: a thread draws the line after
    // kPatience, or the line's own where that is longer.
    void begin(std::string_view what);
    void update(std::string_view what, std::uint64_t done, std::uint64_t total);
    // As update(), but Ctrl-C is left to the caller.
    void draw(std::string_view what, std::uint64_t done, std::uint64_t total);
    // The work is over. The next begins with a patience of its own.
    void remove();
    // For the layers below. The line must outlive it.
    Progress callback();

  private:
    using Clock = std::chrono::steady_clock;

    void start(std::string_view what);
    void show();
    void wait();

    const bool enabled_, bar_;
    const std::chrono::milliseconds patience_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::thread watcher_;  // from the first begin() on
    bool ended_ = false, working_ = false, drawn_ = false;
    std::string what_;
    double part_ = -1;  // of the work; < 0: not known
    Clock::time_point began_{}, last_{};
};

// What the line says, in at most `columns`: a name, and the part that is done (< 0: not known).
std::string progress_text(std::string_view what, double part, bool bar, std::size_t columns);

}  // namespace mr::cli
