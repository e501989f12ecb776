// millrace-lab comm: exchanges between the ranks of a job, checked against plain sums, and their
// speed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/json.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "core/comm/comm.h"
#include "core/error.h"
#include "core/median.h"
#include "lab/experiments.h"
#include "lab/outcome.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct BenchCommOptions {
    std::vector<std::int64_t> sizes{1, 1000, 1 << 20, 1 << 24};  // floats
    int reps = 5;
    double timeout = 60;
    OutcomeOptions outcome;
};

// The data of rank `rank`: small integers, so that every order has the same sum.
float given(int rank, std::int64_t i) { return static_cast<float>((rank + 1) * (i % 13 - 6)); }

struct Measured {
    std::string name;
    std::int64_t count = 0;  // floats
    double seconds = 0;      // median over repetitions of the slowest rank
    std::uint64_t sent = 0;  // bytes, by this rank
};

// Runs work() on data from prepare(), `reps` times; right(data) checks each result.
Measured measure(comm::Comm& comm, const BenchCommOptions& options, const char* name,
                 std::int64_t count, const std::function<void(std::vector<float>&)>& prepare,
                 const std::function<void(std::vector<float>&)>& work,
                 const std::function<bool(const std::vector<float>&)>& right) {
    std::vector<double> seconds;
    std::vector<float> data(static_cast<std::size_t>(count));
    const std::uint64_t before = comm.sent_bytes();
    std::uint64_t around = 0;  // sent outside the work
    for (int i = 0; i < options.reps; ++i) {
        prepare(data);
        const std::uint64_t first = comm.sent_bytes();
        comm.barrier();
        around += comm.sent_bytes() - first;
        const auto start = std::chrono::steady_clock::now();
        work(data);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        const std::uint64_t last = comm.sent_bytes();
        const bool wrong = !right(data);
        if (comm.most(wrong ? 1 : 0) > 0) {
            throw Error::device({.field = fmt::format("{} of {} floats", name, count),
                                 .problem = fmt::format("a wrong result {}",
                                                        wrong ? "on this rank" : "on another rank"),
                                 .remedy = "the network or MPI is at fault; try another one"});
        }
        seconds.push_back(comm.most(took.count()));
        around += comm.sent_bytes() - last;
    }
    return {name, count, median(seconds),
            (comm.sent_bytes() - before - around) / static_cast<std::uint64_t>(options.reps)};
}

std::vector<Measured> measure_all(comm::Comm& comm, const BenchCommOptions& options) {
    std::vector<Measured> out;
    const int ranks = comm.size(), me = comm.rank();
    const std::int64_t all = std::int64_t{ranks} * (ranks + 1) / 2;
    const auto total = [&](std::int64_t i) { return static_cast<float>(all * (i % 13 - 6)); };
    for (const std::int64_t count : options.sizes) {
        const comm::Shards shards(count, 64, ranks);
        const auto of_rank = [&](int rank) {
            return [rank](std::vector<float>& data) {
                for (std::int64_t i = 0; i < std::ssize(data); ++i) {
                    data[static_cast<std::size_t>(i)] = given(rank, i);
                }
            };
        };
        const auto holds = [](std::int64_t begin, std::int64_t end,
                              std::function<float(std::int64_t)> expected) {
            return [begin, end, expected = std::move(expected)](const std::vector<float>& data) {
                for (std::int64_t i = begin; i < end; ++i) {
                    if (data[static_cast<std::size_t>(i)] != expected(i)) return false;
                }
                return true;
            };
        };
        out.push_back(measure(
            comm, options, "all-reduce", count, of_rank(me),
            [&](std::vector<float>& data) { comm.all_reduce(data); }, holds(0, count, total)));
        out.push_back(measure(
            comm, options, "reduce-scatter", count, of_rank(me),
            [&](std::vector<float>& data) { comm.reduce_scatter(data, shards); },
            holds(shards.begin(me), shards.end(me), total)));
        const auto of_owner = [&](std::int64_t i) {
            int owner = 0;
            while (i >= shards.end(owner)) ++owner;
            return given(owner, i);
        };
        out.push_back(measure(
            comm, options, "all-gather", count, of_rank(me),
            [&](std::vector<float>& data) { comm.all_gather(std::span<float>(data), shards); },
            holds(0, count, of_owner)));
        out.push_back(measure(
            comm, options, "broadcast", count, of_rank(me),
            [&](std::vector<float>& data) {
                comm.broadcast(std::as_writable_bytes(std::span(data)), ranks - 1);
            },
            holds(0, count, [&](std::int64_t i) { return given(ranks - 1, i); })));
    }
    return out;
}

int comm_bench(const BenchCommOptions& options, comm::Comm& comm) {
    check_outcome(options.outcome);
    if (comm.alone() && !options.outcome.json) {
        out("comm: 1 rank, which sends nothing: start it with mpirun -n N\n");
        return 0;
    }
    const std::vector<Measured> all = measure_all(comm, options);
    Json json = {{"experiment", "comm"}, {"ranks", comm.size()}, {"measured", Json::array()}};
    std::string text =
        fmt::format("comm: {}\n  {:<15}  {:>12}  {:>10}  {:>12}  {:>8}\n",
                    observe::counted(comm.size(), "rank"), "", "bytes", "us", "bytes sent", "GB/s");
    for (const Measured& m : all) {
        const auto bytes = static_cast<std::uint64_t>(m.count) * sizeof(float);
        const double rate = static_cast<double>(m.sent) / m.seconds / 1e9;
        json["measured"].push_back({{"what", m.name},
                                    {"bytes", bytes},
                                    {"us", m.seconds * 1e6},
                                    {"bytes_sent", m.sent},
                                    {"gb_s", rate}});
        text += fmt::format("  {:<15}  {:>12}  {:>10.1f}  {:>12}  {:>8.3f}\n", m.name, bytes,
                            m.seconds * 1e6, m.sent, rate);
    }
    if (comm.first()) show(options.outcome, json, text);
    return 0;
}

}  // namespace

void add_comm(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchCommOptions>();
    const Command command =
        lab.add_subcommand("comm", "Collectives between ranks: correctness and speed");
    command.add_option("--size", options->sizes, "Number of floats, one measurement each")
        .separated_by(',')
        .range(std::int64_t{0}, std::int64_t{1} << 32)
        .shows_default();
    command.add_option("--reps", options->reps, "Repetitions; the median counts")
        .range(1, 1000)
        .shows_default();
    command
        .add_option("--comm-timeout", options->timeout,
                    "Seconds after which a rank that does not answer counts as lost; 0: never")
        .range(0.0, 1e6)
        .shows_default();
    add_outcome_options(command, options->outcome);
    command.footer(
        "Examples:\n"
        "  mpirun -n 4 millrace-lab comm\n"
        "  srun -n 8 millrace-lab comm --size 16777216 --json\n"
        "Every result is held against a plain sum. Bytes sent and GB/s are those of the first "
        "rank,\nthe time that of the slowest.");
    command.callback([options, &action] {
        action = [options] {
            return as_rank(options->timeout,
                           [&](comm::Comm& comm) { return comm_bench(*options, comm); });
        };
    });
}

}  // namespace mr::cli
