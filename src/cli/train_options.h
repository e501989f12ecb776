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

// The learning rate of a run from --init. A new model's default would undo what the model has
// learned: 950 stories, 60 steps, storyteller: validation 0.379 after 1e-3, 0.350 after 1e-4.
constexpr double kInitRate = 1e-4;

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
