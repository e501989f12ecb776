// The progress of a training run on standard error.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "cli/terminal.h"
#include "train/trainer.h"

namespace mr::cli {

// One line that is redrawn on a terminal; in a pipe, a line from time to
// time.
class TrainScreen {
  public:
    TrainScreen() : terminal_(stderr_is_terminal()) {}
    ~TrainScreen() { end_line(); }
    TrainScreen(const TrainScreen&) = delete;
    TrainScreen& operator=(const TrainScreen&) = delete;

    // Peak FLOP/s of the device; 0: unknown.
    void set_peak(double peak) { peak_ = peak; }

    void begun(const train::TrainEvents::Begun& run);
    void step(const train::TrainEvents::Step& step);
    void say(const std::string& line) {
        end_line();
        err(fmt::format("{}\n", line));
    }

  private:
    void end_line() {
        if (open_) err("\r\033[K");
        open_ = false;
    }

    bool terminal_;
    bool open_ = false;
    double peak_ = 0;
    std::chrono::steady_clock::time_point drawn_ = std::chrono::steady_clock::now();
};

}  // namespace mr::cli
