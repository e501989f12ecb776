// Commands that another program calls in its own process (python/): options are read as those of
// the command line, errors are thrown with the line that `millrace` prints, and the terminal sees
// nothing.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "train/trainer.h"

namespace mr::cli {

struct Caller {
    std::string line{};             // the call in words, for the report of a training run
    Progress progress{};            // of loading, packing and writing; what it throws ends that
    train::TrainEvents training{};  // begun, step, sample, saved, note and stop alone
    std::string result{};           // the object that --json prints
};

// `train ...` or `data ...`: runs it and leaves its result in `caller`.
void call(const std::vector<std::string>& words, Caller& caller);
// The options of such a command, as {"train"} or {"data", "pack"} names it.
std::vector<OptionOutline> options_of(const std::vector<std::string>& command);

// Of the commands' files. `caller`: null on the command line.
void add_train(const Command& app, Action& action, Caller* caller);
void add_data(const Command& app, Action& action, Caller* caller);

}  // namespace mr::cli
