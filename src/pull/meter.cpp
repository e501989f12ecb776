#include "pull/meter.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal.h"
#include "core/printable.h"
#include "observe/units.h"
#include "text/columns.h"

namespace mr::pull {
namespace {

constexpr std::chrono::seconds kWindow{5};

// Both in the unit of the larger one: "1.20 of 4.98 GB".
std::string part_of_bytes(std::uint64_t done, std::uint64_t total) {
    const auto bytes = static_cast<double>(total);
    const double unit = bytes >= 1e9 ? 1e9 : bytes >= 1e6 ? 1e6 : 1e3;
    return fmt::format("{:.{}f} of {}", static_cast<double>(done) / unit, bytes >= 1e9 ? 2 : 1,
                       observe::short_bytes(bytes));
}

}  // namespace

Meter::Meter(std::uint64_t total, bool quiet)
    : total_(total), enabled_(!quiet && cli::stderr_is_terminal()) {
    marks_.emplace_back(Clock::now(), 0);
}

void Meter::show(std::string_view name) { name_ = printable(name); }

void Meter::add(std::uint64_t bytes) {
    fetched_ += bytes;
    done_ += bytes;
    draw();
}

void Meter::found(std::uint64_t bytes) {
    done_ += bytes;
    draw();
}

void Meter::drop(std::uint64_t bytes) { done_ -= std::min(done_, bytes); }

double Meter::rate() const {
    const auto [time, bytes] = marks_.front();
    const double seconds = std::chrono::duration<double>(Clock::now() - time).count();
    return seconds > 0.2 ? static_cast<double>(fetched_ - bytes) / seconds : 0;
}

std::string Meter::line() const {
    const std::uint64_t done = std::min(done_, total_);
    std::string text = fmt::format("{} ({}%)", part_of_bytes(done, total_),
                                   total_ > 0 ? 100 * done / total_ : 100);
    if (const double speed = rate(); speed > 0) {
        text += fmt::format("  {}/s  {} left", observe::short_bytes(speed),
                            observe::long_seconds(static_cast<double>(total_ - done) / speed));
    }
    return text;
}

void Meter::draw() {
    const auto now = Clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    marks_.emplace_back(now, fetched_);
    while (marks_.size() > 2 && now - marks_[1].first > kWindow) marks_.pop_front();
    if (!enabled_) return;
    const std::string numbers = line(), row = fmt::format("{}  {}", name_, numbers);
    const bool fits = text::columns_of(row) <= cli::columns_to_draw();
    cli::redraw(fits ? row : numbers);  // the numbers say more than the name
    drawn_ = true;
}

void Meter::remove() {
    if (drawn_) cli::err("\r\033[K");
    drawn_ = false;
}

}  // namespace mr::pull
