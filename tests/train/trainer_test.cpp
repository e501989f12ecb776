// A training run that is disturbed: finished steps are kept.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"
#include "disturbed.h"
#include "model/train/train_engine.h"
#include "temp_folder.h"
#include "train/checkpoint.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

TEST_F(Disturbed, DataThatCannotBeReadEndsTheStepThatNeedsItAndNothingBefore) {
    const std::string good = ids();
    options_.prefetch = 0;
    events_.step = [&](const TrainEvents::Step& step) {
        // The third step's batch is loaded already; while it computes, the fourth's is requested.
        if (step.metrics.step == 2) write_ids(std::string(good.size(), '\xff'));
    };
    EXPECT_THROW(train(options_, events_), Error);
    EXPECT_EQ(saved(), std::vector<std::int64_t>{3});
    EXPECT_EQ(lines(), 3u);
    EXPECT_TRUE(fs::exists(run_file("report.html")));

    write_ids(good);
    resume(options_.out, {}, {});
    TrainOptions whole = options_;
    whole.out = folder_ / "whole";
    // No more batches are read than there are steps.
    events_.step = [&](const TrainEvents::Step& step) {
        if (step.metrics.step == 5) write_ids(std::string(good.size(), '\xff'));
    };
    EXPECT_EQ(train(whole, events_).step, 6);
    const std::string weights = "/checkpoints/step-000006/model.safetensors";
    EXPECT_EQ(read_text_file(options_.out + weights), read_text_file(whole.out + weights));
}

// Through a map this would be SIGBUS.
TEST_F(Disturbed, AShardThatIsCutUnderARunLosesNoStep) {
    const std::string good = read_text_file(shard());
    for (const int prefetch : {0, 2}) {
        options_.prefetch = prefetch;
        options_.out = folder_ / ("run" + std::to_string(prefetch));
        options_.steps = 40;
        events_.step = [&](const TrainEvents::Step& step) {
            if (step.metrics.step == 5) fs::resize_file(shard(), kShardHeaderBytes);
        };
        try {
            train(options_, events_);
            FAIL() << "it had no data any more";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::input);
            EXPECT_EQ(fs::path(error.info().file).filename(), "train-00000.bin");
            EXPECT_NE(std::string(error.what()).find("was truncated while in use"),
                      std::string::npos);
        }
        // Batches that were read ahead are used.
        ASSERT_EQ(saved().size(), 1u);
        EXPECT_GE(saved()[0], 5);
        EXPECT_LE(saved()[0], prefetch == 0 ? 6 : 7 + prefetch);
        EXPECT_EQ(lines(), static_cast<std::size_t>(saved()[0]));
        folder_.write("data/train-00000.bin", good);
        EXPECT_EQ(resume(options_.out, {}, {}).step, 40);
    }
    const std::string weights = "/checkpoints/step-000040/model.safetensors";
    EXPECT_EQ(read_text_file(folder_ / "run0" + weights),
              read_text_file(folder_ / "run2" + weights));
}

TEST_F(Disturbed, ValidationDataThatCannotBeReadLosesNoStep) {
    options_.eval_every = 3;
    events_.step = [&](const TrainEvents::Step& step) {
        if (step.metrics.step != 2) return;
        std::fstream file(folder_ / "data/val-00000.bin",
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(kShardHeaderBytes);
        file << std::string(20, '\xff');
    };
    EXPECT_THROW(train(options_, events_), Error);
    EXPECT_EQ(saved(), std::vector<std::int64_t>{3});
    EXPECT_EQ(lines(), 3u);
}

TEST_F(Disturbed, WhateverIsThrownTheLastWholeStepIsSaved) {
    events_.step = [&](const TrainEvents::Step& step) {
        if (step.metrics.step == 4) throw std::runtime_error("of the listener's own");
    };
    EXPECT_THROW(train(options_, events_), std::runtime_error);
    EXPECT_EQ(saved(), std::vector<std::int64_t>{4});
    // Even if a callback throws something that is no exception during the save: the first error is
    // reported.
    events_.saving = [](bool) { throw 1; };
    TrainOptions other = options_;
    other.out = folder_ / "other";
    EXPECT_THROW(train(other, events_), std::runtime_error);
    EXPECT_EQ(resume(options_.out, {}, {}).step, 6);
}

TEST_F(Disturbed, AFullDiskOnTheWayIsSaidAndTheRunGoesOn) {
    options_.save_every = 2;
    events_.step = [&](const TrainEvents::Step& step) {
        if (step.metrics.step == 1) limit_files(fs::file_size(run_file("metrics.jsonl")) + 50);
        if (step.metrics.step == 3) limit_files(RLIM_INFINITY);
    };
    EXPECT_EQ(train(options_, events_).step, 6);
    EXPECT_EQ(saved(), (std::vector<std::int64_t>{4, 6}));
    EXPECT_EQ(lines(), 6u) << "what could not be written is written later";
    ASSERT_GE(notes_.size(), 2u);
    EXPECT_NE(notes_[0].find("metrics.jsonl"), std::string::npos) << notes_[0];
    EXPECT_NE(notes_[1].find("step 2 is not saved"), std::string::npos) << notes_[1];
}

TEST_F(Disturbed, ThatNothingCanBeValidatedIsSaid) {
    options_.seq = 200;
    train(options_, events_);
    ASSERT_EQ(notes_.size(), 1u);
    EXPECT_NE(notes_[0].find("no validation: the "), std::string::npos) << notes_[0];
}

TEST_F(Disturbed, AValidationAndASampleAreLeftWhenAsked) {
    options_.eval_every = 3;
    options_.eval_batches = 0;
    int asked = 0;
    events_.stop = [&] { return ++asked > 3 * 2 + 1; };  // in the middle of the first validation
    EXPECT_TRUE(train(options_, events_).interrupted);
    EXPECT_EQ(saved(), std::vector<std::int64_t>{3});
    EXPECT_FALSE(read_metrics(run_file("metrics.jsonl")).back().val_loss);

    options_.out = folder_ / "other";
    options_.eval_every = 0;
    options_.sample_every = 2;
    options_.sample_tokens = 1000;
    options_.model.context = 2000;
    events_.stop = [&, sampling = 0]() mutable {
        // After the second step only the sample polls it.
        sampling += fs::exists(run_file("metrics.jsonl")) && lines() == 2;
        return sampling > 5;
    };
    events_.sample = [&](std::int64_t, const std::string&) { ADD_FAILURE() << "half a sample"; };
    const TrainResult result = train(options_, events_);
    EXPECT_TRUE(result.interrupted);
    EXPECT_EQ(result.step, 2);
}

TEST_F(Disturbed, ASampleThatThereIsNoMemoryForIsLeftOut) {
    options_.model.layers = 64;  // 2 TiB of keys and values
    options_.model.context = 1 << 28;
    options_.sample_tokens = 1 << 28;
    options_.sample_every = 3;
    events_.sample = [&](std::int64_t, const std::string&) { ADD_FAILURE() << "so much memory?"; };
    const TrainResult result = train(options_, events_);
    EXPECT_EQ(result.step, 6);
    EXPECT_FALSE(result.interrupted);
    ASSERT_EQ(notes_.size(), 2u);
    EXPECT_NE(notes_[0].find("no sample after step 3, the run goes on: "), std::string::npos)
        << notes_[0];
    EXPECT_NE(notes_[1].find("no sample after step 6"), std::string::npos) << notes_[1];
    EXPECT_EQ(saved(), std::vector<std::int64_t>{6});
}

TEST_F(Disturbed, AValidationThatWasCutShortAtTheEndIsMadeWhenResumed) {
    events_.step = [&](const TrainEvents::Step&) {};
    int steps = 0;
    events_.stop = [&] { return ++steps == 2 * 5 + 1; };  // after the last step
    TrainResult result = train(options_, events_);
    EXPECT_EQ(result.step, 6);
    EXPECT_TRUE(result.interrupted);
    EXPECT_FALSE(result.val_loss);
    TrainOptions whole = options_;
    whole.out = folder_ / "whole";
    const TrainResult wanted = train(whole, {});
    result = resume(options_.out, {}, {.stop = [] { return true; }});
    EXPECT_TRUE(result.interrupted) << "stopped in the validation again";
    result = resume(options_.out, {}, {});
    EXPECT_EQ(result.val_loss, wanted.val_loss);
    EXPECT_EQ(result.bits_per_byte, wanted.bits_per_byte);
    EXPECT_EQ(lines(), 6u);
    EXPECT_EQ(read_metrics(run_file("metrics.jsonl")).back().val_loss, wanted.val_loss);
}

TEST_F(Disturbed, GoingOnWhereNothingIsLeftKeepsTheReport) {
    train(options_, {});
    const std::string page = read_text_file(run_file("report.html"));
    EXPECT_NE(page.find("\"title\":\"Stages\""), std::string::npos);
    resume(options_.out, {}, {});
    EXPECT_EQ(read_text_file(run_file("report.html")), page);
}

TEST_F(Disturbed, WhatRecomputationSavesAndCostsIsSaid) {
    options_.recompute = "full";
    events_.begun = [&](const TrainEvents::Begun& run) { notes_.push_back(run.recompute); };
    train(options_, events_);
    ASSERT_EQ(notes_.size(), 1u);
    EXPECT_NE(notes_[0].find("saves "), std::string::npos) << notes_[0];
    EXPECT_NE(notes_[0].find("% more arithmetic"), std::string::npos) << notes_[0];
    EXPECT_NE(read_text_file(run_file("report.html")).find(notes_[0]), std::string::npos);
}

// The reported cost, compared with the operations' counts.
TEST(Pruning, WhatLiesAfterTheNewestIsNotCounted) {
    const mr::test::TempFolder folder;
    for (const int step : {1, 2, 3, 9}) {
        fs::create_directories(fs::path(Checkpoints(folder / "run").folder(step)));
    }
    Checkpoints checkpoints(folder / "run");
    checkpoints.prepare();
    checkpoints.prune(3, 0);
    EXPECT_EQ(checkpoints.steps(), (std::vector<std::int64_t>{1, 2, 3, 9}));
    checkpoints.prune(3, 2);
    EXPECT_EQ(checkpoints.steps(), (std::vector<std::int64_t>{2, 3, 9}));
    checkpoints.prune(3, 1);
    EXPECT_EQ(checkpoints.steps(), (std::vector<std::int64_t>{3, 9}));
}

TEST(Recomputation, CostsWhatTheLedgerCounts) {
    for (const char* family : {"llama", "gpt2", "gpt-neox"}) {
        SCOPED_TRACE(family);
        const int seq = 24;
        const NewModel wanted{.family = family, .dim = 32, .layers = 3, .heads = 2};
        const model::ModelSpec spec = new_spec(wanted, 50, seq);
        const auto count = [&](model::Recompute recompute, std::uint64_t& plan) {
            model::TrainEngine engine(spec, {.cuda = false,
                                             .threads = 1,
                                             .shape = {.sequences = 2, .seq = seq},
                                             .recompute = recompute});
            engine.init(1);
            for (std::int32_t& id : engine.ops().host_slot(0)) id = 7;
            engine.put(0);
            engine.accumulate(0, 1);
            plan = engine.plan().total();
            EXPECT_EQ(engine.bytes_saved_by_recompute() > 0, recompute != model::Recompute::none);
            return engine.ledger();
        };
        std::uint64_t bytes[3] = {};
        const Ledger none = count(model::Recompute::none, bytes[0]);
        const Ledger light = count(model::Recompute::light, bytes[1]);
        const Ledger full = count(model::Recompute::full, bytes[2]);
        EXPECT_GT(bytes[0], bytes[1]);
        EXPECT_GT(bytes[1], bytes[2]);
        const auto told = [&](model::Recompute recompute) {
            return 2 * seq * model::TrainEngine::remade_flops_per_token(spec, seq, recompute);
        };
        const auto more = [&](const Ledger& ledger, OpKind kind) {
            return ledger.op(kind).flops - none.op(kind).flops;
        };
        // Attention has (seq + 1) / 2 keys per query, where seq / 2 is reported.
        EXPECT_EQ(more(full, OpKind::linear) + more(full, OpKind::attention) * seq / (seq + 1),
                  told(model::Recompute::full));
        EXPECT_EQ(more(light, OpKind::linear) + more(light, OpKind::attention), 0u);
        EXPECT_EQ(told(model::Recompute::light), 0u);
    }
}

}  // namespace
}  // namespace mr::train
