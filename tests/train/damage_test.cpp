// Checkpoints that a disk has damaged are refused wherever they are loaded; and what decides the
// bits of a run is said when it changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/cpu.h"
#include "core/mapped_file.h"
#include "disturbed.h"
#include "formats/safetensors.h"
#include "model/io/convert.h"
#include "model/model.h"
#include "train/trainer.h"
#include "without_sums.h"

namespace mr::train::damage_test {
namespace {

namespace fs = std::filesystem;

class Damage : public Disturbed {
  protected:
    Damage() {
        options_.save_every = 2;
        options_.steps = 4;
        train(options_, events_);
        notes_.clear();
    }
    std::string checkpoint(int step, const std::string& file = {}) const {
        return Checkpoints(options_.out).folder(step) + (file.empty() ? "" : "/" + file);
    }
    static void put(const std::string& path, const std::string& bytes) {
        std::ofstream(path, std::ios::binary) << bytes;
    }
    static void flip(const std::string& path, std::size_t bit) {
        std::string bytes = read_text_file(path);
        bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
        put(path, bytes);
    }
    template <typename Act>
    static std::string refusal(Act&& act) {
        try {
            act();
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::input);
            return error.what();
        }
        return "";
    }
    std::string resumed(std::int64_t steps) {
        notes_.clear();
        resume(
            options_.out, [steps](TrainOptions& o) { o.steps = steps; }, events_);
        std::string all;
        for (const std::string& note : notes_) all += note + "\n";
        return all;
    }
};

TEST_F(Damage, AnyBitOfTheWeightsIsFoundWhereverTheyAreLoaded) {
    const std::string path = checkpoint(4, "model.safetensors");
    const std::string good = read_text_file(path);
    std::vector<std::pair<std::uint64_t, std::string>> tensors;  // where they begin
    {
        const auto file = formats::SafetensorsFile::open(path);
        for (const auto& tensor : file.tensors()) tensors.emplace_back(tensor.offset, tensor.name);
    }
    ASSERT_GT(tensors.size(), 5u);
    const std::uint64_t data = tensors.front().first;
    std::mt19937_64 random(11);
    for (int i = 0; i < 80; ++i) {
        // As many in the header as in the weights.
        const std::uint64_t at =
            i % 2 == 0 ? random() % data : data + random() % (good.size() - data);
        SCOPED_TRACE(testing::Message() << "byte " << at << ", data from " << data);
        flip(path, 8 * at + random() % 8);
        std::string name;
        for (const auto& [begin, its] : tensors) {
            if (at >= begin) name = "tensor " + its + ": is not as it was written";
        }
        const std::string loaded = refusal([&] { model::load_model(checkpoint(4)); });
        EXPECT_NE(loaded, "");
        EXPECT_NE(loaded.find(name), std::string::npos) << loaded;
        // By the run's name: an older one is named.
        const std::string by_run = refusal([&] { model::load_model(options_.out); });
        EXPECT_NE(by_run.find("step-000002, an older checkpoint"), std::string::npos) << by_run;
        for (const char* out : {"out.gguf", "out.safetensors", "folder"}) {
            const std::string made = folder_ / out;
            const std::string converted =
                refusal([&] { model::convert_model(checkpoint(4), made); });
            EXPECT_NE(converted.find(name), std::string::npos) << converted;
            EXPECT_NE(converted, "");
            EXPECT_FALSE(fs::exists(made));
        }
        put(path, good);
    }
    EXPECT_NO_THROW(model::load_model(checkpoint(4)));
    model::convert_model(checkpoint(4), folder_ / "converted");
    flip(folder_ / "converted/model.safetensors", 8 * (good.size() - 9));
    EXPECT_NE(refusal([&] { model::load_model(folder_ / "converted"); }).find("is not as it was"),
              std::string::npos)
        << "what convert writes has checksums, too";
}

TEST_F(Damage, AnyBitOfTheConfigurationAndTheTokenizerIsFound) {
    for (const char* file : {"config.json", "tokenizer.json"}) {
        const std::string path = checkpoint(4, file), good = read_text_file(path);
        std::mt19937_64 random(5);
        for (int i = 0; i < 60; ++i) {
            const std::size_t bit = random() % (8 * good.size());
            SCOPED_TRACE(testing::Message() << file << ", bit " << bit);
            put(path, good);
            flip(path, bit);
            for (const std::string& source :
                 {options_.out, checkpoint(4), checkpoint(4, "model.safetensors")}) {
                EXPECT_NE(refusal([&] { model::load_model(source); }).find(file),
                          std::string::npos);
            }
        }
        // A person may have meant it.
        put(path, good + "\n");
        const std::string state = checkpoint(4, "state.json"), kept = read_text_file(state);
        EXPECT_NE(refusal([&] { model::load_model(options_.out); }).find("remove state.json"),
                  std::string::npos);
        fs::remove(state);
        EXPECT_EQ(refusal([&] { model::load_model(checkpoint(4)); }), "");
        put(state, "{");  // of no use, and no part of the model
        EXPECT_EQ(refusal([&] { model::load_model(checkpoint(4)); }), "");
        put(state, kept);
        put(path, good);
        EXPECT_EQ(refusal([&] { model::load_model(options_.out); }), "");
    }
}

TEST_F(Damage, ARunGoesOnFromTheCheckpointBefore) {
    std::mt19937_64 random(5);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        for (const bool end : {false, true}) {
            const std::string path = checkpoint(4, file);
            const std::size_t size = read_text_file(path).size();
            flip(path, 8 * (end ? size - 1 - random() % 64 : random() % size));
            const std::string notes = resumed(4);
            EXPECT_NE(notes.find(file), std::string::npos) << notes;
            EXPECT_NE(notes.find("the checkpoint is damaged; going on from step 2"),
                      std::string::npos)
                << notes;
            if (end) {
                EXPECT_NE(notes.find(file[0] == 'o' ? "tensor v: is not as it was" : "tensor "),
                          std::string::npos)
                    << notes;
            }
            EXPECT_EQ(saved().back(), 4);
        }
    }
}

TEST_F(Damage, AModelToBeginWithIsChecked) {
    TrainOptions tuned = options_;
    tuned.init = checkpoint(4);
    tuned.out = folder_ / "tuned";
    EXPECT_EQ(train(tuned, events_).step, 4);
    tuned.out = folder_ / "again";
    const std::string path = checkpoint(4, "model.safetensors");
    flip(path, 8 * (read_text_file(path).size() - 1));
    EXPECT_NE(refusal([&] { train(tuned, events_); }).find("is not as it was"), std::string::npos);
}

TEST_F(Damage, CheckpointsOfOlderVersionsLoad) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        test::remove_sums(checkpoint(4, file));
    }
    auto state = nlohmann::ordered_json::parse(read_text_file(checkpoint(4, "state.json")));
    ASSERT_EQ(state.erase("machine"), 1u);
    state.erase("hash");
    put(checkpoint(4, "state.json"), state.dump());
    EXPECT_NO_THROW(model::load_model(options_.out));
    EXPECT_EQ(resumed(5), "");
    EXPECT_EQ(saved(), (std::vector<std::int64_t>{2, 4, 5}));
}

// What is not mentioned did not change.
TEST_F(Damage, AnotherInstructionPathIsSaid) {
    EXPECT_EQ(resumed(5), "");
    const Isa best = active_isa();
    const std::vector<Isa> all = available_isas();
    for (const Isa isa : all) {
        if (isa == active_isa()) continue;
        const std::string was = isa_name(active_isa()), is = isa_name(isa);
        set_isa(isa);
        const std::string notes = resumed(saved().back() + 1);
        EXPECT_NE(notes.find("other bits than at its last checkpoint: instructions was " + was +
                             ", and is " + is + " (MILLRACE_ISA=" + was + " keeps them"),
                  std::string::npos)
            << notes;
        EXPECT_EQ(resumed(saved().back() + 1), "") << "said once";
    }
    set_isa(best);
    resumed(saved().back() + 1);
    // Another version may have the same bits.
    events_.program = "millrace 98";
    const std::string notes = resumed(saved().back() + 1);
    EXPECT_NE(
        notes.find(
            "the run may go on with other bits than at its last checkpoint: program was , and "
            "is millrace 98"),
        std::string::npos)
        << notes;
    EXPECT_EQ(notes.find("MILLRACE_ISA"), std::string::npos) << notes;
    // With another instruction path as well it surely has others.
    const auto other = std::ranges::find_if(all, [&](Isa isa) { return isa != best; });
    if (other == all.end()) return;
    set_isa(*other);
    events_.program = "millrace 99";
    const std::string both = resumed(saved().back() + 1);
    set_isa(best);
    for (const char* part : {"the run goes on with other bits", "MILLRACE_ISA",
                             "program was millrace 98, and is millrace 99"}) {
        EXPECT_NE(both.find(part), std::string::npos) << both;
    }
}

}  // namespace
}  // namespace mr::train::damage_test
