// millrace bench: decode, prefill and load, compared with the machine's bandwidth; the other kinds
// are in files of their own.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "cli/bench/load.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cpu.h"
#include "core/cuda/device.h"
#include "decode/loop.h"
#include "decode/measure.h"
#include "observe/memory.h"
#include "observe/run_report.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct BenchOptions {
    SharedOptions shared;
    decode::MeasureOptions measure;
    ContextOptions context;  // for decode
    bool verbose = false;
    bool through_map = false;  // loading to the device: how, and in what pieces
    int chunk_mib = 8;
};

Json header(const char* kind, const model::Engine& engine) {
    return {{"bench", kind},
            {"model", engine.model().source},
            {"format", engine.model().format},
            {"parameters", engine.model().spec.parameters()},
            {"cpu", cpu_info().model},
            {"threads", engine.options().threads},
            {"isa", isa_name(active_isa())},
            {"device", engine.options().cuda ? cuda::device()->name : "cpu"}};
}

void print(const BenchOptions& options, const Json& json, const std::string& text) {
    out(options.shared.json ? json_text(json) : text);
}

std::string title(const Json& json) {
    const std::string on =
        json["device"] == "cpu"
            ? fmt::format("{}, {}", observe::counted(json["threads"].get<int>(), "thread"),
                          json["isa"].get<std::string>())
            : json["device"].get<std::string>();
    return fmt::format("{} {}: {}\n", json["bench"].get<std::string>(),
                       one_line(json["model"].get<std::string>()), on);
}

// Loads for a measurement that needs this many positions per sequence; `decodes`: it also generates
// tokens.
LoadedModel load_for(const BenchOptions& options, std::int64_t positions, bool decodes) {
    return load(options.shared, [&](const model::Model& model) {
        if (decodes) refuse_diffusion(model, "bench decode");
        model::EngineOptions wanted = engine_options(options.shared);
        wanted.max_sequences = options.measure.batch;
        if (options.context.streams()) {
            wanted.stream = stream_for(options.context, model.spec);
        } else if (wanted.context == 0) {
            wanted.context = positions;
        }
        return wanted;
    });
}

// The stages of one step or prompt on the GPU, summed over layers, with the idle time before each.
// what: the name of the last line.
std::string stage_table(const decode::Measured& m, const char* what) {
    struct Sum {
        std::string name;
        int calls = 0;
        double seconds = 0, gap = 0, bytes = 0;
    };
    std::vector<Sum> sums;
    double end = 0;
    for (const cuda::Stage& stage : m.stages) {
        auto at = std::find_if(sums.begin(), sums.end(),
                               [&](const Sum& sum) { return sum.name == stage.name; });
        if (at == sums.end()) at = sums.insert(sums.end(), Sum{stage.name});
        ++at->calls;
        at->seconds += stage.work.seconds;
        at->gap += std::max(stage.begin - end, 0.0);
        at->bytes += static_cast<double>(stage.work.bytes_read);
        end = std::max(end, stage.begin + stage.work.seconds);
    }
    std::string table = fmt::format("  {:<12}{:>6}{:>12}{:>12}{:>12}{:>9}\n", "stage", "calls",
                                    "us each", "us in all", "us before", "GB/s");
    for (const Sum& sum : sums) {
        table += fmt::format("  {:<12}{:>6}{:>12.2f}{:>12.1f}{:>12.1f}{:>9.0f}\n", sum.name,
                             sum.calls, sum.seconds / sum.calls * 1e6, sum.seconds * 1e6,
                             sum.gap * 1e6, sum.bytes / sum.seconds / 1e9);
    }
    return table + fmt::format("  {:<18}{:>24.1f}\n", what, end * 1e6);
}

int decode_bench(const BenchOptions& options) {
    const LoadedModel loaded =
        load_for(options, options.measure.prompt + options.measure.steps, true);
    const std::unique_ptr<model::Engine> opened = make_engine(loaded);
    model::Engine& engine = *opened;
    decode::MeasureOptions measure = options.measure;
    measure.stream = engine.options().stream;
    ProgressLine line;
    const decode::Measured m = decode::measure_decode(engine, measure, line.callback());
    line.remove();
    const auto percent = [&](double rate) {
        return m.read_bandwidth > 0 ? 100 * rate / m.read_bandwidth : 0;
    };
    Json json = header("decode", engine);
    json["prompt"] = options.measure.prompt;
    json["steps"] = options.measure.steps;
    json["batch"] = options.measure.batch;
    json["churn"] = options.measure.churn;
    if (measure.stream) {
        json["sinks"] = measure.stream.sinks;
        json["window"] = measure.stream.window;
    }
    json["repetitions"] = options.measure.repetitions;
    json["tok_s"] = m.tokens_per_second();
    json["tok_s_best"] = m.best_tokens_per_second();
    json["gb_s"] = m.bytes_per_second() / 1e9;
    json["gb_s_best"] = m.best_bytes_per_second() / 1e9;
    json["read_bandwidth_gb_s"] = m.read_bandwidth / 1e9;
    json["percent_of_bandwidth"] = percent(m.bytes_per_second());
    json["percent_of_bandwidth_best"] = percent(m.best_bytes_per_second());
    json["bytes_per_token"] = m.bytes_per_token();
    json["weight_bytes_per_token"] = engine.model().weights.bytes_per_token();
    json["gflop_s"] = m.flops_per_second() / 1e9;
    json["seconds"] = m.seconds;
    json["ledger"] = observe::ledger_json(m.ledger);
    std::string text = title(json);
    text +=
        fmt::format("  median of {}  {:8.2f} tok/s  {:7.2f} GB/s  {:5.1f}% of the read bandwidth\n",
                    m.seconds.size(), m.tokens_per_second(), m.bytes_per_second() / 1e9,
                    percent(m.bytes_per_second()));
    text += fmt::format("  best         {:8.2f} tok/s  {:7.2f} GB/s  {:5.1f}%\n",
                        m.best_tokens_per_second(), m.best_bytes_per_second() / 1e9,
                        percent(m.best_bytes_per_second()));
    text +=
        fmt::format("  {:.2f} MB per token; the memory was read at {:.2f} GB/s in the same run\n",
                    m.bytes_per_token() / 1e6, m.read_bandwidth / 1e9);
    if (options.verbose)
        text +=
            "\n" + (m.stages.empty() ? observe::op_table(m.ledger) : stage_table(m, "one step"));
    print(options, json, text);
    return 0;
}

int prefill_bench(const BenchOptions& options) {
    const LoadedModel loaded = load_for(options, options.measure.prompt, false);
    const std::unique_ptr<model::Engine> opened = make_engine(loaded);
    model::Engine& engine = *opened;
    ProgressLine line;
    const decode::Measured m = decode::measure_prefill(engine, options.measure, line.callback());
    line.remove();
    Json json = header("prefill", engine);
    json["prompt"] = options.measure.prompt;
    json["repetitions"] = options.measure.repetitions;
    json["tok_s"] = m.tokens_per_second();
    json["tok_s_best"] = m.best_tokens_per_second();
    json["gflop_s"] = m.flops_per_second() / 1e9;
    json["gb_s"] = m.bytes_per_second() / 1e9;
    json["read_bandwidth_gb_s"] = m.read_bandwidth / 1e9;
    json["percent_of_bandwidth"] = 100 * m.bytes_per_second() / m.read_bandwidth;
    json["bytes_per_token"] = m.bytes_per_token();
    json["seconds"] = m.seconds;
    json["ledger"] = observe::ledger_json(m.ledger);
    std::string text = title(json);
    text += fmt::format("  {} tokens, median of {}  {:8.2f} tok/s  {:8.2f} GFLOP/s\n",
                        options.measure.prompt, m.seconds.size(), m.tokens_per_second(),
                        m.flops_per_second() / 1e9);
    text += fmt::format("  {:>{}}best  {:8.2f} tok/s\n", "",
                        std::to_string(options.measure.prompt).size() + 9 +
                            std::to_string(m.seconds.size()).size() + 6,
                        m.best_tokens_per_second());
    if (options.verbose)
        text +=
            "\n" + (m.stages.empty() ? observe::op_table(m.ledger) : stage_table(m, "the prompt"));
    print(options, json, text);
    return 0;
}

// Only once: a second load would find the file in memory, which is not what a user waits for.
int load_bench(const BenchOptions& options) {
    disabled(options.shared);  // report a misspelt word even if no engine reads the list
    if (use_cuda(options.shared)) {
        model::DeviceLoadOptions how;
        how.through_map = options.through_map;
        how.chunk_bytes = static_cast<std::size_t>(options.chunk_mib) << 20;
        return device_load_bench(options.shared, how);
    }
    const auto start = std::chrono::steady_clock::now();
    const LoadedModel loaded =
        load(options.shared, [&](const model::Model&) { return engine_options(options.shared); });
    const std::unique_ptr<model::Engine> opened = make_engine(loaded);
    model::Engine& engine = *opened;
    const std::int32_t first = 1 % engine.model().spec.vocab;
    const model::SeqId seq = engine.cache().open();
    const model::BatchItem item{.seq = seq, .tokens = {&first, 1}};
    decode::DecodeRow row;
    row.seq = seq;
    row.params.temperature = 0;
    decode::DecodeLoop(engine, engine.submit({&item, 1}), {row}).next();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::size_t peak = observe::peak_resident_bytes();
    engine.cache().close(seq);

    const model::Weights& weights = engine.model().weights;
    const std::uint64_t weight_bytes = weights.mapped_bytes + weights.owned_bytes;
    const std::uint64_t kv = model::KvCache::bytes(engine.model().spec, engine.cache().page_count(),
                                                   *engine.options().kv_type);
    Json json = header("load", engine);
    json["first_token_s"] = seconds;
    json["load_s"] = loaded.seconds;
    json["weight_bytes"] = weight_bytes;
    json["mapped_bytes"] = weights.mapped_bytes;
    json["copied_bytes"] = weights.owned_bytes;
    json["kv_bytes"] = kv;
    json["peak_rss_bytes"] = peak;
    json["peak_over_weights_and_kv"] =
        static_cast<double>(peak) / static_cast<double>(weight_bytes + kv);
    std::string text = title(json);
    text += fmt::format("  first token after {:.3f} s (open {:.3f} s)\n", seconds, loaded.seconds);
    text += fmt::format("  weights {}: {} mapped, {} copied or made; KV cache {}\n",
                        format_bytes(weight_bytes), format_bytes(weights.mapped_bytes),
                        format_bytes(weights.owned_bytes), format_bytes(kv));
    text += fmt::format("  peak resident memory {}: {:.1f}% of weights and KV cache\n",
                        format_bytes(peak), 100 * json["peak_over_weights_and_kv"].get<double>());
    print(options, json, text);
    return 0;
}

Command add_kind(const Command& bench, const std::shared_ptr<BenchOptions>& options,
                 const char* name, const char* what) {
    const Command command = bench.add_subcommand(name, what);
    add_model_options(command, options->shared);
    add_engine_options(command, options->shared);
    add_disable_option(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(fmt::format("Example:\n  millrace bench {} random:tinyllama-1.1b:q8_0", name));
    return command;
}

void add_measure_options(const Command& command, BenchOptions& options) {
    command.add_option("--prompt", options.measure.prompt, "Tokens of the prompt")
        .range(1, 1 << 24)
        .shows_default();
    command.add_option("--reps", options.measure.repetitions, "Repetitions that are measured")
        .range(1, 10000)
        .shows_default();
    command.add_option("--warmup", options.measure.warmup, "Warm-up repetitions before them")
        .range(0, 10000)
        .shows_default();
    command.add_flag("-v,--verbose", options.verbose, "Where the time went, by op");
}

}  // namespace

void add_bench(const Command& app, Action& action) {
    const Command bench = app.add_subcommand(
        "bench",
        "Measure decode, prefill, loading, serving and training against what the "
        "machine can do");
    bench.require_subcommand();
    bench.footer(
        "Examples:\n"
        "  millrace bench decode random:tinyllama-1.1b:q8_0\n"
        "  millrace bench prefill model.gguf --prompt 512\n"
        "  millrace bench load model.gguf --json\n"
        "Shapes: llama-2-7b, llama-2-13b, llama-3-8b, llama-3-70b, tinyllama-1.1b, stories-110m,\n"
        "stories-42m, pythia-2.8b, gpt2, gpt2-xl, gpt3-175b, qwen2.5-0.5b, qwen2.5-1.5b, "
        "qwen3-4b,\n"
        "qwen3-14b, qwen3-32b, sdar-4b, sdar-1.7b, llada-8b, dream-7b; types: f32, f16, bf16,\n"
        "q8_0, q4_0. Their weights are made in memory.\n"
        "Experiments (the ladder, attention, streams and more) are millrace-lab's.");
    // Each command has its own BenchOptions: environment variables (MILLRACE_DEVICE) are read for
    // all commands, after the options of the one that was called.
    const auto own = [] { return std::make_shared<BenchOptions>(); };
    const auto when_called = [&](const Command& command,
                                 const std::shared_ptr<BenchOptions>& options,
                                 int (*bench_it)(const BenchOptions&)) {
        command.callback([options, bench_it, &action] {
            action = [options, bench_it] {
                const InterruptGuard guard;
                return bench_it(*options);
            };
        });
    };
    const std::shared_ptr<BenchOptions> decoding = own(), filling = own(), loading = own();
    const Command decode =
        add_kind(bench, decoding, "decode", "Tokens per second, one after the other");
    add_measure_options(decode, *decoding);
    decode.add_option("--batch", decoding->measure.batch, "Sequences that are decoded together")
        .range(1, 4096)
        .shows_default();
    decode
        .add_option("-n,--tokens,--max-tokens", decoding->measure.steps,
                    "Tokens generated per sequence and repetition")
        .range(1, 1 << 24)
        .shows_default();
    decode.add_flag("--churn", decoding->measure.churn,
                    "In every step one sequence leaves the batch and joins again");
    add_context_options(decode, decoding->context, {"full", "streaming"});
    when_called(decode, decoding, decode_bench);
    const Command prefill = add_kind(bench, filling, "prefill", "Tokens per second of a prompt");
    add_measure_options(prefill, *filling);
    when_called(prefill, filling, prefill_bench);
    const Command load =
        add_kind(bench, loading, "load",
                 "Time and memory of loading, up to the first token; with cuda, to the device");
    load.add_flag("--through-map", loading->through_map,
                  "cuda: copy from the mapped file instead of reading the file");
    load.add_option("--chunk", loading->chunk_mib, "cuda: MiB sent at a time")
        .range(1, 1024)
        .shows_default();
    when_called(load, loading, load_bench);
    add_bench_batch(bench, action);
    add_bench_diffusion(bench, action);
    add_bench_serve(bench, action);
    add_bench_train(bench, action);
}

}  // namespace mr::cli
