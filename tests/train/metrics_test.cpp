// metrics.jsonl: written numbers read back as the same doubles, a resumed run continues the file,
// and damage is reported with its line.
#include "train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "temp_folder.h"

namespace mr::train {
namespace {

class Metrics : public ::testing::Test {
  protected:
    static StepMetrics step(std::int64_t number) {
        StepMetrics m;
        m.step = number;
        m.loss = 1.0 / 3 + 1.0 / static_cast<double>(number);
        if (number % 2 == 0) m.val_loss = m.loss * 1.1;
        if (number % 4 == 0) m.bits_per_byte = m.loss / 3;
        if (number % 3 == 0) m.masked = 1000 + number;
        m.lr = 6e-4 / static_cast<double>(number);
        m.grad_norm = std::sqrt(static_cast<double>(number));
        m.tokens_per_second = 1e5 / 7;
        m.data_wait_seconds = 1e-7;
        m.seconds = 0.1;
        return m;
    }
    std::string content() const { return test::read_all(path_); }
    void put(const std::string& text) const { folder_.write("metrics.jsonl", text); }
    std::string refusal(const std::string& text) const {
        put(text);
        try {
            read_metrics(path_);
        } catch (const Error& e) {
            return e.what();
        }
        return "read";
    }

    const test::TempFolder folder_;
    const std::string path_ = folder_ / "metrics.jsonl";
};

TEST_F(Metrics, ReadBackAsTheSameDoubles) {
    {
        MetricsWriter writer(path_, 0);
        for (int i = 1; i <= 5; ++i) writer.append(step(i));
        StepMetrics bad = step(6);
        bad.loss = bad.grad_norm = std::numeric_limits<double>::infinity();
        bad.skipped = true;
        writer.append(bad);
    }
    const std::vector<StepMetrics> all = read_metrics(path_);
    ASSERT_EQ(all.size(), 6u);
    for (int i = 1; i <= 5; ++i) {
        const StepMetrics want = step(i);
        const StepMetrics& got = all[static_cast<std::size_t>(i - 1)];
        EXPECT_EQ(got.step, want.step);
        EXPECT_EQ(got.loss, want.loss);
        EXPECT_EQ(got.val_loss, want.val_loss);
        EXPECT_EQ(got.bits_per_byte, want.bits_per_byte);
        EXPECT_EQ(got.masked, want.masked);
        EXPECT_EQ(got.lr, want.lr);
        EXPECT_EQ(got.grad_norm, want.grad_norm);
        EXPECT_EQ(got.tokens_per_second, want.tokens_per_second);
        EXPECT_EQ(got.data_wait_seconds, want.data_wait_seconds);
        EXPECT_EQ(got.seconds, want.seconds);
        EXPECT_FALSE(got.skipped);
    }
    EXPECT_TRUE(all[5].skipped);
    EXPECT_TRUE(std::isnan(all[5].loss) && std::isnan(all[5].grad_norm));
}

TEST_F(Metrics, GoesOnAfterAStep) {
    std::string four;
    {
        MetricsWriter writer(path_, 0);
        for (int i = 1; i <= 9; ++i) {
            writer.append(step(i));
            if (i == 4) four = content();
        }
    }
    const std::string nine = content();
    {
        MetricsWriter writer(path_, 4);
        EXPECT_EQ(content(), four);
        for (int i = 5; i <= 9; ++i) writer.append(step(i));
    }
    EXPECT_EQ(content(), nine);
    // A line torn by a crash, and zeros left by a file system, are not steps.
    put(four + "{\"step\": 5, \"lo");
    { MetricsWriter writer(path_, 7); }
    EXPECT_EQ(content(), four);
    put(four + std::string(40, '\0') + "\n");
    { MetricsWriter writer(path_, 7); }
    EXPECT_EQ(content(), four);
    { MetricsWriter writer(path_, 0); }
    EXPECT_EQ(content(), "");
}

TEST_F(Metrics, AnEndThatNoProcessLeavesIsSaid) {
    const std::string two = metrics_line(step(1)) + metrics_line(step(2));
    const auto torn = [&](const std::string& end, std::int64_t after) {
        put(two + end);
        const MetricsWriter writer(path_, after);
        EXPECT_EQ(content(), two);
        EXPECT_EQ(writer.last(), 2);
        EXPECT_TRUE(writer.damaged().empty());
        return writer.torn_bytes();
    };
    const std::string zeros(40, '\0');
    EXPECT_EQ(torn("", 2), 0u);
    EXPECT_EQ(torn("{\"step\": 3, \"lo", 2), 0u);  // of a step that is done again
    EXPECT_EQ(torn("{\"step\": 3, \"lo", 5), 15u);
    EXPECT_EQ(torn(zeros, 2), 40u);
    EXPECT_EQ(torn(zeros, 5), 40u);
    EXPECT_EQ(torn("{\"st" + zeros, 2), 44u);
}

TEST_F(Metrics, DamagedLinesAreNamedAndTheOthersStay) {
    const auto lines = [](int from, int to) {
        std::string text;
        for (int i = from; i <= to; ++i) text += metrics_line(step(i));
        return text;
    };
    put(lines(1, 3) + "{\"step\": 4, \"loss\": oops\n" + lines(5, 9) + "again\n");
    {
        MetricsWriter writer(path_, 8);
        EXPECT_EQ(writer.damaged(), std::vector<std::int64_t>({4}));  // the last is of step 10
        EXPECT_EQ(content(), lines(1, 3) + lines(5, 8));
        writer.append(step(9));
    }
    EXPECT_EQ(content(), lines(1, 3) + lines(5, 9));
    EXPECT_EQ(read_metrics(path_).size(), 8u);
    put("");  // an empty file is no obstacle
    EXPECT_TRUE(MetricsWriter(path_, 8).damaged().empty());
}

TEST_F(Metrics, AFileOfOthersIsLeftAsItIs) {
    for (const std::string& text : {std::string("oops\n"), std::string("no newline"),
                                    std::string(40, '\0'), std::string("{\"step\": 1}\n")}) {
        put(text);
        for (const std::int64_t after : {0, 8}) {
            EXPECT_THROW(MetricsWriter(path_, after), Error);
            EXPECT_EQ(content(), text);
        }
    }
    put(metrics_line(step(1)));  // even a log of another run
    EXPECT_THROW(MetricsWriter{path_}, Error);
    EXPECT_EQ(content(), metrics_line(step(1)));
    // Through a link, even to a log.
    const std::string link = folder_ / "link.jsonl";
    std::filesystem::create_symlink(path_, link);
    for (const std::int64_t after : {0, 1}) {
        EXPECT_THROW(MetricsWriter(link, after), Error);
    }
    EXPECT_THROW(MetricsWriter{link}, Error);
    EXPECT_EQ(content(), metrics_line(step(1)));
    std::filesystem::remove(path_);
    EXPECT_THROW(MetricsWriter(link, 0), Error);
    EXPECT_FALSE(std::filesystem::exists(path_)) << "made through a link that led nowhere";
}

TEST_F(Metrics, LastLineWithoutItsEndIsStillBeingWritten) {
    put(metrics_line(step(1)) + metrics_line(step(2)).substr(0, 30));
    EXPECT_EQ(read_metrics(path_).size(), 1u);
}

TEST_F(Metrics, RefusesWhatNobodyWrote) {
    const std::string good = metrics_line(step(1));
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = metrics_line(step(2));
        return good + text.replace(text.find(from), from.size(), to);
    };
    EXPECT_EQ(refusal(good), "read");
    EXPECT_NE(refusal(good + "[1, 2]\n").find("line 2: is not a JSON object"), std::string::npos);
    EXPECT_NE(refusal(good + "hello\n").find("line 2"), std::string::npos);
    EXPECT_NE(refusal(good + good).find("does not come after"), std::string::npos);
    EXPECT_NE(refusal(changed("\"step\": 2", "\"step\": -2")).find("'step'"), std::string::npos);
    EXPECT_NE(refusal(changed("\"step\": 2", "\"step\": 2.5")).find("'step'"), std::string::npos);
    EXPECT_NE(refusal(changed("\"lr\"", "\"rl\"")).find("'lr': is missing"), std::string::npos);
    EXPECT_NE(refusal(changed("\"skipped\": false", "\"skipped\": 0")).find("'skipped'"),
              std::string::npos);
    EXPECT_NE(refusal(changed("\"seconds\": 0.1", "\"seconds\": -0.1")).find("is negative"),
              std::string::npos);
    EXPECT_NE(refusal(changed("\"seconds\": 0.1", "\"seconds\": \"x\"")).find("is not a number"),
              std::string::npos);
    EXPECT_THROW(MetricsWriter("/nowhere/at/all/metrics.jsonl", 0), Error);
}

}  // namespace
}  // namespace mr::train
