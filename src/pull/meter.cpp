#include "pull/meter.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal.h"
#include "core/printable.h"
#include "observe/units.h"
#include "text/columns.h"

namespace mr::pull {
namespace {

constexpr std::chrono::seconds kWindow{5}, kPatience{2};

// Both in the unit of the larger one: "1.20 of 4.98 GB".
std::string part_of_bytes(std::uint64_t done, std::uint64_t total) {
    const auto bytes = static_cast<double>(total);
    const double unit = bytes >= 1e9 ? 1e9 : bytes >= 1e6 ? 1e6 : 1e3;
    return fmt::format("{:.{}f} of {}", static_cast<double>(done) / unit, bytes >= 1e9 ? 2 : 1,
                       observe::short_bytes(bytes));
}

}  // namespace

Meter::Meter(bool quiet) : enabled_(!quiet && cli::stderr_is_terminal()) {}

void Meter::show(std::string_view name) { name_ = printable(name); }

void Meter::add(std::uint64_t bytes) {
    const auto now = Clock::now();
    if (flowing_) {
        flow_ += now - moved_;
        flowed_ += bytes;
    }
    flowing_ = true;
    moved_ = now;
    fetched_ += bytes;
    done_ += bytes;
    draw();
}

void Meter::found(std::uint64_t bytes) {
    moved_ = Clock::now();
    done_ += bytes;
    draw();
}

void Meter::drop(std::uint64_t bytes) { done_ -= std::min(done_, bytes); }

double Meter::rate() const {
    const auto [time, bytes] = marks_.front();
    const double seconds = std::chrono::duration<double>(flow_ - time).count();
    return seconds >= 1 ? static_cast<double>(flowed_ - bytes) / seconds : 0;
}

std::string Meter::line() const {
    const std::uint64_t done = std::min(done_, total_);
    std::string text = fmt::format("{} ({}%)", part_of_bytes(done, total_), 100 * done / total_);
    if (const double speed = rate(); speed > 0) {
        text += fmt::format("  {}/s  {} left", observe::short_bytes(speed),
                            observe::long_seconds(static_cast<double>(total_ - done) / speed));
    }
    return text;
}

bool Meter::due() {
    const auto now = Clock::now();
    if (!enabled_ || now - last_ < std::chrono::milliseconds(100)) return false;
    last_ = now;
    return true;
}

void Meter::draw() {
    if (!due()) return;
    marks_.emplace_back(flow_, flowed_);
    while (marks_.size() > 2 && flow_ - marks_[1].first > kWindow) marks_.pop_front();
    if (total_ == 0) return;
    const std::string numbers = line(), row = fmt::format("{}  {}", name_, numbers);
    const bool fits = text::columns_of(row) <= cli::columns_to_draw();
    cli::redraw(fits ? row : numbers);  // the numbers say more than the name
    drawn_ = true;
}

void Meter::idle(std::string_view what) {
    if (Clock::now() - moved_ < kPatience || !due()) return;
    cli::redraw(printable(what));
    drawn_ = true;
}

void Meter::remove() {
    if (drawn_) cli::err("\r\033[K");
    drawn_ = false;
}

void Meter::remark(std::string_view line) {
    remove();
    cli::remark(line);
}

}  // namespace mr::pull
