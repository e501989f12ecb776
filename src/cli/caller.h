// Commands called by another program in its own process (python/): options are parsed as on the
// command line, errors are thrown with the line that `millrace` prints, and nothing is written to
// the terminal.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "train/trainer.h"

namespace mr::cli {

struct Caller {
    std::string line{};             // the call in words, for the report of a training run
    Progress progress{};            // for loading, packing and writing; may throw to end that
    train::TrainEvents training{};  // only begun, step, sample, saved, note and stop
    std::string result{};           // the object that --json prints
};

// Runs `train ...` or `data ...` and stores its result in `caller`.
void call(const std::vector<std::string>& words, Caller& caller);
// The options of a command, named as {"train"} or {"data", "pack"}.
std::vector<OptionOutline> options_of(const std::vector<std::string>& command);

// Defined in the commands' files. `caller`: null on the command line.
void add_train(const Command& app, Action& action, Caller* caller);
void add_data(const Command& app, Action& action, Caller* caller);

}  // namespace mr::cli
