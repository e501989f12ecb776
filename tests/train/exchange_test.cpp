// Gradients that ranks sum while they compute: ranks are threads here.
#include "train/parallel/exchange.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"
#include "model/grain_cases.h"
#include "model/io/source.h"
#include "sanitized.h"
#include "temp_folder.h"
#include "text/tokenizer.h"
#include "thread_messages.h"
#include "train/checkpoint.h"
#include "train/options.h"

namespace mr::train {
namespace {

using comm::on_ranks;

float value(int rank, std::int64_t i) {
    return static_cast<float>(static_cast<double>(i % 1009 + 1) / (3.0 + rank));
}

comm::Shards cut(std::int64_t count, int ranks) { return {count, 16, ranks}; }

// Pieces shorter and longer than the limit for packing, in buckets of one piece, of several, of
// all.
TEST(Exchange, SumsAreATreeOverRanks) {
    const std::vector<std::int64_t> sizes{1, 0, 7, 100003, 1024, 70000, 3};
    for (const int ranks : {2, 4}) {
        for (const std::int64_t bucket : {1, 300000, 1 << 30}) {
            on_ranks(ranks, [&](comm::Comm& comm) {
                Exchange exchange(comm, bucket);
                for (int step = 0; step < 2; ++step) {  // it can be reused
                    std::vector<std::vector<float>> pieces;
                    for (const std::int64_t size : sizes) {
                        std::vector<float>& piece = pieces.emplace_back(size);
                        for (std::int64_t i = 0; i < size; ++i) {
                            piece[static_cast<std::size_t>(i)] = value(comm.rank() + step, i);
                        }
                    }
                    for (auto& piece : pieces) {
                        exchange.add_up(piece.data(), cut(std::ssize(piece), ranks), true);
                    }
                    exchange.finish();
                    for (const auto& piece : pieces) {
                        for (std::int64_t i = 0; i < std::ssize(piece); ++i) {
                            const auto of = [&](int rank) { return value(rank + step, i); };
                            const float want =
                                ranks == 2 ? of(0) + of(1) : (of(0) + of(1)) + (of(2) + of(3));
                            ASSERT_EQ(piece[static_cast<std::size_t>(i)], want);
                        }
                    }
                    const double mine[] = {comm.rank() + 0.5, -1.0};
                    const std::vector<double> all = exchange.gather(mine);
                    ASSERT_EQ(all.size(), 2u * static_cast<std::size_t>(ranks));
                    EXPECT_EQ(all[2], 1.5);
                }
                EXPECT_GT(exchange.busy_seconds(), 0);
            });
        }
    }
}

// Each rank has its own share of the sum, and its old values elsewhere; then all ranks have all.
TEST(Exchange, SharesAreCutAtBlocks) {
    for (const std::int64_t size : {1, 16, 17, 100003}) {
        on_ranks(4, [&](comm::Comm& comm) {
            Exchange exchange(comm, 1);
            const comm::Shards shards = cut(size, 4);
            std::vector<float> data(static_cast<std::size_t>(size));
            for (std::int64_t i = 0; i < size; ++i) {
                data[static_cast<std::size_t>(i)] = value(comm.rank(), i);
            }
            exchange.add_up(data.data(), shards, false);
            exchange.finish();
            for (std::int64_t i = 0; i < size; ++i) {
                const bool mine = i >= shards.begin(comm.rank()) && i < shards.end(comm.rank());
                const float sum = (value(0, i) + value(1, i)) + (value(2, i) + value(3, i));
                ASSERT_EQ(data[static_cast<std::size_t>(i)], mine ? sum : value(comm.rank(), i));
            }
            exchange.wait(exchange.collect(data.data(), shards, sizeof(float)));
            for (std::int64_t i = 0; i < size; ++i) {
                ASSERT_EQ(data[static_cast<std::size_t>(i)],
                          (value(0, i) + value(1, i)) + (value(2, i) + value(3, i)));
            }
        });
    }
}

// Work is done in order, and waiting for one piece waits for those before it, including those of an
// open bucket, but not for later ones.
TEST(Exchange, ATicketIsOfAllThatWasBegunBefore) {
    on_ranks(2, [&](comm::Comm& comm) {
        Exchange exchange(comm, 1 << 30);  // no bucket fills up by itself
        std::vector<float> sums(40, static_cast<float>(comm.rank() + 1));
        std::vector<std::uint16_t> shares(40, static_cast<std::uint16_t>(comm.rank() + 1));
        const comm::Shards shards = cut(40, 2);
        const auto first = exchange.add_up(sums.data(), shards, false);
        exchange.wait(first);
        EXPECT_EQ(sums[comm.rank() == 0 ? 0 : 39], 3.0f);
        EXPECT_EQ(sums[comm.rank() == 0 ? 39 : 0], static_cast<float>(comm.rank() + 1));
        const auto second = exchange.add_up(sums.data(), shards, false);
        const auto third = exchange.collect(shares.data(), shards, sizeof shares[0]);
        EXPECT_LT(first, second);
        EXPECT_LT(second, third);
        exchange.wait(third);
        EXPECT_EQ(sums[comm.rank() == 0 ? 0 : 39], comm.rank() == 0 ? 5.0f : 4.0f);
        EXPECT_EQ(shares.front(), 1);
        EXPECT_EQ(shares.back(), 2);
        exchange.wait(first);  // again: it is done
        exchange.finish();
        // It takes as many bytes as it says.
        const comm::Shards pieces[] = {shards};
        EXPECT_LE(exchange.memory_taken(), exchange.memory_bytes(pieces, false));
        EXPECT_GT(exchange.memory_taken(), 0u);
    });
}

// Ranks as threads: the result of some steps.
struct Trained {
    std::vector<float> params, moments;
    std::vector<double> losses;  // of steps, with norms, and of a validation
};
constexpr int kGrains = 4;
const int kSteps = test::sanitized() ? 2 : 3;

struct TrainedBy {
    int ranks, zero;
    bool bf16_masters = false;
};

// The global number of a rank's grain `i`.
int grain_of(const TrainedBy& by, int rank, int i) {
    return by.ranks > 1 && by.zero >= 2 ? i * by.ranks + rank : rank * kGrains / by.ranks + i;
}

Trained train_by(const model::Model& model, const TrainedBy& by) {
    Trained out;
    const model::ModelSpec spec = model::trainable_spec(model.spec);
    const double scale = 1.0 / (kGrains * test::kGrainSequences * test::kGrainSeq);
    on_ranks(by.ranks, [&](comm::Comm& comm) {
        Exchange exchange(comm, 10000);
        const model::TrainEngineOptions options{
            .threads = 1,
            .shape = {.sequences = test::kGrainSequences, .seq = test::kGrainSeq},
            .bf16_masters = by.bf16_masters,
            .grains = kGrains / by.ranks,
            .apart = true,
            .exchange = by.ranks > 1 ? &exchange : nullptr,
            .zero = by.zero};
        model::TrainEngine engine(spec, options);
        engine.load(model);
        std::vector<double> mine;
        for (int step = 1; step <= kSteps; ++step) {
            for (int i = 0; i < kGrains / by.ranks; ++i) {
                test::put_grain(engine, step * kGrains + grain_of(by, comm.rank(), i));
                engine.accumulate(0, scale);
            }
            ops::AdamW with;
            with.step = step;
            with.clip = 0.1f;
            const auto result = engine.update(with);
            mine.push_back(result.loss);
            mine.push_back(result.grad_norm);
            test::put_grain(engine, 1000);
            mine.push_back(engine.evaluate(0));
        }
        EXPECT_EQ(engine.shares_state(), by.zero > 0 && by.ranks > 1);
        if (by.ranks > 1) {
            std::uint64_t planned = 0;
            for (const MemoryPlan::Item& item : engine.plan().items()) {
                if (item.name == "exchange") planned = item.bytes;
            }
            EXPECT_LE(exchange.memory_taken(), planned);
            EXPECT_EQ(engine.ops().allocated() + planned, engine.plan().total());
        }
        if (!comm.first() && engine.shares_state()) return engine.serve();
        if (!comm.first()) return;
        const auto count = static_cast<std::size_t>(engine.layout().count);
        out.params = test::params_of(engine);
        out.moments.resize(2 * count);
        engine.get_state(nullptr, out.moments.data(), out.moments.data() + count);
        if (engine.shares_state()) engine.end_serving();
        out.losses = mine;
    });
    return out;
}

// Four grains on one rank, on two and on four, with any sharding: the same parameters, moments and
// losses, step after step.
TEST(Exchange, RanksTrainAsOneDoes) {
    for (const char* const family : {"gpt2", "llama2"}) {  // a tied head, an untied one
        if (test::sanitized() && std::string_view(family) == "llama2") continue;
        const model::Model model =
            model::load_model(std::string(MR_SOURCE_DIR) + "/tests/reference/" + family);
        std::optional<Trained> one;
        for (const TrainedBy by : {TrainedBy{1, 0},
                                   {2, 0},
                                   {4, 0},
                                   {2, 1},
                                   {4, 1},
                                   {2, 2},
                                   {4, 2},
                                   {2, 3},
                                   {4, 3},
                                   {1, 0, true},
                                   {4, 3, true}}) {
            SCOPED_TRACE(std::string(family) + ", " + std::to_string(by.ranks) + " ranks, ZeRO " +
                         std::to_string(by.zero));
            Trained some = train_by(model, by);
            if (by.ranks == 1) one = std::move(some);
            if (by.ranks == 1) continue;
            EXPECT_EQ(some.losses, one->losses);
            EXPECT_EQ(some.params, one->params);
            EXPECT_EQ(some.moments, one->moments);
        }
    }
}

// Parameters, gradients and optimizer state of one of `ranks` ranks: sharded, and with buffers.
struct Held {
    double shares = 0, all = 0;  // bytes
};
Held held_by(const model::ModelSpec& spec, int ranks, int zero) {
    Held out;
    on_ranks(ranks, [&](comm::Comm& comm) {
        Exchange exchange(comm, 25 << 20);
        const model::TrainEngineOptions options{.threads = 1,
                                                .shape = {.sequences = 1, .seq = 16},
                                                .apart = ranks > 1,
                                                .exchange = ranks > 1 ? &exchange : nullptr,
                                                .zero = zero};
        std::uint64_t in_shares = 0, buffers = 0;
        const MemoryPlan plan = model::TrainEngine::plan(spec, options);
        for (const MemoryPlan::Item& item : plan.items()) {
            if (item.name == "parameters" || item.name == "gradients" || item.name == "optimizer") {
                in_shares += item.bytes;
            } else if (item.name == "unit buffers" || item.name == "exchange") {
                buffers += item.bytes;
            }
        }
        // For the rank with the most.
        const double shares = comm.most(static_cast<double>(in_shares));
        const double all = comm.most(static_cast<double>(in_shares + buffers));
        if (comm.first()) out = {shares, all};
    });
    return out;
}

TEST(Exchange, FourRanksHoldAQuarterAndBuffers) {
    for (const char* const tied : {"yes", "no"}) {
        const model::ModelSpec spec =
            new_spec({.dim = 256, .layers = 16, .heads = 8, .tied = tied}, 512, 64);
        const Held one = held_by(spec, 1, 0);
        double before = one.shares;
        for (const int zero : {1, 2, 3}) {
            const Held four = held_by(spec, 4, zero);
            EXPECT_LT(four.shares, before) << zero;
            before = four.shares;
            if (zero < 3) continue;
            EXPECT_LE(four.shares, 0.26 * one.shares);
            EXPECT_LE(four.all, 0.40 * one.all);
        }
    }
}

// A missing rank is named, by whichever call waits for it.
TEST(Exchange, ARankThatStaysAwayIsNamed) {
    on_ranks(
        2,
        [](comm::Comm& comm) {
            if (comm.rank() == 1) return;
            Exchange exchange(comm, 1);
            std::vector<float> piece(10);
            exchange.add_up(piece.data(), cut(10, 2), true);
            exchange.add_up(piece.data(), cut(10, 2), true);  // waits after the one that fails
            try {
                exchange.finish();
                FAIL() << "nothing was thrown";
            } catch (const Error& error) {
                EXPECT_NE(std::string(error.what()).find("rank 1 has not answered"),
                          std::string::npos)
                    << error.what();
            }
        },
        0.2);
}

// A rank lost during a save ends the run: unlike a full disk, it will not recover.
TEST(Exchange, ARankThatIsLostInASaveIsNotTakenForAFault) {
    const std::string family = std::string(MR_SOURCE_DIR) + "/tests/reference/llama2";
    const model::Model model = model::load_model(family);
    const std::string file = std::string(MR_SOURCE_DIR) + "/tests/reference/llama2/tokenizer.json";
    const std::string json = read_text_file(file);
    const auto tokenizer = text::Tokenizer::from_json(json, file);
    const mr::test::TempFolder folder;
    on_ranks(
        2,
        [&](comm::Comm& comm) {
            Exchange exchange(comm, 10000);
            const model::TrainEngineOptions options{.threads = 1,
                                                    .shape = {.sequences = 1, .seq = 8},
                                                    .grains = 1,
                                                    .apart = true,
                                                    .exchange = &exchange,
                                                    .zero = 1};
            model::TrainEngine engine(model::trainable_spec(model.spec), options);
            engine.load(model);
            if (comm.rank() == 1) return;  // it serves nothing
            TrainState state;
            state.step = 2;
            Checkpoints checkpoints(folder / "run");
            checkpoints.prepare();
            EXPECT_THROW(checkpoints.save(engine, state, *tokenizer, json), comm::LostRank);
            EXPECT_TRUE(checkpoints.steps().empty());
            EXPECT_THROW(comm.barrier(), comm::LostRank);  // nothing waits any more
        },
        1);
}

}  // namespace
}  // namespace mr::train
