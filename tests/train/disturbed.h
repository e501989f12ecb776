// A small training run for tests that disturb it.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/mapped_file.h"
#include "temp_folder.h"
#include "text/bpe_train.h"
#include "text/tokenizer_json_writer.h"
#include "train/checkpoint.h"
#include "train/pack.h"
#include "train/trainer.h"

namespace mr::train {

// Limits the size of files of this process: simulates a full disk.
inline void limit_files(rlim_t bytes) {
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = std::min(bytes, limit.rlim_max);
    setrlimit(RLIMIT_FSIZE, &limit);
}

class Disturbed : public testing::Test {
  protected:
    Disturbed() {
        std::signal(SIGXFSZ, SIG_IGN);
        std::string text;
        for (int i = 0; i < 30; ++i) {
            text += "Story " + std::to_string(i * 7919 % 1000) + ": the mill went round";
            for (int j = 0; j < i % 5; ++j) text += ",\nand the cat ran on";
            text += ".\n" + std::string(text::kEndOfText) + "\n";
        }
        ThreadPool pool(1);
        text::BpeTrainer trainer({.vocab = 280}, pool);
        trainer.add(text);
        std::filesystem::create_directory(folder_ / "tok");
        folder_.write("tok/tokenizer.json",
                      text::huggingface_tokenizer(trainer.train().data).value().tokenizer);
        PackOptions pack_options;
        pack_options.data = {folder_.write("stories.txt", text)};
        pack_options.tokenizer = folder_ / "tok";
        pack_options.out = folder_ / "data";
        pack_options.val_docs = 5;
        pack(pack_options, pool);
        options_.model = {.family = "llama", .dim = 16, .layers = 1, .heads = 2};
        options_.data = folder_ / "data";
        options_.out = folder_ / "run";
        options_.steps = 6;
        options_.batch = 1;
        options_.seq = 16;
        options_.threads = 1;
        options_.sample_tokens = 0;
        options_.save_every = 0;
        options_.eval_every = 0;
        events_.note = [this](const std::string& line) { notes_.push_back(line); };
    }
    ~Disturbed() override { limit_files(RLIM_INFINITY); }

    // Overwrites all ids of the training split on disk.
    void write_ids(const std::string& bytes) const {
        std::fstream file(shard(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(kShardHeaderBytes);
        file << bytes;
    }
    std::string ids() const { return read_text_file(shard()).substr(kShardHeaderBytes); }
    std::string shard() const { return folder_ / "data/train-00000.bin"; }
    std::string run_file(const std::string& name) const { return options_.out + "/" + name; }
    std::vector<std::int64_t> saved() const { return Checkpoints(options_.out).steps(); }
    std::size_t lines() const { return read_metrics(run_file("metrics.jsonl")).size(); }

    const test::TempFolder folder_;
    TrainOptions options_;
    TrainEvents events_;
    std::vector<std::string> notes_;
};

}  // namespace mr::train
