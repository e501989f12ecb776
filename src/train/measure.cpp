#include "train/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/median.h"
#include "core/philox.h"
#include "train/noise.h"

namespace mr::train {
namespace {

using Clock = std::chrono::steady_clock;

// Random ids of batch `number`, of the whole vocabulary.
void fill(std::span<std::int32_t> host, int vocab, std::uint64_t seed, std::uint64_t number) {
    for (std::size_t i = 0; i < host.size(); i += 4) {
        const auto words = philox(seed, i, number);
        for (std::size_t k = 0; k < 4 && i + k < host.size(); ++k) {
            host[i + k] = static_cast<std::int32_t>(words[k] % static_cast<std::uint32_t>(vocab));
        }
    }
}

}  // namespace

double TrainMeasured::step_seconds() const { return median(seconds); }
double TrainMeasured::best_seconds() const {
    return seconds.empty() ? 0 : *std::min_element(seconds.begin(), seconds.end());
}
double TrainMeasured::tokens_per_second() const {
    return step_seconds() > 0 ? static_cast<double>(tokens) / step_seconds() : 0;
}
double TrainMeasured::flops_per_second() const {
    return tokens_per_second() * static_cast<double>(flops_per_token);
}

TrainMeasured measure_training(const model::ModelSpec& spec, const TrainMeasureOptions& options,
                               const Progress& progress) {
    MR_CHECK(options.steps > 0 && options.warmup >= 0 && options.accumulate > 0,
             "at least one step of at least one pass is measured");
    MR_CHECK(options.accumulate % options.engine.grains == 0, "grains are of whole passes");
    model::TrainEngine engine(spec, options.engine);
    engine.init(options.seed);
    TrainMeasured out;
    out.compute = engine.ops().compute_type();
    out.tokens = options.engine.shape.half() * options.accumulate;
    out.flops_per_token = model::TrainEngine::flops_per_token(spec, options.engine.shape.seq);
    out.plan = engine.plan();

    std::uint64_t number = 0;
    int slot = 0;
    const model::TrainShape& shape = engine.options().shape;
    std::vector<std::int32_t> ids(shape.block > 0 ? static_cast<std::size_t>(shape.half()) : 0);
    const auto load = [&] {
        const std::span<std::int32_t> host = engine.ops().host_slot(slot);
        if (shape.block == 0) {  // inputs, then targets
            fill(host, spec.vocab, options.seed, number++);
            engine.put(slot);
            return;
        }
        const std::int32_t mask = spec.diffusion->mask;
        fill(ids, spec.vocab, options.seed, number);
        std::replace(ids.begin(), ids.end(), mask, mask > 0 ? 0 : 1);  // no mask in a text
        engine.put(slot, add_noise({host, shape}, shape, ids, shape.sequences, number++,
                                   {.seed = options.seed, .mask = mask}));
    };
    load();
    const int all = options.warmup + options.steps;
    const auto run = [&](int step) {
        const auto start = Clock::now();
        for (int pass = 0; pass < options.accumulate; ++pass) {
            const bool ends = (pass + 1) % (options.accumulate / options.engine.grains) == 0;
            engine.accumulate(slot, 1.0 / static_cast<double>(out.tokens), ends);
            slot = (slot + 1) % model::TrainOps::kSlots;
            load();  // while that computes
        }
        ops::AdamW adamw;
        adamw.lr = 1e-4f;
        adamw.clip = 1.0f;
        adamw.step = step;
        out.last_loss = engine.update(adamw).loss;  // waits for the device
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    for (int step = 1; step <= all; ++step) {
        const double seconds = run(step);
        if (step == 1) out.first_loss = out.last_loss;
        if (step > options.warmup) out.seconds.push_back(seconds);
        if (progress) {
            progress("training", static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(all));
        }
    }
    const Ledger before = engine.ledger();
    const double last = out.last_loss;
    engine.ops().watch();
    run(all + 1);
    out.stages = engine.ops().watched();
    out.ledger = engine.ledger().since(before);
    out.last_loss = last;
    out.memory_taken = engine.ops().memory_taken();
    return out;
}

int largest_batch(const model::ModelSpec& spec, model::TrainEngineOptions options, double share) {
    constexpr int kMost = 1 << 16;
    MR_CHECK(options.cuda, "the memory of a machine is not for one batch");
    const auto ops = model::make_cuda_train_ops(options.threads);
    const double room = share * static_cast<double>(ops->memory_bytes());
    const auto bytes = [&](int batch) {
        options.shape.sequences = batch;
        return model::TrainEngine::plan(spec, options).total();
    };
    int fits = 0, over = 1;
    while (over < kMost && static_cast<double>(bytes(over)) <= room) fits = over, over *= 2;
    while (over - fits > 1) {
        const int middle = fits + (over - fits) / 2;
        (static_cast<double>(bytes(middle)) <= room ? fits : over) = middle;
    }
    if (fits > 0) return fits;
    throw Error::device(
        {.field = "--batch",
         .value = "auto",
         .problem = fmt::format("one sequence of {} tokens needs {}, and {} of {} may be taken",
                                options.shape.seq, format_bytes(bytes(1)),
                                format_bytes(static_cast<std::uint64_t>(room)),
                                format_bytes(ops->memory_bytes())),
         .remedy = "use a smaller model, a shorter --seq, or --recompute full"});
}

}  // namespace mr::train
