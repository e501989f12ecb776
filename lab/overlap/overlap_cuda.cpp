#include "lab/overlap/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "core/median.h"
#include "core/philox.h"
#include "lab/overlap/ghost_exchange.h"
#include "lab/streams/arrays.h"
#include "model/train/train_engine.h"

namespace mr::overlap {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRank = 0;
constexpr int kTurn = 5;  // counted steps per turn

class Measurement {
  public:
    Measurement(const model::ModelSpec& spec, const Options& options, const Progress& progress)
        : options_(options),
          progress_(progress),
          exchange_(kRank, options.ranks),
          engine_(spec, engine_options()),
          order_(backward_order(engine_.layout())),
          total_(1 + 2 * options.links.size() + options.occupy.size()) {
        engine_.init(options.seed);
        for (int slot = 0; slot < model::TrainOps::kSlots; ++slot) fill(slot);
        engine_.put(slot_);
    }

    Report run() {
        Report report;
        report.parameters = engine_.spec().parameters();
        report.bytes = ready_bytes(order_);
        tell("warming up");
        for (int i = 0; i < options_.warmup; ++i) step();
        take_own();
        for (const double rate : options_.links) report.links.push_back(measured(rate));
        for (const int count : options_.occupy) report.occupied.push_back(occupied(count));
        return report;
    }

  private:
    model::TrainEngineOptions engine_options() {
        model::TrainEngineOptions out;
        out.cuda = true;
        out.shape.sequences = options_.batch;
        out.shape.seq = options_.seq;
        out.exchange = &exchange_;
        return out;
    }

    // The same batch in every step, so that every step has the same gradients.
    void fill(int slot) {
        const std::span<std::int32_t> host = engine_.ops().host_slot(slot);
        const auto vocab = static_cast<std::uint32_t>(engine_.spec().vocab);
        for (std::size_t i = 0; i < host.size(); ++i) {
            host[i] = static_cast<std::int32_t>(philox(options_.seed, i, 0)[0] % vocab);
        }
    }
    void pass() {
        engine_.accumulate(slot_, 1.0 / static_cast<double>(engine_.options().shape.half()));
        slot_ = (slot_ + 1) % model::TrainOps::kSlots;
        engine_.ops().host_slot(slot_);  // waits until it was sent
        engine_.put(slot_);
    }
    // The optimizer runs at a rate of 0: parameters do not change.
    void update() {
        ops::AdamW adamw;
        adamw.lr = 0;
        adamw.step = ++steps_;
        engine_.update(adamw);  // waits for the device
    }
    double step() {
        const auto start = Clock::now();
        pass();
        update();
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

    std::vector<float> gradients() {
        std::vector<float> out(static_cast<std::size_t>(engine_.layout().count));
        engine_.read_grads(out);
        return out;
    }

    // The gradients of a step without an exchange, their places, and the expected sums.
    void take_own() {
        exchange_.note();
        pass();
        own_ = gradients();
        update();
        gradients_ = exchange_.noted();
        MR_CHECK(gradients_.size() == order_.size(),
                 "the backward pass has the order of its units");
        for (std::size_t i = 0; i < order_.size(); ++i) {
            MR_CHECK(gradients_[i].shards.count() == order_[i].end - order_[i].begin,
                     "the backward pass has the order of its units");
            gradients_[i].begin = order_[i].begin;
        }
        sums_ = expected_sums(own_, kRank, options_.ranks, engine_.pool());
    }

    // One exchange, from poisoned memory, with every result compared.
    void check(GhostLink& link, double rate) {
        const std::string what =
            fmt::format("gradients after the exchange at {:g} GB/s", rate / 1e9);
        link.record(sums_, engine_.pool());
        link.poison();
        exchange_.use(&link);
        pass();
        exchange_.finish();
        const std::vector<float> got = gradients();
        update();
        exchange_.use(nullptr);
        streams::require_same_bits(got.data(), sums_.data(), got.size(), what);
        link.require_left(own_, sums_);
    }

    LinkResult measured(double rate) {
        LinkResult out;
        const LinkOptions how{.rate = rate,
                              .host = rate <= kMostThroughHost,
                              .rank = kRank,
                              .bucket_bytes = options_.bucket_bytes};
        GhostLink::host_plan(gradients_, how)
            .require(cpu_info().memory_bytes, "use a smaller model, or a link above 64 GB/s");
        tell("comparing bits");
        GhostLink link(*engine_.ops().stream(), gradients_, how);
        check(link, rate);
        tell("measuring links");
        out.rate = rate;
        out.host = how.host;
        out.buckets = static_cast<int>(link.buckets().size());
        out.sent_bytes = link.sent_bytes();
        out.link_seconds = link.link_seconds();
        out.times = times_of(link);
        out.by_engines = link.by_engines();
        check(link, rate);
        return out;
    }

    // Several steps without the exchange, then several with it, in turn: a GPU that becomes slower
    // or faster meanwhile does so for both. The first ones of a turn do not count, and nothing
    // comes between: a GPU at its power limit is faster for a step after one in which it rested.
    // After exchanges alone a step of gpt2 took 50.0 ms, after other steps 54.7.
    Times times_of(GhostLink& link) {
        std::vector<double> compute, both, alone, ready, last;
        const std::size_t all = link.buckets().size();
        std::size_t cut = 0;  // first bucket with gradients of the last operation
        while (cut < all && !order_[link.buckets()[cut].end - 1].last) ++cut;
        const auto turn = [&](GhostLink* with, std::vector<double>& to) {
            exchange_.use(with);
            for (int i = -options_.warmup; i < std::min(kTurn, options_.steps); ++i) {
                const double seconds = step();
                if (i >= 0) to.push_back(seconds);
            }
        };
        for (int i = 0; i < options_.steps; i += kTurn) {
            turn(nullptr, compute);
            turn(&link, both);
        }
        const auto repeat = [&](const auto& one) {
            for (int i = 0; i < options_.warmup + options_.steps; ++i) one(i >= options_.warmup);
        };
        const auto add = [](bool counts, std::vector<double>& to, double seconds) {
            if (counts) to.push_back(seconds);
        };
        repeat([&](bool counts) {
            add(counts, alone, link.alone(0, all));
            add(counts, ready, link.alone(0, cut));
            add(counts, last, link.alone(cut, all));
        });
        exchange_.use(nullptr);
        clear();
        return {.compute = median(compute),
                .communication = median(alone),
                .both = median(both),
                .ready = median(ready),
                .last = median(last)};
    }

    // An exchange alone leaves sums in the memory where a step adds its gradients.
    void clear() { update(); }

    OccupiedResult occupied(int multiprocessors) {
        tell("occupying multiprocessors");
        Occupier occupier(*engine_.ops().stream(), multiprocessors);
        exchange_.occupy(&occupier);
        std::vector<double> seconds;
        for (int i = 0; i < options_.warmup + options_.steps; ++i) {
            const double took = step();
            if (i >= options_.warmup) seconds.push_back(took);
        }
        exchange_.occupy(nullptr);
        return {multiprocessors, median(seconds),
                occupier.held_seconds() / (options_.warmup + options_.steps)};
    }

    void tell(const char* what) {
        if (progress_) progress_(what, done_++, total_);
    }

    const Options& options_;
    const Progress& progress_;
    GhostExchange exchange_;  // must outlive the engine
    model::TrainEngine engine_;
    std::vector<ReadyRange> order_;
    std::vector<Gradient> gradients_;
    std::vector<float> own_, sums_;  // [count]
    std::int64_t steps_ = 0;
    int slot_ = 0;
    std::uint64_t done_ = 0, total_;
};

}  // namespace

Report measure(const model::ModelSpec& spec, const Options& options, const Progress& progress) {
    const cuda::DeviceInfo gpu = cuda::require_device();
    for (const int count : options.occupy) {
        if (count < gpu.multiprocessors) continue;
        throw Error::usage({.field = "--occupy",
                            .value = fmt::format("{}", count),
                            .problem = fmt::format("leaves nothing of the GPU's {} multiprocessors",
                                                   gpu.multiprocessors),
                            .remedy = "give fewer"});
    }
    Report report = Measurement(spec, options, progress).run();
    report.gpu = gpu.name;
    report.multiprocessors = gpu.multiprocessors;
    return report;
}

}  // namespace mr::overlap
