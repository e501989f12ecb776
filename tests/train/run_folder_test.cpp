// A run's folder that is moved, removed or taken while the run trains. Run names are reused: what
// has the old name by then belongs to somebody else.
#include "train/run_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "core/mapped_file.h"
#include "disturbed.h"
#include "train/fault.h"
#include "train/trainer.h"

namespace mr::train::run_folder_test {
namespace {

namespace fs = std::filesystem;

// Called at point `at` of saving, counted from 1.
int points = 0, at_point = 0;
std::function<void()> then;
void count_points() {
    if (++points == at_point) then();
}

// Every file below a folder with its text; empty files and folders, too.
std::map<std::string, std::string> content(const std::string& folder) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const std::string path = entry.path().string();
        out[path.substr(folder.size())] =
            entry.is_regular_file() && entry.file_size() > 0 ? read_text_file(path) : "";
    }
    return out;
}

class HeldFolder : public Disturbed {
  protected:
    HeldFolder() {
        options_.save_every = 2;
        options_.keep = 1;
    }
    ~HeldFolder() override { save_point = nullptr; }

    std::string moved() const { return folder_ / "moved"; }
    // A run of the same name whose steps are all that this run saves, and more.
    void make_other() {
        TrainOptions options = options_;
        options.out = folder_ / "other";
        options.save_every = 1;
        options.keep = 0;
        options.seed = 99;
        train(options, {});
        other_ = content(folder_ / "other");
        ASSERT_GE(other_.size(), 30u);
    }
    void put_other() const {
        fs::copy(folder_ / "other", options_.out, fs::copy_options::recursive);
    }
    void train_and(std::int64_t when, const std::function<void()>& act) {
        notes_.clear();
        events_.step = [&, when](const TrainEvents::Step& step) {
            last_ = step.metrics.step;
            if (last_ == when) act();
        };
        result_ = train(options_, events_);
    }
    // Expects that the run stops because of its folder.
    std::string why_lost(std::int64_t when, const std::function<void()>& act) {
        try {
            train_and(when, act);
        } catch (const LostFolder& error) {
            return error.what();
        }
        ADD_FAILURE() << "the run went on to step " << last_;
        return "";
    }
    std::string all_notes() const {
        std::string all;
        for (const std::string& note : notes_) all += note + "\n";
        return all;
    }

    std::map<std::string, std::string> other_;
    TrainResult result_;
    std::int64_t last_ = 0;
};

TEST_F(HeldFolder, MovedAtAnyPointOfSavingItIsWrittenWhereItIs) {
    make_other();
    options_.save_every = 3;
    save_point = count_points;
    points = at_point = 0;
    train(options_, events_);
    const int all = points;
    ASSERT_GT(all, 20);
    const auto whole = content(options_.out);
    fs::remove_all(options_.out);
    for (int point = 1; point <= all; ++point) {
        const bool again = point % 2 == 0;
        SCOPED_TRACE(testing::Message() << "point " << point << " of " << all);
        notes_.clear();
        points = 0;
        at_point = point;
        then = [&] {
            fs::rename(options_.out, moved());
            if (again) put_other();
        };
        const TrainResult result = train(options_, events_);
        EXPECT_EQ(result.folder, moved());
        EXPECT_EQ(result.checkpoint, moved() + "/checkpoints/step-000006");
        EXPECT_NE(all_notes().find("was moved to " + moved()), std::string::npos);
        EXPECT_EQ(all_notes().find("/proc/"), std::string::npos) << all_notes();
        if (again) {
            EXPECT_EQ(content(options_.out), other_) << "another run's folder was changed";
        } else {
            EXPECT_FALSE(fs::exists(options_.out)) << "the old name was made again";
        }
        const auto now = content(moved());
        EXPECT_EQ(now.size(), whole.size());
        const std::string weights = "/checkpoints/step-000006/model.safetensors";
        EXPECT_EQ(now.at(weights), whole.at(weights));
        fs::remove_all(moved());
        fs::remove_all(options_.out);
        if (HasFailure()) return;
    }
}

TEST_F(HeldFolder, MovedItHasItsLogAndItsReport) {
    make_other();
    train_and(3, [&] {
        fs::rename(options_.out, moved());
        put_other();
    });
    EXPECT_EQ(content(options_.out), other_);
    EXPECT_EQ(read_metrics(moved() + "/metrics.jsonl").size(), 6u);
    EXPECT_NE(read_text_file(moved() + "/report.html").find("step"), std::string::npos);
    EXPECT_EQ(Checkpoints(moved()).steps(), std::vector<std::int64_t>{6});
    // It resumes by its new name.
    EXPECT_EQ(resume(
                  moved(), [](TrainOptions& o) { o.steps = 7; }, events_)
                  .step,
              7);
    EXPECT_EQ(content(options_.out), other_);
}

TEST_F(HeldFolder, RemovedItStops) {
    const std::string why = why_lost(3, [&] { fs::remove_all(options_.out); });
    EXPECT_NE(why.find(options_.out + ": was removed while the run writes to it"),
              std::string::npos)
        << why;
    EXPECT_EQ(last_, 3) << "found with the next line of the log";
    EXPECT_FALSE(fs::exists(options_.out)) << "made again";
}

TEST_F(HeldFolder, RemovedAndMadeAgainByAnotherRunItStops) {
    make_other();
    why_lost(3, [&] {
        fs::remove_all(options_.out);
        put_other();
    });
    EXPECT_EQ(content(options_.out), other_);
    // A folder of the same name into which the other run has only put its lock.
    fs::remove_all(options_.out);
    why_lost(1, [&] {
        fs::remove_all(options_.out);
        fs::create_directory(options_.out);
        std::ofstream(run_file("lock")) << "";
    });
    EXPECT_EQ(content(options_.out).size(), 1u);
}

TEST_F(HeldFolder, EmptiedItStops) {
    why_lost(3, [&] {
        for (const auto& entry : fs::directory_iterator(options_.out)) fs::remove_all(entry);
    });
    EXPECT_TRUE(fs::is_empty(options_.out));
}

TEST_F(HeldFolder, WithAnotherLockFileItStops) {
    const std::string why = why_lost(3, [&] {
        std::ofstream(folder_ / "lock") << "";
        fs::rename(folder_ / "lock", run_file("lock"));
    });
    EXPECT_NE(why.find(run_file("lock") + ": was replaced: another run"), std::string::npos) << why;
    EXPECT_EQ(saved(), std::vector<std::int64_t>{2}) << "saved into another run's folder";
}

TEST_F(HeldFolder, WithoutItsLockFileItMakesItAgain) {
    train_and(3, [&] { fs::remove(run_file("lock")); });
    EXPECT_EQ(result_.step, 6);
    EXPECT_EQ(saved(), std::vector<std::int64_t>{6});
    EXPECT_TRUE(fs::exists(run_file("lock")));
    // It is held.
    fs::remove_all(options_.out);
    bool tried = false;
    train_and(3, [&] { fs::remove(run_file("lock")); });
    fs::remove_all(options_.out);
    events_.saved = [&](std::int64_t step, const std::string&) {
        if (step == 2) fs::remove(run_file("lock"));
        if (step != 4) return;
        tried = true;
        EXPECT_THROW(RunFolder::open(options_.out), Error) << "two runs have one folder";
    };
    events_.step = {};
    train(options_, events_);
    EXPECT_TRUE(tried);
}

// Its lock was removed, another run began and ended there, and left a checkpoint of its own.
TEST_F(HeldFolder, OnlyItsOwnCheckpointsAreRemoved) {
    train_and(3, [&] {
        fs::create_directory(options_.out + "/checkpoints/step-000001");
        fs::create_directory(options_.out + "/checkpoints/step-000003");
    });
    EXPECT_EQ(saved(), (std::vector<std::int64_t>{1, 3, 6}));
}

}  // namespace
}  // namespace mr::train::run_folder_test
