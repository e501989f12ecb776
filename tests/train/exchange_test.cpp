// Gradients that ranks add up while they compute: ranks are threads here.
#include "train/parallel/exchange.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "model/grain_cases.h"
#include "thread_messages.h"

namespace mr::train {
namespace {

using comm::on_ranks;

float value(int rank, std::int64_t i) {
    return static_cast<float>(static_cast<double>(i % 1009 + 1) / (3.0 + rank));
}

comm::Shards cut(std::int64_t count, int ranks) { return {count, 16, ranks}; }

// Pieces shorter and longer than what travels alone, in buckets of one piece, of several, of all.
TEST(Exchange, SumsAreATreeOverRanks) {
    const std::vector<std::int64_t> sizes{1, 0, 7, 100003, 1024, 70000, 3};
    for (const int ranks : {2, 4}) {
        for (const std::int64_t bucket : {1, 300000, 1 << 30}) {
            on_ranks(ranks, [&](comm::Comm& comm) {
                Exchange exchange(comm, bucket);
                for (int step = 0; step < 2; ++step) {  // it can be used again
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

// Each rank has its own share of the sum, and others what they had; then all have all.
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
            exchange.collect(data.data(), shards);
            for (std::int64_t i = 0; i < size; ++i) {
                ASSERT_EQ(data[static_cast<std::size_t>(i)],
                          (value(0, i) + value(1, i)) + (value(2, i) + value(3, i)));
            }
        });
    }
}

// Four grains on one rank, on two and on four: the same parameters and losses, step after step.
TEST(Exchange, RanksTrainAsOneDoes) {
    constexpr int kGrains = 4, kSteps = 3;
    for (const char* const family : {"llama2", "gpt2"}) {  // an own head, a tied one
        SCOPED_TRACE(family);
        const model::Model model =
            model::load_model(std::string(MR_SOURCE_DIR) + "/tests/reference/" + family);
        const model::ModelSpec spec = model::trainable_spec(model.spec);
        const double scale = 1.0 / (kGrains * test::kGrainSequences * test::kGrainSeq);
        std::vector<float> params[6], moments[6];
        std::vector<double> losses[6];
        int which = 0;
        for (const auto& [ranks, zero] :
             {std::pair{1, 0}, {2, 0}, {4, 0}, {2, 1}, {4, 1}, {1, 1}}) {
            on_ranks(ranks, [&](comm::Comm& comm) {
                Exchange exchange(comm, 10000);
                model::TrainEngineOptions options{
                    .threads = 1,
                    .shape = {.sequences = test::kGrainSequences, .seq = test::kGrainSeq},
                    .grains = kGrains / ranks,
                    .apart = true,
                    .exchange = ranks > 1 ? &exchange : nullptr,
                    .zero = zero};
                model::TrainEngine engine(spec, options);
                engine.load(model);
                std::vector<double> mine;
                for (int step = 1; step <= kSteps; ++step) {
                    const int here = kGrains / ranks;
                    for (int i = 0; i < here; ++i) {
                        test::put_grain(engine, step * kGrains + comm.rank() * here + i);
                        engine.accumulate(0, scale);
                    }
                    ops::AdamW with;
                    with.step = step;
                    with.clip = 0.1f;
                    const auto result = engine.update(with);
                    mine.push_back(result.loss);
                    mine.push_back(result.grad_norm);
                }
                EXPECT_EQ(engine.shares_state(), zero > 0 && ranks > 1);
                if (!comm.first() && engine.shares_state()) return engine.serve();
                const auto count = static_cast<std::size_t>(engine.layout().count);
                std::vector<float> m(count), v(count);
                engine.get_state(nullptr, m.data(), v.data());
                if (!comm.first()) return;
                if (engine.shares_state()) engine.end_serving();
                losses[which] = mine;
                params[which] = test::params_of(engine);
                moments[which] = m;
                moments[which].insert(moments[which].end(), v.begin(), v.end());
            });
            EXPECT_EQ(losses[which], losses[0]) << ranks << " ranks, ZeRO " << zero;
            EXPECT_EQ(params[which], params[0]) << ranks << " ranks, ZeRO " << zero;
            EXPECT_EQ(moments[which], moments[0]) << ranks << " ranks, ZeRO " << zero;
            ++which;
        }
    }
}

// A rank that does not come is named, by whichever call waits for the others.
TEST(Exchange, ARankThatStaysAwayIsNamed) {
    on_ranks(
        2,
        [](comm::Comm& comm) {
            if (comm.rank() == 1) return;
            Exchange exchange(comm, 1);
            std::vector<float> piece(10);
            exchange.add_up(piece.data(), cut(10, 2), true);
            exchange.add_up(piece.data(), cut(10, 2), true);  // waits behind the one that fails
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

}  // namespace
}  // namespace mr::train
