#include "decode/measure_batch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string_view>
#include <thread>

#include "core/philox.h"

namespace mr::decode {
namespace {

// Kinds of random draws for a request. Each has a stream of its own, so a new kind changes no
// other.
enum class Chance : std::uint64_t { gap, shape, cancel, when };
double chance(std::uint64_t seed, std::uint64_t request, Chance what) {
    return unit_float(philox(seed, request, static_cast<std::uint64_t>(what) + 1)[0]);
}

struct Arrival {
    double at = 0;  // seconds after the start
    BatchShape shape;
    int cancel_after = -1;  // pieces of text, about a token each; -1: never
    std::uint64_t number = 0;
};

std::vector<Arrival> arrivals_of(const BatchLoad& load) {
    std::vector<Arrival> out;
    double at = 0;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(load.requests); ++i) {
        Arrival arrival;
        arrival.number = i;
        if (load.arrivals > 0) {
            at -= std::log(1 - chance(load.seed, i, Chance::gap)) / load.arrivals;
        }
        arrival.at = at;
        const auto which = static_cast<std::size_t>(chance(load.seed, i, Chance::shape) *
                                                    static_cast<double>(load.mix.size()));
        arrival.shape = load.mix[which];
        if (chance(load.seed, i, Chance::cancel) < load.cancelled) {
            arrival.cancel_after =
                static_cast<int>(chance(load.seed, i, Chance::when) * arrival.shape.output);
        }
        out.push_back(arrival);
    }
    return out;
}

// Any ids will do: the work does not depend on them. Prompts differ from their first token on,
// unless same_prompt wants them found in the cache; other seeds give other prompts.
std::vector<std::int32_t> prompt_of(const Arrival& arrival, const BatchLoad& load,
                                    const model::ModelSpec& spec) {
    const auto vocab = static_cast<std::uint64_t>(spec.vocab);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(arrival.shape.input));
    const std::uint64_t first = load.seed * 7 + (load.same_prompt ? 1 : arrival.number * 31 + 1);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>((i * 7919 + first) % vocab);
    }
    if (spec.diffusion) std::replace(ids.begin(), ids.end(), spec.diffusion->mask, 0);
    return ids;
}

struct Open {
    Scheduler::Id id;
    double late;  // seconds from its arrival until it was added, because a pass was under way
};

}  // namespace

double quantile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const auto rank =
        static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

BatchMeasured measure_batch(model::Engine& engine, const BatchLoad& load,
                            const Progress& progress) {
    const std::vector<Arrival> arrivals = arrivals_of(load);
    BatchMeasured out;
    out.requests = load.requests;
    Scheduler scheduler(engine, nullptr, load.at_a_time);
    std::vector<Open> open;
    std::size_t next = 0;
    const Ledger before = engine.ledger();
    const Moment start = Moment::now();
    const auto now = [&] { return Moment::now().seconds_since(start); };
    const auto collect = [&] {
        std::erase_if(open, [&](const Open& one) {
            const std::optional<Generated> made = scheduler.take(one.id);
            if (!made) return false;
            out.input += made->prompt_tokens;
            out.output += static_cast<std::int64_t>(made->ids.size());
            out.block_passes += made->passes;
            if (made->reason == StopReason::cancelled) {
                ++out.cancelled;
            } else {
                out.first_token.push_back(one.late + made->prefill.seconds);
                if (made->decode.tokens > 0) {
                    out.per_token.push_back(made->decode.seconds /
                                            static_cast<double>(made->decode.tokens));
                }
            }
            if (progress) {
                progress("measuring", static_cast<std::uint64_t>(next - open.size()),
                         arrivals.size());
            }
            return true;
        });
    };
    for (;;) {
        while (next < arrivals.size() && arrivals[next].at <= now()) {
            const Arrival& arrival = arrivals[next++];
            GenerateOptions options;
            options.max_tokens = arrival.shape.output;
            options.sampling.temperature = 0;
            options.ignore_end = true;
            options.diffusion = load.diffusion;
            OnText on_text;
            if (arrival.cancel_after == 0) {
                options.cancelled = [] { return true; };
            } else if (arrival.cancel_after > 0) {
                on_text = [left = arrival.cancel_after](std::string_view) mutable {
                    return --left > 0;
                };
            }
            const Scheduler::Id id =
                scheduler.add(prompt_of(arrival, load, engine.model().spec), options, on_text);
            open.push_back({id, now() - arrival.at});
        }
        const bool busy = scheduler.step();
        collect();
        if (busy) continue;
        if (next == arrivals.size()) break;
        std::this_thread::sleep_for(
            std::chrono::duration<double>(std::max(0.0, arrivals[next].at - now())));
    }
    out.seconds = now();
    out.totals = scheduler.totals();
    out.ledger = engine.ledger().since(before);
    return out;
}

}  // namespace mr::decode
