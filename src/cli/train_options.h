// The options of `millrace train`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/parser.h"
#include "train/options.h"

namespace mr::cli {

// A training run as asked for. Lives as long as the parser.
struct TrainAsked {
    explicit TrainAsked(Command added) : command(added) {}

    Command command;
    SharedOptions shared{};  // --device, --threads, --json
    train::TrainOptions train{};
    std::string resume{};
    double timeout = 600;  // seconds, for a rank that does not answer
    // Every option except those of the machine belongs to one of three groups; add_train_options()
    // says which.
    std::vector<std::string> of_models{};    // of a new model: not with --init or --resume
    std::vector<std::string> of_new_runs{};  // --resume refuses them
    struct Change {                          // --resume accepts it
        std::string name;
        std::function<void(train::TrainOptions& to, const train::TrainOptions& from)> take;
    };
    std::vector<Change> changes{};

    bool resumed() const { return !resume.empty(); }
    const std::string& folder() const { return resumed() ? resume : train.out; }
    // Throws Error (usage) for options that exclude each other.
    void check() const;
};

// Adds the command to the program.
std::shared_ptr<TrainAsked> add_train_options(const Command& app);

}  // namespace mr::cli
