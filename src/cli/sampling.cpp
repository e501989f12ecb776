#include "cli/sampling.h"

#include <limits>
#include <random>

namespace mr::cli {

void add_sampling_options(const Command& command, decode::GenerateOptions& options) {
    constexpr int kMost = std::numeric_limits<int>::max();
    ops::SampleParams& sampling = options.sampling;
    command.group("Sampling");
    command
        .add_option("-n,--tokens,--max-tokens", options.max_tokens,
                    "Generate at most N tokens; -1: until the context is full")
        .range(-1, kMost)
        .shows_default();
    command
        .add_option("--temp,--temperature", sampling.temperature,
                    "Temperature; 0: always the most probable token")
        .range(0.0, 100.0)
        .shows_default();
    command.add_option("--top-k", sampling.top_k, "Sample from the N most probable tokens; 0: all")
        .range(0, kMost)
        .shows_default();
    command
        .add_option("--top-p", sampling.top_p,
                    "Sample from the most probable tokens with total probability X; 1: all")
        .range(0.0, 1.0)
        .shows_default();
    command
        .add_option("--min-p", sampling.min_p,
                    "Drop tokens below X times the probability of the most probable one; 0: none")
        .range(0.0, 1.0)
        .shows_default();
    command
        .add_option("--repeat-penalty,--repetition-penalty", sampling.repeat_penalty,
                    "Above 1: recent tokens become less probable")
        .range(0.01, 100.0)
        .shows_default();
    command
        .add_option("--repeat-window,--repeat-last-n", options.repeat_window,
                    "Tokens the repetition penalty looks back; -1: the whole text")
        .range(-1, kMost)
        .shows_default()
        .rare();
    command.add_option("--seed", sampling.seed, "Same seed, same text; default: random");
    command.add_option("--stop", options.stop, "Stop before this text; may be repeated")
        .repeatable()
        .shown_as("WORDS");
    command
        .add_option("--stop-id", options.stop_ids,
                    "Stop at this token, as at the end-of-text token; may be repeated")
        .repeatable()
        .shown_as("ID")
        .rare();
    command
        .add_option("--min-tokens", options.min_tokens,
                    "Generate at least N tokens: nothing ends the text before")
        .range(0, kMost)
        .shows_default()
        .rare();
    command.add_flag("--ignore-eos", options.ignore_end, "Go on past the end-of-text token");
    command.group(kOptions);
}

void use_advice(const Command& command, const model::Generation& advice,
                decode::GenerateOptions& options) {
    const auto use = [&](const char* option, const auto& advised, auto& to) {
        if (advised && !command.given(option)) to = *advised;
    };
    ops::SampleParams& sampling = options.sampling;
    use("--temp", advice.temperature, sampling.temperature);
    use("--top-k", advice.top_k, sampling.top_k);
    use("--top-p", advice.top_p, sampling.top_p);
    use("--min-p", advice.min_p, sampling.min_p);
    // The window in the files belongs to their penalty.
    if (!command.given("--repeat-penalty")) {
        use("--repeat-window", advice.repeat_window, options.repeat_window);
    }
    use("--repeat-penalty", advice.repeat_penalty, sampling.repeat_penalty);
}

std::uint64_t fresh_seed() {
    // 32 bits: short enough to type.
    return std::random_device{}();
}

}  // namespace mr::cli
