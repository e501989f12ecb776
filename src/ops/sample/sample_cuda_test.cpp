// The sampler on the GPU against the one on the CPU, token for token, and against exact
// distributions.
#include "ops/sample/sample_cuda.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "core/cuda/kernel.cuh"
#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda::sample_cuda_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Logits = std::vector<std::vector<float>>;  // one vector per row

struct Draws {
    std::vector<std::int32_t> ids;
    std::vector<float> probability, confidence;
    std::vector<std::uint32_t> flags;
};

void expect_same_bits(const Draws& a, const Draws& b, const std::string& what) {
    const auto same = [](const auto& x, const auto& y) {
        return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * 4) == 0;
    };
    EXPECT_TRUE(same(a.ids, b.ids)) << what;
    EXPECT_TRUE(same(a.probability, b.probability)) << what;
    EXPECT_TRUE(same(a.confidence, b.confidence)) << what;
    EXPECT_TRUE(same(a.flags, b.flags)) << what;
}

// `recent` is also passed to run().
SampleRow row_of(const ops::SampleParams& params, std::int64_t position,
                 std::span<const std::int32_t> recent = {}) {
    SampleRow row{};
    row.temperature = params.temperature;
    row.top_p = params.top_p;
    row.min_p = params.min_p;
    row.repeat_penalty = params.repeat_penalty;
    row.top_k = params.top_k;
    row.active = 1;
    row.seed = params.seed;
    row.position = position;
    row.window = row.recent_used = static_cast<std::int32_t>(recent.size());
    return row;
}

ops::SampleParams plain() {
    return {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .seed = 1};
}

class SampleTest : public GpuTest {
  protected:
    // Equal rows are stored separately: [rows, vocab].
    Tensor upload_rows(const Logits& logits, std::size_t rows) {
        const std::size_t vocab = logits[0].size();
        const Tensor t = memory_.tensor(
            DType::f32, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(vocab)});
        for (std::size_t r = 0; r < rows; ++r) {
            stream_->to_device(t.f32(static_cast<std::int64_t>(r)),
                               logits[r % logits.size()].data(), vocab * 4, nullptr);
        }
        stream_->synchronize();
        return t;
    }
    // The rows' rings, each with the same tokens.
    void upload_recent(SampleState& state, std::size_t rows, std::span<const std::int32_t> recent) {
        if (recent.empty()) return;
        std::vector<std::int32_t> all;
        for (std::size_t r = 0; r < rows; ++r) all.insert(all.end(), recent.begin(), recent.end());
        state.recent = upload<std::int32_t>(all);
        state.most_recent = static_cast<int>(recent.size());
    }
    Draws run(Tensor logits, const std::vector<SampleRow>& rows, SampleKind kind = SampleKind::any,
              int team = 0, std::span<const std::int32_t> recent = {}) {
        const std::size_t n = rows.size();
        SampleState state;
        state.rows = upload<SampleRow>(rows);
        upload_recent(state, n, recent);
        state.next_ids = memory_.array<std::int32_t>(n);
        state.probability = memory_.array<float>(n);
        state.confidence = memory_.array<float>(n);
        state.flags = memory_.array<std::uint32_t>(n);
        stream_->fill(state.next_ids, 0xff, 4 * n);
        stream_->fill(state.probability, 0xff, 4 * n);
        stream_->fill(state.confidence, 0xff, 4 * n);
        stream_->fill(state.flags, 0xff, 4 * n);
        sample(ctx_, logits, state, kind, team);
        return {download(state.next_ids, n), download(state.probability, n),
                download(state.confidence, n), download(state.flags, n)};
    }
    ops::Sampled on_cpu(const std::vector<float>& logits, const ops::SampleParams& params,
                        std::int64_t position, std::span<const std::int32_t> recent = {}) {
        scratch_.resize(ops::sample_scratch_bytes(static_cast<std::int64_t>(logits.size())));
        Context cpu;
        cpu.pool = &pool_;
        cpu.scratch = scratch_;
        const Tensor t(const_cast<float*>(logits.data()), DType::f32,
                       {static_cast<std::int64_t>(logits.size())});
        return ops::sample(cpu, t, params, recent, static_cast<std::uint64_t>(position));
    }
    std::vector<int> teams(std::int64_t vocab) {
        std::vector<int> out;
        for (int team : {1, 2, 4, 8, 16}) {
            if (sample_team_fits(vocab, team)) out.push_back(team);
        }
        return out;
    }

    ThreadPool pool_{1};
    std::vector<std::byte> scratch_;
};

// Rows as models make them, flat ones, steep ones, some with ties, zeros of both signs and
// impossible tokens.
Logits some_rows(std::size_t vocab, std::mt19937& random) {
    Logits rows;
    for (float spread : {0.001f, 0.3f, 2.0f, 2.5f, 8.0f, 60.0f}) {
        std::normal_distribution<float> dist(spread < 1 ? 5.0f : -2.0f, spread);
        std::vector<float> row(vocab);
        for (float& x : row) x = dist(random);
        if (spread == 2.5f) {
            for (float& x : row) x = std::round(4 * x) / 4;
            for (std::size_t i = 0; i < vocab; i += 3) row[i] = std::copysign(row[i], -1.0f);
            for (std::size_t i = 1; i < vocab; i += 7) row[i] = -kInf;
        }
        rows.push_back(row);
    }
    return rows;
}

// Weights agree with the CPU's to 2^-44, which moves a boundary between two of n candidates by
// less than n 2^-44 of the best one's weight: of a draw's 2^24 outcomes none lies that close to one
// of 151,936 boundaries in all but 1e-8 of the draws. So ids are compared for equality. The
// probability is a quotient of two such sums, rounded to f32. The confidence sums f32
// exponentials, of arguments up to about 20 that matter: 40 roundoffs on the CPU's side, as many on
// this one.
TEST_F(SampleTest, AgreesWithTheCpuForEveryCombination) {
    for (const std::size_t vocab : {1, 2, 7, 512, 513, 32000, 50257, 151936}) {
        memory_.reset();
        const Logits logits = some_rows(vocab, random_);
        std::vector<ops::SampleParams> params;
        for (float temperature : {0.0f, 0.3f, 1.0f, 2.5f}) {
            for (int top_k : {0, 1, 50, 700}) {
                for (float top_p : {0.0f, 0.9f, 1.0f}) {
                    for (float min_p : {0.0f, 0.05f, 1.0f}) {
                        params.push_back({temperature, top_k, top_p, min_p, 1.0f, random_()});
                        params.push_back({temperature, top_k, top_p, min_p, 1.3f, random_()});
                    }
                }
            }
        }
        // Every combination on every kind of row.
        const std::size_t rows = params.size() * logits.size();
        std::vector<std::int32_t> recent(40);
        for (std::size_t i = 0; i < recent.size(); ++i) {
            recent[i] = static_cast<std::int32_t>(i * i % vocab);
        }
        const std::size_t batch = 96;  // a multiple of the kinds of rows
        const Tensor tensor = upload_rows(logits, batch);
        std::size_t wrong = 0;
        for (std::size_t first = 0; first < rows; first += batch) {
            std::vector<SampleRow> state;
            for (std::size_t i = first; i < first + batch; ++i) {
                state.push_back(row_of(params[i / logits.size()],
                                       static_cast<std::int64_t>(i) + (1LL << 33), recent));
            }
            const Draws got = run(tensor, state, SampleKind::any, 0, recent);
            for (std::size_t i = 0; i < batch; ++i) {
                const ops::SampleParams& p = params[(first + i) / logits.size()];
                const ops::Sampled want =
                    on_cpu(logits[i % logits.size()], p, state[i].position, recent);
                wrong += got.ids[i] != want.id;
                ASSERT_LT(wrong, 5u) << "too many to name";
                EXPECT_EQ(got.ids[i], want.id)
                    << "vocab " << vocab << " kind " << i % logits.size() << " temperature "
                    << p.temperature << " k " << p.top_k << " p " << p.top_p << " min " << p.min_p
                    << " penalty " << p.repeat_penalty;
                EXPECT_EQ(got.flags[i], 0u);
                if (got.ids[i] != want.id) continue;
                EXPECT_NEAR(got.probability[i], want.probability, 0x1p-22 * want.probability);
                EXPECT_NEAR(got.confidence[i], want.confidence, 0x1p-24 * 80 * want.confidence);
            }
        }
    }
}

// For any number of blocks per row, and any number of runs: the same bits.
TEST_F(SampleTest, TheTeamChangesNoBit) {
    for (const std::size_t vocab : {5, 513, 8192, 50257, 151936}) {
        memory_.reset();
        const Logits logits = some_rows(vocab, random_);
        const Tensor tensor = upload_rows(logits, 48);
        const std::vector<std::int32_t> recent{0, 1, 3, 3, 4};
        std::vector<SampleRow> rows;
        for (int i = 0; i < 48; ++i) {
            const ops::SampleParams params{i % 5 == 4 ? 0.0f : 0.4f * static_cast<float>(1 + i % 5),
                                           i / 6 % 3 * 60,
                                           i % 2 ? 1.0f : 0.9f,
                                           i % 3 ? 0.0f : 0.02f,
                                           i % 4 ? 1.0f : 1.2f,
                                           random_()};
            rows.push_back(row_of(params, i, recent));
        }
        const Draws first = run(tensor, rows, SampleKind::any, 1, recent);
        for (int team : teams(static_cast<std::int64_t>(vocab))) {
            const std::string what =
                "vocab " + std::to_string(vocab) + " team " + std::to_string(team);
            const auto again = [&] { return run(tensor, rows, SampleKind::any, team, recent); };
            expect_same_bits(again(), first, what);
            expect_same_bits(again(), first, what + " again");
        }
    }
}

TEST_F(SampleTest, ARowDoesNotDependOnTheBatch) {
    const std::size_t vocab = 32001;
    const Logits logits = some_rows(vocab, random_);
    const Tensor tensor = upload_rows(logits, 256);
    std::vector<SampleRow> rows;
    for (int i = 0; i < 256; ++i) {
        rows.push_back(row_of({0.9f, i % 2 * 50, 0.9f, 0, 1, random_()}, i));
    }
    const Draws all = run(tensor, rows);
    for (std::size_t count : {1, 2, 3, 5, 17, 31, 64, 100, 255, 256}) {
        const std::size_t first = 256 - count;
        const Draws some = run(
            tensor.slice_rows(static_cast<std::int64_t>(first), static_cast<std::int64_t>(count)),
            {rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end()});
        for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(some.ids[i], all.ids[first + i]) << count;
            ASSERT_EQ(some.probability[i], all.probability[first + i]) << count;
            ASSERT_EQ(some.confidence[i], all.confidence[first + i]) << count;
        }
    }
}

TEST_F(SampleTest, GreedyHasAKernelOfItsOwn) {
    for (const std::size_t vocab : {1, 9, 512, 50257, 151936}) {
        memory_.reset();
        Logits logits = some_rows(vocab, random_);
        logits.push_back(std::vector<float>(vocab, 2.0f));  // all equal: the first
        logits.push_back(std::vector<float>(vocab, -1.0f));
        logits.back().back() = logits.back()[vocab / 2] = 3.0f;
        const Tensor tensor = upload_rows(logits, logits.size());
        ops::SampleParams params;
        params.temperature = 0;
        params.repeat_penalty = 1.5f;
        const std::vector<std::int32_t> recent{static_cast<std::int32_t>(vocab / 2)};
        const std::vector<SampleRow> rows(logits.size(), row_of(params, 3, recent));
        for (int team : teams(static_cast<std::int64_t>(vocab))) {
            const Draws got = run(tensor, rows, SampleKind::greedy, team, recent);
            expect_same_bits(got, run(tensor, rows, SampleKind::any, team, recent),
                             "greedy and any");
            for (std::size_t i = 0; i < logits.size(); ++i) {
                const ops::Sampled want = on_cpu(logits[i], params, 3, recent);
                EXPECT_EQ(got.ids[i], want.id) << "vocab " << vocab << " row " << i;
                EXPECT_EQ(got.probability[i], 1.0f);
                EXPECT_NEAR(got.confidence[i], want.confidence, 0x1p-24 * 80 * want.confidence);
            }
        }
    }
    const Tensor tensor = upload_rows({{1, 2, 3}}, 1);
    EXPECT_EQ(run(tensor, {row_of(plain(), 0)}, SampleKind::greedy).flags[0], kSampleKind);
}

// Tokens as in a text: a few again and again, half of the vocabulary once or never.
std::vector<std::int32_t> some_text(std::size_t count, std::size_t vocab, std::mt19937& random) {
    std::vector<std::int32_t> text(count);
    for (std::int32_t& id : text) {
        const std::size_t range = random() % 3 == 0 ? vocab : std::max<std::size_t>(vocab / 50, 1);
        id = static_cast<std::int32_t>(random() % range);
    }
    return text;
}

// Windows of any length: shorter and longer than a block has threads, longer than the vocabulary;
// and tokens that occur in them many times count once.
TEST_F(SampleTest, LongWindowsAgreeWithTheCpu) {
    for (const std::size_t vocab : {300, 9000, 151936}) {
        const Logits logits = some_rows(vocab, random_);
        for (const std::size_t window : {1, 63, 64, 65, 500, 513, 4096, 20000}) {
            memory_.reset();
            const Tensor tensor = upload_rows(logits, logits.size() * 6);
            const std::vector<std::int32_t> recent = some_text(window, vocab, random_);
            std::vector<ops::SampleParams> params;
            std::vector<SampleRow> rows, greedy;
            for (std::size_t i = 0; i < logits.size() * 6; ++i) {
                const std::size_t kind = i / logits.size();
                params.push_back({kind % 3 == 0 ? 0.0f : 0.8f, kind % 3 == 1 ? 40 : 0,
                                  kind % 3 == 1 ? 0.9f : 1.0f, 0, kind < 3 ? 1.3f : 0.8f,
                                  random_()});
                rows.push_back(row_of(params.back(), static_cast<std::int64_t>(i), recent));
                greedy.push_back(rows.back());
                greedy.back().temperature = 0;
            }
            Draws first;
            for (int team : teams(static_cast<std::int64_t>(vocab))) {
                const std::string what = "vocab " + std::to_string(vocab) + " window " +
                                         std::to_string(window) + " team " + std::to_string(team);
                const Draws got = run(tensor, rows, SampleKind::any, team, recent);
                if (team == 1) first = got;
                expect_same_bits(got, first, what);
                expect_same_bits(run(tensor, greedy, SampleKind::greedy, team, recent),
                                 run(tensor, greedy, SampleKind::any, team, recent),
                                 what + " greedy");
                for (std::size_t i = 0; team == 1 && i < rows.size(); ++i) {
                    const ops::Sampled want = on_cpu(logits[i % logits.size()], params[i],
                                                     static_cast<std::int64_t>(i), recent);
                    ASSERT_EQ(got.ids[i], want.id) << what << " row " << i;
                    EXPECT_EQ(got.flags[i], 0u);
                    EXPECT_NEAR(got.probability[i], want.probability, 0x1p-22 * want.probability);
                    EXPECT_NEAR(got.confidence[i], want.confidence, 0x1p-24 * 80 * want.confidence);
                }
            }
        }
    }
}

TEST_F(SampleTest, BadRowsAreFlaggedAndHarmNobodyElse) {
    for (const std::size_t vocab : {37, 151936}) {
        memory_.reset();
        Logits logits(6, std::vector<float>(vocab, 1.0f));
        logits[1][0] = kNan;
        logits[2][vocab - 1] = -kNan;
        std::fill(logits[3].begin(), logits[3].end(), -kInf);
        logits[4] = logits[3];
        logits[4][vocab / 2] = kNan;
        const Tensor tensor = upload_rows(logits, logits.size());
        for (float temperature : {0.0f, 1.0f}) {
            ops::SampleParams params;
            params.temperature = temperature;
            std::vector<SampleRow> rows(logits.size(), row_of(params, 0));
            rows[5].active = 0;
            for (int team : teams(static_cast<std::int64_t>(vocab))) {
                const Draws got = run(tensor, rows, SampleKind::any, team);
                const std::vector<std::uint32_t> want{0,           kSampleNan, kSampleNan,
                                                      kSampleNone, kSampleNan, kSampleInactive};
                EXPECT_EQ(got.flags, want) << "team " << team;
                EXPECT_EQ(got.ids[0], on_cpu(logits[0], params, 0).id);
                for (std::size_t i : {1, 2, 3, 4}) EXPECT_EQ(got.ids[i], 0);
                EXPECT_EQ(got.ids[5], -1) << "a row that is passed over keeps its id";
            }
        }
    }
}

TEST_F(SampleTest, InfiniteLogitsShareEverything) {
    for (const std::size_t vocab : {9, 20000}) {
        memory_.reset();
        std::vector<float> logits(vocab, 0.0f);
        logits[2] = logits[vocab - 2] = kInf;
        logits[4] = -kInf;
        const Tensor tensor = upload_rows({logits}, 200);
        for (int team : teams(static_cast<std::int64_t>(vocab))) {
            std::vector<SampleRow> rows;
            for (int i = 0; i < 200; ++i) {
                ops::SampleParams params = plain();
                params.top_k = i % 2 ? 3 : 0;
                rows.push_back(row_of(params, i));
            }
            const Draws got = run(tensor, rows, SampleKind::any, team);
            std::set<std::int32_t> seen;
            for (std::size_t i = 0; i < rows.size(); ++i) {
                seen.insert(got.ids[i]);
                EXPECT_EQ(got.probability[i], 0.5f);
                EXPECT_EQ(got.confidence[i], 0.5f);
            }
            EXPECT_EQ(seen, (std::set<std::int32_t>{2, static_cast<std::int32_t>(vocab) - 2}));
        }
    }
}

// The contract in f64: the remaining probability of each token.
std::vector<double> exact(std::vector<float> logits, const ops::SampleParams& params,
                          const std::vector<std::int32_t>& recent) {
    for (std::int32_t id : std::set<std::int32_t>(recent.begin(), recent.end())) {
        float& x = logits[static_cast<std::size_t>(id)];
        x = x > 0 ? x / params.repeat_penalty : x * params.repeat_penalty;
    }
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    std::vector<double> p(logits.size(), 0.0);
    std::size_t kept = params.top_k > 0 ? static_cast<std::size_t>(params.top_k) : order.size();
    kept = std::min(kept, order.size());
    const auto weight = [&](std::size_t i) {
        return std::exp((double{logits[order[i]]} - double{logits[order[0]]}) /
                        double{params.temperature});
    };
    double total = 0, sum = 0;
    for (std::size_t i = 0; i < kept; ++i) total += weight(i);
    for (std::size_t i = 0; i < kept; ++i) {
        if (i > 0 && (sum >= double{params.top_p} * total || weight(i) < double{params.min_p})) {
            break;
        }
        sum += p[order[i]] = weight(i);
    }
    for (double& x : p) x /= sum;
    return p;
}

// A million draws for each parameter. With n degrees of freedom chi-square stays within about 5
// deviations of a normal variable by Wilson and Hilferty; a correct sampler fails one of 3e6 times,
// and the seeds are fixed. 600 flat tokens are more than one list holds: the descent.
TEST_F(SampleTest, AMillionDrawsFollowTheDistribution) {
    struct Case {
        const char* name;
        ops::SampleParams params;
        std::size_t vocab;
        float spread;
    };
    const std::vector<Case> cases{
        {"plain", {1, 0, 1, 0, 1, 0}, 40, 1.5f},
        {"hot", {1.7f, 0, 1, 0, 1, 0}, 40, 1.5f},
        {"cold", {0.5f, 0, 1, 0, 1, 0}, 40, 0.8f},
        {"top-k", {1, 7, 1, 0, 1, 0}, 40, 1.5f},
        {"top-p", {1, 0, 0.8f, 0, 1, 0}, 40, 1.5f},
        {"min-p", {1, 0, 1, 0.1f, 1, 0}, 40, 1.5f},
        {"penalty", {1, 0, 1, 0, 1.4f, 0}, 40, 1.5f},
        {"all", {0.8f, 20, 0.9f, 0.02f, 1.2f, 0}, 40, 1.5f},
        {"flat", {1, 0, 1, 0, 1, 0}, 600, 0.5f},
        {"flat top-k", {1, 550, 1, 0, 1, 0}, 600, 0.5f},
        {"flat top-p", {1, 0, 0.95f, 0, 1, 0}, 600, 0.5f},
    };
    const std::vector<std::int32_t> recent{1, 4, 9, 16, 25, 36, 36};
    constexpr std::size_t kRows = 4096, kLaunches = 256;
    for (const Case& c : cases) {
        const std::vector<float> logits = normal(c.vocab, c.spread);
        const std::vector<double> want = exact(logits, c.params, recent);
        for (int team : {1, 8}) {
            if (!sample_team_fits(static_cast<std::int64_t>(c.vocab), team)) continue;
            memory_.reset();
            const Tensor tensor = upload_rows({logits}, kRows);
            std::vector<SampleRow> rows;
            for (std::size_t r = 0; r < kRows; ++r) {
                rows.push_back(row_of(c.params, static_cast<std::int64_t>(r), recent));
                rows[r].seed = 1000 * r + static_cast<std::size_t>(team);
                rows[r].window = 0;  // the recent tokens do not change
            }
            SampleState state;
            state.rows = upload<SampleRow>(rows);
            upload_recent(state, kRows, recent);
            state.next_ids = memory_.array<std::int32_t>(kRows);
            std::vector<double> counts(c.vocab, 0.0);
            for (std::size_t i = 0; i < kLaunches; ++i) {
                sample(ctx_, tensor, state, SampleKind::any, team);
                for (std::int32_t id : download(state.next_ids, kRows)) {
                    ++counts[static_cast<std::size_t>(id)];
                }
            }
            double chi = 0, freedom = -1, rest_want = 0, rest_got = 0;
            const auto add = [&](double got, double expected) {
                chi += (got - expected) * (got - expected) / expected;
                freedom += 1;
            };
            for (std::size_t i = 0; i < c.vocab; ++i) {
                const double expected = want[i] * kRows * kLaunches;
                if (want[i] == 0) {
                    EXPECT_EQ(counts[i], 0) << c.name << ": token " << i << " was cut";
                } else if (expected < 10) {  // merged into one class
                    rest_want += expected;
                    rest_got += counts[i];
                } else {
                    add(counts[i], expected);
                }
            }
            if (rest_want >= 10) add(rest_got, rest_want);
            ASSERT_GT(freedom, 1) << c.name;
            const double s = 2 / (9 * freedom);
            EXPECT_LT(chi, freedom * std::pow(1 - s + 5 * std::sqrt(s), 3))
                << c.name << ", team " << team << ", degrees of freedom " << freedom;
        }
    }
}

// The loop of a decode: penalty and recent tokens advance by themselves, from a graph, and the host
// reads the ring. 16 bytes come back per token, and none are sent.
TEST_F(SampleTest, AGraphOfDrawsEqualsTheCpusLoop) {
    constexpr int kSteps = 150, kRows = 5;
    const std::size_t vocab = 9000;
    const Logits logits = some_rows(vocab, random_);
    const Tensor tensor = upload_rows({logits.begin(), logits.begin() + kRows}, kRows);
    Sampler sampler(*stream_, kRows, 64, 16);
    std::vector<std::vector<std::int32_t>> history(kRows);
    std::vector<ops::SampleParams> params;
    const auto window = [](int row) { return row == 3 ? 0 : row == 2 ? 7 : 64; };
    std::size_t counted = 0;
    for (int row = 0; row < kRows; ++row) {
        params.push_back({row == 4 ? 0.0f : 0.8f, 10 * row, 0.9f, 0.01f, 1.2f, 77});
        for (int i = 0; i < 30 * row; ++i) {
            history[static_cast<std::size_t>(row)].push_back(i % 1000);
        }
        sampler.set_row(row, params.back(), 30 * row, history[static_cast<std::size_t>(row)],
                        window(row), &ledger_);
        counted += static_cast<std::size_t>(std::min(30 * row, window(row)));
    }
    EXPECT_EQ(ledger_.host_to_device().bytes, kRows * sizeof(SampleRow) + 4 * counted);
    EXPECT_EQ(sampler.kind(0, sampler.max_rows()), SampleKind::any);
    const Graph graph = Graph::capture(*stream_, [&] { sampler.sample(ctx_, tensor); });
    EXPECT_EQ(graph.nodes(), 1u);
    EXPECT_EQ(sampler.steps(0), 0u) << "a capture draws nothing";
    const Ledger before = ledger_;
    for (int step = 0; step < kSteps; ++step) {
        const auto number = static_cast<std::uint64_t>(step);
        graph.launch(*stream_);
        sampler.replayed(kRows, &ledger_);
        EXPECT_FALSE(sampler.poll(0, number + 1));
        for (int row = 0; row < kRows; ++row) {
            auto& past = history[static_cast<std::size_t>(row)];
            const std::size_t seen = std::min(past.size(), static_cast<std::size_t>(window(row)));
            const ops::Sampled want =
                on_cpu(logits[static_cast<std::size_t>(row)], params[static_cast<std::size_t>(row)],
                       30 * row + step, std::span<const std::int32_t>(past).last(seen));
            const ops::Sampled got = sampler.wait(row, number);
            ASSERT_EQ(got.id, want.id) << "step " << step << " row " << row;
            EXPECT_NEAR(got.probability, want.probability, 0x1p-22 * want.probability);
            past.push_back(got.id);
        }
    }
    const Ledger spent = ledger_.since(before);
    EXPECT_EQ(spent.host_to_device().bytes, 0u);
    EXPECT_EQ(spent.device_to_host().bytes, 16u * kRows * kSteps);
    const std::vector<std::int32_t> next = download(sampler.next_ids(), kRows);
    for (int row = 0; row < kRows; ++row) {
        EXPECT_EQ(next[static_cast<std::size_t>(row)],
                  history[static_cast<std::size_t>(row)].back());
    }
    EXPECT_THROW(sampler.poll(0, 3), ContractError) << "the ring has come round";
    EXPECT_TRUE(sampler.poll(0, kSteps - 16));
}

// Rings that wrap, and rings that are not full yet; more tokens than the sampler uploads in one
// piece. Halfway, a row is copied to another one.
TEST_F(SampleTest, LongWindowsMoveOnAndRowsCanBeCopied) {
    constexpr int kSteps = 600, kRows = 6, kMost = 40000;
    const std::size_t vocab = 9000;
    const Logits logits = some_rows(vocab, random_);
    const Tensor tensor = upload_rows({logits.begin() + 2, logits.begin() + 3}, kRows);
    Sampler sampler(*stream_, kRows, kMost);
    const int windows[kRows] = {65, 500, 4096, 4096, kMost, 64};
    const std::size_t before[kRows] = {30, 499, 4000, 10, kMost + 7, 64};
    std::vector<std::vector<std::int32_t>> history;
    std::vector<ops::SampleParams> params;
    std::vector<std::int64_t> positions;  // of the token drawn next
    std::vector<int> window_of(windows, windows + kRows);
    for (std::size_t row = 0; row < kRows; ++row) {
        params.push_back({row == 1 ? 0.0f : 0.9f, 50, 0.95f, 0, 1.5f, 9 + row});
        history.push_back(some_text(before[row], vocab, random_));
        positions.push_back(static_cast<std::int64_t>(before[row]));
        sampler.set_row(static_cast<int>(row), params[row], positions[row], history[row],
                        windows[row], nullptr);
    }
    const Graph graph = Graph::capture(*stream_, [&] { sampler.sample(ctx_, tensor); });
    for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps / 2) {
            const Ledger spent = ledger_;
            sampler.copy_row(5, 2);
            EXPECT_EQ(ledger_.since(spent).host_to_device().bytes, 0u);
            EXPECT_EQ(download(sampler.next_ids(), kRows)[5], history[2].back());
            history[5] = history[2];
            params[5] = params[2];
            positions[5] = positions[2];
            window_of[5] = window_of[2];
        }
        graph.launch(*stream_);
        sampler.replayed(kRows, nullptr);
        for (std::size_t row = 0; row < kRows; ++row) {
            std::vector<std::int32_t>& past = history[row];
            const std::size_t seen =
                std::min(past.size(), static_cast<std::size_t>(window_of[row]));
            const ops::Sampled want = on_cpu(logits[2], params[row], positions[row],
                                             std::span<const std::int32_t>(past).last(seen));
            const ops::Sampled got =
                sampler.wait(static_cast<int>(row), static_cast<std::uint64_t>(step));
            ASSERT_EQ(got.id, want.id) << "step " << step << " row " << row;
            past.push_back(got.id);
            ++positions[row];
        }
        if (step >= kSteps / 2) {
            EXPECT_EQ(history[5], history[2]);
        }
    }
    // Unused tokens are not uploaded.
    const Ledger spent = ledger_;
    sampler.set_row(0, plain(), 0, history[4], kMost, &ledger_);
    EXPECT_EQ(ledger_.since(spent).host_to_device().bytes, sizeof(SampleRow));
    EXPECT_THROW(sampler.set_row(0, plain(), 0, {}, kMost + 1, nullptr), ContractError);
    EXPECT_THROW(sampler.copy_row(0, kRows), ContractError);
}

TEST_F(SampleTest, ManyLaunchesAheadOfTheReader) {
    const Logits logits = some_rows(2000, random_);
    const Tensor tensor = upload_rows(logits, 2);
    Sampler sampler(*stream_, 4, 0, 64);
    sampler.set_row(0, plain(), 0, {}, 0, nullptr);
    sampler.set_row(1, plain(), 500, {}, 0, nullptr);
    const Graph graph = Graph::capture(*stream_, [&] { sampler.sample(ctx_, tensor); });
    for (int i = 0; i < 64; ++i) {
        graph.launch(*stream_);
        sampler.replayed(2, nullptr);
    }
    for (std::uint64_t step = 0; step < 64; ++step) {
        for (int row : {0, 1}) {
            EXPECT_EQ(sampler.wait(row, step).id,
                      on_cpu(logits[static_cast<std::size_t>(row)], plain(),
                             row * 500 + static_cast<std::int64_t>(step))
                          .id);
        }
    }
    // A row set again continues to count its steps, so old entries in the ring are recognised.
    sampler.set_row(0, plain(), 7, {}, 0, nullptr);
    sampler.sample(ctx_, tensor);
    EXPECT_EQ(sampler.steps(0), 65u);
    EXPECT_EQ(sampler.wait(0, 64).id, on_cpu(logits[0], plain(), 7).id);
    sampler.clear_row(0, nullptr);
    sampler.sample(ctx_, tensor);
    EXPECT_THROW(sampler.wait(0, 65), ContractError) << "nothing is drawn for it";
    EXPECT_GE(sampler.wait(1, 65).id, 0);
}

// A text that joins does not wait for the steps that are queued.
TEST_F(SampleTest, RowsAreSetWhileTheDeviceIsBusy) {
    const Logits logits = some_rows(500, random_);
    const Tensor tensor = upload_rows(logits, 1);
    Sampler sampler(*stream_, 4, 8, 256);
    struct Hold {
        std::atomic<bool> over{false};
        std::atomic<bool> let_go{false};
    } hold;
    const auto wait = [](void* of) {
        auto& it = *static_cast<Hold*>(of);
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!it.let_go && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        it.over = true;
    };
    ASSERT_EQ(cudaLaunchHostFunc(stream_->raw(), wait, &hold), cudaSuccess);
    for (int i = 0; i < 20; ++i) {
        sampler.set_row(0, plain(), 100 * i, {}, 0, nullptr);
        sampler.sample(ctx_, tensor);
        sampler.copy_row(1, 0);
        sampler.clear_row(0, nullptr);
    }
    EXPECT_FALSE(hold.over) << "an upload waited for the work that was queued before it";
    hold.let_go = true;
    // More rows than staging slots: an upload
    // waits for its slot, and no row is mixed up.
    for (int i = 20; i < 200; ++i) {
        sampler.set_row(0, plain(), 100 * i, {}, 0, nullptr);
        sampler.sample(ctx_, tensor);
    }
    for (std::uint64_t i = 0; i < 200; ++i) {
        EXPECT_EQ(sampler.wait(0, i).id,
                  on_cpu(logits[0], plain(), 100 * static_cast<std::int64_t>(i)).id);
    }
}

TEST_F(SampleTest, TheHostSeesTheCpusErrors) {
    Logits logits(2, std::vector<float>(100, 1.0f));
    logits[0][5] = kNan;
    std::fill(logits[1].begin(), logits[1].end(), -kInf);
    const Tensor tensor = upload_rows(logits, 2);
    Sampler sampler(*stream_, 2, 0);
    for (float temperature : {0.0f, 1.0f}) {
        ops::SampleParams params;
        params.temperature = temperature;
        for (int row : {0, 1}) sampler.set_row(row, params, 0, {}, 0, nullptr);
        EXPECT_EQ(sampler.kind(0, sampler.max_rows()),
                  temperature == 0 ? SampleKind::greedy : SampleKind::any);
        sampler.sample(ctx_, tensor);
        for (int row : {0, 1}) {
            std::string want = "no error", got = "no error";
            try {
                on_cpu(logits[static_cast<std::size_t>(row)], params, 0);
            } catch (const Error& error) {
                want = error.what();
            }
            try {
                sampler.wait(row, sampler.steps(row) - 1);
            } catch (const Error& error) {
                EXPECT_EQ(error.kind(), ErrorKind::input);
                got = error.what();
            }
            EXPECT_EQ(got, want);
            EXPECT_NE(got, "no error");
        }
    }
    EXPECT_THROW(sampler.set_row(0, {.temperature = -1}, 0, {}, 0, nullptr), Error);
    EXPECT_THROW(sampler.set_row(2, plain(), 0, {}, 0, nullptr), ContractError);
}

TEST_F(SampleTest, LedgerTimelineAndContract) {
    const Tensor tensor = upload_rows({std::vector<float>(5000, 1.0f)}, 3);
    Timeline timeline(4);
    ctx_.timeline = &timeline;
    timeline.reset(*stream_);
    run(tensor, std::vector<SampleRow>(3, row_of(plain(), 0)));
    const OpRecord& record = ledger_.op(OpKind::sample);
    EXPECT_EQ(record.calls, 1u);
    EXPECT_EQ(record.bytes_read, 3 * (20000 + sizeof(SampleRow)));
    EXPECT_EQ(record.bytes_written, 3 * 16u);
    EXPECT_EQ(record.flops, 4 * 15000u);
    const std::vector<Stage> stages = timeline.read(*stream_);
    ASSERT_EQ(stages.size(), 1u);
    EXPECT_GT(stages[0].work.seconds, 0);
    SampleState state;
    EXPECT_THROW(sample(ctx_, tensor, state), ContractError);
    state.rows = memory_.array<SampleRow>(3);
    EXPECT_THROW(sample(ctx_, {tensor.data, DType::f32, {15000}}, state), ContractError);
    EXPECT_THROW(sample(ctx_, tensor, state, SampleKind::any, 3), ContractError);
    EXPECT_THROW(sample(ctx_, tensor, state, SampleKind::any, 32), ContractError);
}

}  // namespace
}  // namespace mr::cuda::sample_cuda_test
