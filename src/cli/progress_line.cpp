#include "cli/progress_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal.h"
#include "text/columns.h"

namespace mr::cli {

std::string progress_text(std::string_view what, double part, bool bar, std::size_t columns) {
    if (part < 0) return std::string(text::cut_to_columns(fmt::format("{} ...", what), columns));
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(part * kWidth);
    const std::string share = fmt::format(" {:{}.0f}%", 100 * part, bar ? 3 : 0);
    const std::string drawn = fmt::format(" [{:<{}}]", std::string(filled, '#'), kWidth);
    // A narrow terminal has room for the number only, and for some of the name.
    const bool fits = bar && text::columns_of(what) + drawn.size() + share.size() <= columns;
    const std::string_view name =
        text::cut_to_columns(what, columns > share.size() ? columns - share.size() : 0);
    return fmt::format("{}{}{}", name, fits ? drawn : "", share);
}

ProgressLine::ProgressLine(std::chrono::milliseconds patience, bool bar)
    : enabled_(stderr_is_terminal() && !has_message_format()), bar_(bar), patience_(patience) {}

ProgressLine::~ProgressLine() {
    remove();
    if (!watcher_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        ended_ = true;
    }
    changed_.notify_one();
    watcher_.join();
}

// Under the lock.
void ProgressLine::start(std::string_view what) {
    what_ = what;
    if (working_) return;
    working_ = true;
    part_ = -1;
    began_ = Clock::now();
}

// Under the lock.
void ProgressLine::show() {
    const Clock::time_point now = Clock::now();
    if (now - began_ < patience_ || now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    drawn_ = true;
    redraw(progress_text(what_, part_, bar_, columns_to_draw()));
}

// The watcher's thread: draws once for each piece of work; later changes are drawn as they come.
void ProgressLine::wait() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
        if (!working_ || drawn_) {
            changed_.wait(lock);
        } else if (changed_.wait_until(lock, began_ + std::max(patience_, kPatience)) ==
                   std::cv_status::timeout) {
            if (working_ && !drawn_) show();
        }
    }
}

void ProgressLine::begin(std::string_view what) {
    if (!enabled_) return;
    const std::lock_guard lock(mutex_);
    start(what);
    part_ = -1;
    if (drawn_) show();
    if (!watcher_.joinable()) watcher_ = std::thread([this] { wait(); });
    changed_.notify_one();
}

void ProgressLine::draw(std::string_view what, std::uint64_t done, std::uint64_t total) {
    if (!enabled_) return;
    const std::lock_guard lock(mutex_);
    start(what);
    part_ = total ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 0;
    show();
}

void ProgressLine::update(std::string_view what, std::uint64_t done, std::uint64_t total) {
    if (InterruptGuard::pending()) throw Interrupted{};
    draw(what, done, total);
}

void ProgressLine::remove() {
    if (!enabled_) return;
    const std::lock_guard lock(mutex_);
    if (drawn_) err("\r\033[K");
    working_ = drawn_ = false;
}

Progress ProgressLine::callback() {
    return [this](std::string_view what, std::uint64_t done, std::uint64_t total) {
        update(what, done, total);
    };
}

}  // namespace mr::cli
