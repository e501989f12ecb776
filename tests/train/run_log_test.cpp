// Changes to a run's log or report during the run cost no checkpoint, and no foreign file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/mapped_file.h"
#include "disturbed.h"
#include "train/trainer.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMine = "not a run's\n";

class RunLog : public Disturbed {
  protected:
    RunLog() {
        options_.save_every = 2;
        options_.sample_tokens = 2;
        options_.sample_every = 1;
    }
    std::string log() const { return run_file("metrics.jsonl"); }
    std::string mine() const { return options_.out + ".mine"; }
    void write_mine() const { std::ofstream(mine()) << kMine; }
    bool said(const std::string& text) const {
        return std::any_of(notes_.begin(), notes_.end(), [&](const std::string& note) {
            return note.find(text) != std::string::npos;
        });
    }
    std::string all_notes() const {
        std::string all;
        for (const std::string& note : notes_) all += note + "\n";
        return all;
    }
    // Six steps; runs `act` after step `when`.
    TrainResult train_and(std::int64_t when, const std::function<void()>& act) {
        notes_.clear();
        events_.step = [&, when](const TrainEvents::Step& step) {
            if (step.metrics.step == when) act();
        };
        TrainResult result = train(options_, events_);
        events_.step = {};
        EXPECT_EQ(result.step, 6);
        EXPECT_EQ(saved(), (std::vector<std::int64_t>{2, 4, 6}));
        return result;
    }
    void go_on() {
        notes_.clear();
        EXPECT_EQ(resume(
                      options_.out, [](TrainOptions& o) { o.steps = 8; }, events_)
                      .step,
                  8);
    }
};

TEST_F(RunLog, OneThatGoesAwayIsWrittenAnew) {
    struct Case {
        const char* name;
        std::function<void()> act;
    };
    const std::vector<Case> cases = {
        {"removed", [&] { fs::remove(log()); }},
        {"moved", [&] { fs::rename(log(), mine()); }},
    };
    for (const Case& each : cases) {
        for (const std::int64_t when : {3, 6}) {
            SCOPED_TRACE(each.name + std::to_string(when));
            options_.out = folder_ / (each.name + std::to_string(when));
            EXPECT_TRUE(train_and(when, each.act).reported);
            EXPECT_TRUE(said("metrics.jsonl: was not there any more, and was written anew"));
            EXPECT_FALSE(said("missing")) << all_notes();
            EXPECT_EQ(lines(), 6u) << "all of them, in a new file";
            go_on();
            EXPECT_TRUE(notes_.empty()) << all_notes();
            EXPECT_EQ(lines(), 8u);
        }
    }
}

TEST_F(RunLog, WhatStandsInItsPlaceIsLeftAlone) {
    struct Case {
        const char* name;
        std::function<void()> act;      // puts something in the log's place
        std::function<bool()> is_left;  // it is unchanged
        const char* says;               // when the run is resumed
    };
    const std::vector<Case> cases = {
        {"link",
         [&] {
             write_mine();
             fs::remove(log());
             fs::create_symlink(mine(), log());
         },
         [&] { return fs::is_symlink(log()) && read_text_file(mine()) == kMine; },
         "metrics.jsonl: is a link, not a run's log, and is left as it is"},
        {"broken",
         [&] {
             fs::remove(log());
             fs::create_symlink(mine(), log());
         },
         [&] { return fs::is_symlink(log()) && !fs::exists(mine()); },
         "metrics.jsonl: is a link, not a run's log, and is left as it is"},
        {"text",
         [&] {
             write_mine();
             fs::rename(mine(), log());
         },
         [&] { return read_text_file(log()) == kMine; },
         "metrics.jsonl: has no line that a run wrote, and is left as it is"},
        {"folder",
         [&] {
             fs::remove(log());
             fs::create_directory(log());
         },
         [&] { return fs::is_directory(log()); },
         "metrics.jsonl: is not a regular file, and is left as it is"},
        {"pipe",
         [&] {
             fs::remove(log());
             ASSERT_EQ(::mkfifo(log().c_str(), 0600), 0);
         },
         [&] { return fs::is_fifo(log()); },
         "metrics.jsonl: is not a regular file, and is left as it is"},
    };
    for (const Case& each : cases) {
        for (const std::int64_t when : {3, 6}) {
            SCOPED_TRACE(each.name + std::to_string(when));
            options_.out = folder_ / (each.name + std::to_string(when));
            EXPECT_TRUE(train_and(when, each.act).reported);
            EXPECT_EQ(said("is left as it is; move it away so that a log can be written; the run "
                           "goes on"),
                      when < 6)
                << all_notes();
            EXPECT_NE(notes_.back().find("; lines of this run's steps are missing"),
                      std::string::npos)
                << all_notes();
            EXPECT_TRUE(each.is_left());
            go_on();
            EXPECT_TRUE(said(each.says)) << all_notes();
            EXPECT_NE(notes_.back().find("; lines of this run's steps are missing"),
                      std::string::npos)
                << all_notes();
            EXPECT_TRUE(each.is_left());
        }
    }
}

TEST_F(RunLog, WhenTheOtherFileGoesTheLinesAreWritten) {
    notes_.clear();
    events_.step = [&](const TrainEvents::Step& step) {
        if (step.metrics.step == 2) {
            fs::remove(log());
            fs::create_directory(log());
        }
        if (step.metrics.step == 4) fs::remove(log());
    };
    train(options_, events_);
    EXPECT_EQ(lines(), 6u);
    EXPECT_FALSE(said("steps are missing")) << all_notes();
    EXPECT_TRUE(said("was written anew")) << all_notes();
}

TEST_F(RunLog, AFullDiskWhileItIsWrittenAnewIsNoOtherFile) {
    events_.step = [&](const TrainEvents::Step& step) {
        if (step.metrics.step == 3) {
            fs::remove(log());
            limit_files(50);
        }
        if (step.metrics.step == 5) limit_files(RLIM_INFINITY);
    };
    EXPECT_EQ(train(options_, events_).step, 6);
    EXPECT_EQ(lines(), 6u) << all_notes();
}

TEST_F(RunLog, AReportThatCannotBeWrittenCostsNoCheckpoint) {
    for (const std::int64_t when : {3, 6}) {
        options_.out = folder_ / ("run" + std::to_string(when));
        const TrainResult result = train_and(when, [&] {
            fs::remove(run_file("report.html"));
            fs::create_directory(run_file("report.html"));
        });
        EXPECT_FALSE(result.reported);
        EXPECT_TRUE(said("no report after step 6")) << all_notes();
        EXPECT_EQ(lines(), 6u);
    }
}

}  // namespace
}  // namespace mr::train
