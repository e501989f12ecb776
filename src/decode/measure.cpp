#include "decode/measure.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "core/error.h"
#include "core/median.h"
#include "core/splitmix.h"
#include "decode/loop.h"
#include "decode/open_sequence.h"
#include "observe/device_bandwidth.h"
#include "observe/units.h"

namespace mr::decode {
namespace {

using observe::ratio;
using Clock = std::chrono::steady_clock;

// Any ids will do: the work does not depend on them. They are spread over the vocabulary so that
// embedding rows differ.
std::vector<std::int32_t> made_up_prompt(const model::Engine& engine, int tokens) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>((i * 7919 + 1) %
                                           static_cast<std::size_t>(engine.model().spec.vocab));
    }
    return ids;
}

void check(const model::Engine& engine, const MeasureOptions& options, std::int64_t positions) {
    MR_CHECK(options.prompt > 0 && options.steps > 0 && options.repetitions > 0,
             "there is something to measure");
    if (options.stream || positions <= engine.options().context) return;
    throw Error::input(
        {.field = "--ctx",
         .value = std::to_string(engine.options().context),
         .problem = "the measurement needs " + std::to_string(positions) + " positions of context",
         .remedy = "raise it, or lower --prompt or -n"});
}

template <typename Once>
Measured repeat(model::Engine& engine, const MeasureOptions& options, std::int64_t tokens,
                const Progress& progress, Once&& once) {
    Measured out;
    out.tokens = tokens;
    const int total = options.warmup + options.repetitions;
    for (int i = 0; i < total; ++i) {
        if (progress) {
            progress("measuring", static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(total));
        }
        out.read_bandwidth = std::max(out.read_bandwidth, read_bandwidth(engine));
        const Ledger before = engine.ledger();
        const double seconds = once();
        if (i < options.warmup) continue;
        out.seconds.push_back(seconds);
        out.ledger = engine.ledger().since(before);
    }
    return out;
}

}  // namespace

Tensor run_prompt(model::Engine& engine, model::SeqId seq, std::span<const std::int32_t> prompt) {
    const auto chunk = static_cast<std::size_t>(engine.options().max_batch);
    Tensor logits;
    for (std::size_t i = 0; i < prompt.size(); i += chunk) {
        const auto part = prompt.subspan(i, std::min(chunk, prompt.size() - i));
        const bool last = i + part.size() == prompt.size();
        const model::BatchItem item = model::prompt_item(
            seq, part, static_cast<std::int64_t>(prompt.size()),
            last ? model::BatchItem::Logits::last : model::BatchItem::Logits::none);
        logits = engine.submit({&item, 1});
    }
    return logits;
}

double Measured::median_seconds() const { return median(seconds); }
double Measured::best_seconds() const {
    return seconds.empty() ? 0 : *std::min_element(seconds.begin(), seconds.end());
}
double Measured::tokens_per_second() const {
    return ratio(static_cast<double>(tokens), median_seconds());
}
double Measured::best_tokens_per_second() const {
    return ratio(static_cast<double>(tokens), best_seconds());
}
double Measured::bytes_per_token() const {
    return ratio(static_cast<double>(ledger.total().bytes_read), static_cast<double>(tokens));
}
double Measured::bytes_per_second() const {
    return ratio(static_cast<double>(ledger.total().bytes_read), median_seconds());
}
double Measured::best_bytes_per_second() const {
    return ratio(static_cast<double>(ledger.total().bytes_read), best_seconds());
}
double Measured::flops_per_second() const {
    return ratio(static_cast<double>(ledger.total().flops), median_seconds());
}

std::vector<std::int32_t> made_up_ids(int count, std::int64_t vocab) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>(splitmix(i) % static_cast<std::uint64_t>(vocab));
    }
    return ids;
}

double read_bandwidth(const model::Engine& engine) {
    return observe::ceilings_of(engine.options().cuda, *engine.context().pool, 0.1).read;
}

Measured measure_decode(model::Engine& engine, const MeasureOptions& options,
                        const Progress& progress) {
    const std::int64_t positions = std::int64_t{options.prompt} + options.steps;
    check(engine, options, positions);
    const std::vector<std::int32_t> prompt = made_up_prompt(engine, options.prompt);
    std::vector<std::unique_ptr<OpenSequence>> open;
    std::vector<DecodeRow> rows;
    for (int i = 0; i < options.batch; ++i) {
        open.push_back(std::make_unique<OpenSequence>(engine.cache()));
        DecodeRow row;
        row.seq = open.back()->id();
        row.params.temperature = 0;
        row.most = options.steps;
        rows.push_back(row);
        if (options.stream) {
            engine.cache().set_stream(row.seq, options.stream);
            if (!engine.try_reserve(row.seq, 0, model::Engine::kMostPositions)) {
                throw Error::device({.field = "--batch",
                                     .value = std::to_string(options.batch),
                                     .problem = "the cache has no room for so many windows",
                                     .remedy = "use fewer, or a larger --pool"});
            }
        }
        run_prompt(engine, row.seq, std::span(prompt).first(prompt.size() - 1));
    }
    std::vector<model::BatchItem> last;
    last.reserve(rows.size());
    for (const DecodeRow& row : rows) {
        last.push_back({.seq = row.seq, .tokens = std::span(prompt).last(1)});
    }
    const auto begin_again = [&] {
        for (const DecodeRow& row : rows) {
            if (!options.stream) engine.cache().truncate(row.seq, options.prompt - 1);
        }
    };
    Measured out =
        repeat(engine, options, std::int64_t{options.steps} * options.batch, progress, [&] {
            begin_again();
            const auto start = Clock::now();
            // The prompt's last token is the first step; the last token drawn is not fed back.
            DecodeLoop loop(engine, engine.submit(last), rows);
            for (int i = 0; i < options.steps; ++i) {
                if (options.churn) loop.replace(static_cast<std::size_t>(i % options.batch));
                loop.next();
            }
            return std::chrono::duration<double>(Clock::now() - start).count();
        });
    // One more step, timed by the device's own clock.
    begin_again();
    DecodeLoop loop(engine, engine.submit(last), rows);
    engine.watch(true);  // nothing runs ahead from here on
    loop.next();
    if (options.steps > 1) {
        engine.take_stages();
        loop.next();
    }
    out.stages = engine.take_stages();
    engine.watch(false);
    return out;
}

Measured measure_prefill(model::Engine& engine, const MeasureOptions& options,
                         const Progress& progress) {
    check(engine, options, options.prompt);
    const OpenSequence seq(engine.cache());
    const std::vector<std::int32_t> prompt = made_up_prompt(engine, options.prompt);
    const auto once = [&] {
        engine.cache().truncate(seq.id(), 0);
        const auto start = Clock::now();
        run_prompt(engine, seq.id(), prompt);
        engine.synchronize();
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    Measured out = repeat(engine, options, options.prompt, progress, once);
    // One more prefill, timed by the device's own clock.
    engine.watch(true);
    engine.take_stages();
    once();
    out.stages = engine.take_stages();
    engine.watch(false);
    return out;
}

}  // namespace mr::decode
