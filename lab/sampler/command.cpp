// millrace-lab sampler: drawing tokens, compared with one read of their logits.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "lab/experiments.h"
#include "lab/outcome.h"
#include "lab/sampler/sample_measure.h"
#include "model/io/source.h"
#include "observe/bandwidth.h"
#include "observe/device_bandwidth.h"

namespace mr::cli {
namespace {

constexpr int kMostVocab = 1 << 19;

struct BenchSampleOptions {
    SharedOptions shared;
    OutcomeOptions outcome;
    ops::SampleMeasureOptions measure;
    bool own_vocab = false;  // --vocab was given
};

void take_vocab(BenchSampleOptions& options) {
    if (options.shared.model.empty() || options.own_vocab) return;
    options.measure.vocab = model::planned_model(named_model(options.shared.model)).spec.vocab;
    if (options.measure.vocab <= kMostVocab) return;
    throw Error::usage({.file = options.shared.model,
                        .field = "vocabulary",
                        .value = std::to_string(options.measure.vocab),
                        .problem = fmt::format("sampler takes {} tokens at most", kMostVocab),
                        .remedy = "give --vocab"});
}

int sample_bench(BenchSampleOptions options) {
    check_outcome(options.outcome);
    ops::check_sample_params(options.measure.params);
    take_vocab(options);
    const bool gpu = options.shared.device == "cuda" ||
                     (options.shared.device == "auto" && cuda::device().has_value());
    ops::SampleMeasurement m;
    double read = 0;  // bytes per second
    if (gpu) {
        read = observe::device_ceilings().read;
        m = cuda::measure_sample(options.measure);
    } else {
        ThreadPool pool(thread_count(options.shared));
        read = observe::measure_read_bandwidth(pool).best;
        m = ops::measure_sample(pool, options.measure);
    }
    const ops::SampleParams& params = options.measure.params;
    Json json = {{"experiment", "sampler"},
                 {"model", options.shared.model},
                 {"device", m.device},
                 {"engine", gpu ? "cuda" : "cpu"},
                 {"vocab", options.measure.vocab},
                 {"temperature", params.temperature},
                 {"top_k", params.top_k},
                 {"top_p", params.top_p},
                 {"min_p", params.min_p},
                 {"repeat_penalty", params.repeat_penalty},
                 {"repeat_window", options.measure.window},
                 {"read_gb_s", read / 1e9},
                 {"sizes", Json::array()}};
    std::string text = fmt::format(
        "sample: vocabulary {}, temperature {}, top-k {}, top-p {}, min-p {}{}, on {}\n"
        "  one read of the logits at the measured {:.0f} GB/s is the floor\n"
        "  {:>5}  {:>10}  {:>12}  {:>9}  {:>7}\n",
        options.measure.vocab, params.temperature, params.top_k, params.top_p, params.min_p,
        params.repeat_penalty == 1.0f ? ""
                                      : fmt::format(", a penalty of {} on {} tokens",
                                                    params.repeat_penalty, options.measure.window),
        m.device, read / 1e9, "rows", "us", "in cache us", "floor us", "x floor");
    for (const ops::SampleTiming& t : m.timings) {
        const double floor = static_cast<double>(t.bytes) / read;
        json["sizes"].push_back({{"rows", t.rows},
                                 {"us", t.seconds * 1e6},
                                 {"cached_us", t.cached_seconds * 1e6},
                                 {"floor_us", floor * 1e6},
                                 {"times_floor", t.seconds / floor}});
        text +=
            fmt::format("  {:>5}  {:>10.2f}  {:>12.2f}  {:>9.2f}  {:>7.2f}\n", t.rows,
                        t.seconds * 1e6, t.cached_seconds * 1e6, floor * 1e6, t.seconds / floor);
    }
    show(options.outcome, json, text);
    return 0;
}

}  // namespace

void add_sampler(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchSampleOptions>();
    const Command command = lab.add_subcommand("sampler", "Time to sample tokens");
    ops::SampleMeasureOptions& measure = options->measure;
    command
        .add_option("model", options->shared.model,
                    "The model whose vocabulary is used: a file or folder, or random:SHAPE")
        .shown_as("MODEL");
    command.add_option("--vocab", measure.vocab, "Vocabulary size, instead of the model's")
        .range(1, kMostVocab)
        .shows_default();
    command.add_option("--rows", measure.rows, "Rows sampled at once, one measurement each")
        .separated_by(',')
        .range(1, 4096)
        .shows_default();
    command.add_option("--temp", measure.params.temperature, "0: greedy").shows_default();
    command.add_option("--top-k", measure.params.top_k, "0: all").shows_default();
    command.add_option("--top-p", measure.params.top_p, "1: all").shows_default();
    command.add_option("--min-p", measure.params.min_p, "0: all").shows_default();
    command.add_option("--repeat-penalty", measure.params.repeat_penalty, "1: none")
        .shows_default();
    command.add_option("--repeat-window", measure.window, "Tokens that it applies to")
        .range(0, 1 << 20)
        .shows_default();
    command
        .add_option("--team", measure.team,
                    "GPU blocks that share a row: 1 to 16; 0: the best number")
        .range(0, 16)
        .shows_default();
    add_machine_options(command, options->shared);
    add_outcome_options(command, options->outcome);
    command.footer(
        "Examples:\n"
        "  millrace-lab sampler\n"
        "  millrace-lab sampler random:llama-2-7b\n"
        "  millrace-lab sampler --rows 1,32 --top-k 0 --json");
    command.callback([options, command, &action] {
        options->own_vocab = command.given("--vocab");
        action = [options] { return sample_bench(*options); };
    });
}

}  // namespace mr::cli
