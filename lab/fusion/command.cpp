// millrace-lab fusion: what each fusion of a decode step is worth, end to end.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/peer.h"
#include "cli/terminal.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "decode/prompt.h"
#include "lab/experiments.h"
#include "lab/fusion/fusion.h"
#include "lab/outcome.h"
#include "model/io/random.h"
#include "text/tokenizer.h"

namespace mr::cli {
namespace {

struct BenchFusionOptions {
    SharedOptions shared;
    OutcomeOptions outcome;
    decode::MeasureOptions measure{.steps = 64};
    std::vector<std::string> types{"f32", "f16", "bf16"};
    bool given_types = false;
    int score = 256;
    std::string text;  // a file; empty: the passage below, or random ids
    std::string peer;
};

// The default text for scoring a model with a vocabulary of words.
constexpr std::string_view kPassage =
    "The mill stands where the river bends. In spring the water comes down brown and fast from the "
    "hills, and the miller opens the gate only a hand's breadth, because the wheel would turn too "
    "quickly for the stones. In late summer the river is a thread between dry banks. Then he opens "
    "the gate as far as it goes and waits, and the wheel turns slowly, and a sack of corn that "
    "took "
    "an hour in April takes the whole of the morning. People who bring their corn sit on the wall "
    "and talk. They say that a larger wheel would help, or harder stones, or a second pair of "
    "them. "
    "The miller has heard it all before. He has cleaned the channel every winter since he was a "
    "boy, and he knows that a wheel gives what the water brings to it and not a turn more. So when "
    "the frost comes and the fields are quiet, he takes his spade and walks up the race, and cuts "
    "away the roots, and lifts the stones that have fallen in, until the water runs clear and deep "
    "from the weir to the wheel.";

bool is_random(const std::string& model) { return model.starts_with(model::kRandomPrefix); }

// Changes the type of "random:pythia-2.8b:f16".
std::string in_type(const std::string& model, const std::string& type) {
    const std::size_t shape = model::kRandomPrefix.size();
    return model.substr(0, model.find(':', shape)) + ":" + type;
}

std::vector<std::int32_t> ids_of(const BenchFusionOptions& options, const model::Model& model,
                                 const std::string& text) {
    if (options.text.empty() && (is_random(options.shared.model) || !model.tokenizer)) {
        return decode::made_up_ids(options.score, model.spec.vocab);
    }
    const text::Tokenizer& tokenizer = decode::require_tokenizer(model);
    std::vector<std::int32_t> ids = tokenizer.encode(options.text.empty() ? kPassage : text);
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(options.score)));
    if (ids.size() >= 3) return ids;
    throw Error::input({.file = options.text,
                        .problem = "has fewer than 3 tokens",
                        .remedy = "give a longer text"});
}

// The shape as arguments for bench/peers/torch_decode.py.
std::string peer_arguments(const BenchFusionOptions& options, const model::Model& model) {
    const model::ModelSpec& spec = model.spec;
    return fmt::format(
        "--parts eager,compiled --shape neox:{}:{}:{}:{}:{}:{}:{}:{} --type {} --prompt {} "
        "--tokens {} --budget 600",
        spec.dim, spec.hidden, spec.layers, spec.heads, spec.vocab,
        std::max<std::int64_t>(spec.context,
                               std::int64_t{options.measure.prompt} + options.measure.steps + 16),
        spec.rope.rotary, spec.residual == model::Residual::parallel ? 1 : 0,
        dtype_name(model.weights.layers.front().o.dtype), options.measure.prompt,
        options.measure.steps);
}

void require_peer_knows(const std::string& source, const model::Model& model) {
    const DType type = model.weights.layers.front().o.dtype;
    const bool floats = type == DType::f32 || type == DType::f16 || type == DType::bf16;
    if (model.spec.family == "gpt-neox" && floats) return;
    throw Error::usage({.field = "--peer",
                        .value = "torch",
                        .problem = fmt::format("has no {} model in {} to compare {} with",
                                               model.spec.family, dtype_name(type), source),
                        .remedy = "compare a GPT-NeoX in f32, f16 or bf16"});
}

// Eager and compiled results of the script; if one cannot run, it says why.
Json ask_torch(const BenchFusionOptions& options, const model::Model& model) {
    Json torch = {{"peer", "torch"}};
    try {
        for (const Json& line : ask_peer("torch_decode.py", peer_arguments(options, model))) {
            const std::string part = line.value("part", std::string());
            if (part == "about") {
                torch["torch"] = line.value("torch", Json());
                torch["transformers"] = line.value("transformers", Json());
            } else if (part == "eager" || part == "compiled") {
                torch[part] = line;
            }
        }
    } catch (const Error& error) {  // the rungs are measured without it
        torch["error"] = error.what();
    }
    return torch;
}

std::string torch_text(const Json& torch, double ours) {
    if (torch.contains("error")) {
        return fmt::format("  torch: {}\n", one_line(torch["error"].get<std::string>()));
    }
    std::string text = "  torch, GPT-NeoX of transformers:";
    for (const char* part : {"eager", "compiled"}) {
        const Json line = torch.value(part, Json::object());
        if (line.contains("ms_per_token")) {
            const double theirs = line["ms_per_token"].get<double>();
            text += fmt::format(" {} {:.4f} ms/token ({:.2f}x of the last rung)", part, theirs,
                                theirs / ours);
        } else {
            const std::string why =
                line.value("error", line.value("skipped", std::string("nothing was measured")));
            text += fmt::format(" {}: {}", part, one_line(why));
        }
    }
    return text + "\n";
}

Json rung_json(const fusion::Rung& rung) {
    if (!rung.absent.empty()) return {{"rung", rung.name}, {"absent", rung.absent}};
    return {{"rung", rung.name},
            {"ms_per_token", 1e3 * rung.seconds},
            {"gain_percent", rung.gain ? Json(100 * *rung.gain) : Json()},
            {"counts", rung.gain ? Json(rung.counts()) : Json()},
            {"kernels_per_token", rung.kernels},
            {"launches_per_token", rung.launches},
            {"bytes_per_token", rung.bytes},
            {"nll", rung.nll},
            {"nll_same", rung.same_nll}};
}

std::string rung_text(const fusion::Rung& rung) {
    if (!rung.absent.empty()) return fmt::format("  {:<24}  none: {}\n", rung.name, rung.absent);
    return fmt::format("  {:<24}  {:>9.4f}  {:>6}  {:>6}  {:>7}  {:>8}  {:>9.2f}  {:>9.6f}{}\n",
                       rung.name, 1e3 * rung.seconds,
                       rung.gain ? fmt::format("{:.1f}%", 100 * *rung.gain) : "-",
                       !rung.gain      ? "-"
                       : rung.counts() ? "yes"
                                       : "no",
                       rung.kernels, rung.launches, rung.bytes / 1e6, rung.nll,
                       rung.same_nll ? "" : "  NOT the last rung's");
}

// One model in one type: its rungs, added to `json` and returned as text.
std::string measure_type(const BenchFusionOptions& options, const std::string& text, Json& json,
                         bool& same) {
    fusion::Options wanted;
    wanted.measure = options.measure;
    LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        refuse_diffusion(model, "fusion");
        if (!options.peer.empty()) require_peer_knows(options.shared.model, model);
        wanted.ids = ids_of(options, model, text);
        wanted.engine = engine_options(options.shared);
        wanted.engine.context =
            std::max<std::int64_t>(std::int64_t{options.measure.prompt} + options.measure.steps,
                                   static_cast<std::int64_t>(wanted.ids.size()));
        return fusion::nothing_fused(wanted.engine);  // the largest plan
    });
    ProgressLine line;
    const fusion::Ladder ladder =
        fusion::climb(loaded.model, loaded.weights, wanted, line.callback());
    line.remove();
    const char* type = dtype_name(loaded.model->weights.layers.front().o.dtype);
    Json one = {{"model", loaded.model->source},
                {"type", type},
                {"scored_tokens", wanted.ids.size() - 2},
                {"rungs", Json::array()}};
    std::string out = fmt::format(
        "{} ({}), NLL over {} tokens\n  {:<24}  {:>9}  {:>6}  {:>6}  {:>7}  {:>8}  {:>9}  {:>9}\n",
        one_line(loaded.model->source), type, wanted.ids.size() - 2, "rung", "ms/token", "gain",
        "counts", "kernels", "launches", "MB/token", "NLL");
    double last = 0;
    for (const fusion::Rung& rung : ladder.rungs) {
        one["rungs"].push_back(rung_json(rung));
        out += rung_text(rung);
        if (rung.absent.empty()) last = 1e3 * rung.seconds;
    }
    one["gain_percent"] = 100 * ladder.gain;
    one["nll_same"] = ladder.same_nll();
    same = same && ladder.same_nll();
    out += fmt::format("  all against none: {:.1f}% less time per token; NLL {} to 4 digits\n",
                       100 * ladder.gain, ladder.same_nll() ? "the same" : "NOT the same");
    loaded.weights.reset();  // the other engine gets the device alone
    if (!options.peer.empty()) {
        one["torch"] = ask_torch(options, *loaded.model);
        out += torch_text(one["torch"], last);
    }
    json["types"].push_back(std::move(one));
    return out;
}

int fusion_bench(BenchFusionOptions options) {
    check_outcome(options.outcome);
    const InterruptGuard guard;
    options.shared.model = model_source(options.shared);
    const bool random = is_random(options.shared.model);
    if (options.given_types && !random) {
        throw Error::usage(
            {.field = "--types",
             .problem = "only applies to random: models; a file is measured in its own type",
             .remedy = "convert the model first (millrace convert --type)"});
    }
    if (random) {
        const DType named = model::random_shape(options.shared.model).second;
        const bool asked_for = named == DType::q8_0 || named == DType::q4_0;  // not a default's
        if (asked_for && !options.given_types) options.types = {dtype_name(named)};
    }
    disabled(options.shared);  // report a misspelt word before using the device
    if (options.shared.device == "cpu") {
        throw Error::usage(
            {.field = "--device",
             .value = "cpu",
             .problem = "the CPU engine has none of these fusions to switch",
             .remedy = "use a GPU, or measure the CPU with 'millrace bench decode'"});
    }
    const std::optional<cuda::DeviceInfo> found = cuda::device();
    if (!found) {
        throw Error::device({.field = "fusion",
                             .problem = "measures the GPU engine, and there is no GPU that this "
                                        "build can use",
                             .remedy = "'millrace info' says why; 'millrace bench decode' measures "
                                       "the CPU"});
    }
    const cuda::DeviceInfo& gpu = *found;
    options.shared.device = "cuda";
    if (!options.peer.empty()) peer_command("torch_decode.py");  // fail before anything is measured
    const std::string passage = options.text.empty() ? "" : read_input(options.text);
    Json json = {{"experiment", "fusion"},
                 {"model", options.shared.model},
                 {"device", gpu.name},
                 {"prompt", options.measure.prompt},
                 {"tokens", options.measure.steps},
                 {"repetitions", options.measure.repetitions},
                 {"counts_from_percent", 100 * fusion::kCounts},
                 {"types", Json::array()}};
    std::string text = fmt::format(
        "fusion: {}, {} tokens behind a prompt of {}, median of {}; a rung counts from {:.0f}% "
        "on\n",
        gpu.name, options.measure.steps, options.measure.prompt, options.measure.repetitions,
        100 * fusion::kCounts);
    bool same = true;
    const std::string source = options.shared.model;
    for (const std::string& type : random ? options.types : std::vector<std::string>{""}) {
        if (random) options.shared.model = in_type(source, type);
        text += measure_type(options, passage, json, same);
    }
    json["nll_same"] = same;
    show(options.outcome, json, text);
    return 0;
}

}  // namespace

void add_fusion(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchFusionOptions>();
    const Command command = lab.add_subcommand(
        "fusion", "What each fusion of a decode step is worth: time per token, launches, NLL");
    add_model_options(command, options->shared);
    command
        .add_option("--types", options->types,
                    "Types to measure a random: model in; one with q8_0 or q4_0 in its name keeps "
                    "that type")
        .separated_by(',')
        .one_of({"f32", "f16", "bf16"})
        .shows_default();
    command.add_option("--prompt", options->measure.prompt, "Tokens of the prompt")
        .range(1, 1 << 20)
        .shows_default();
    command
        .add_option("-n,--tokens,--max-tokens", options->measure.steps,
                    "Tokens generated per repetition")
        .range(1, 1 << 20)
        .shows_default();
    command.add_option("--reps", options->measure.repetitions, "Repetitions; the median counts")
        .range(1, 10000)
        .shows_default();
    command.add_option("--warmup", options->measure.warmup, "Warm-up repetitions before them")
        .range(0, 10000)
        .shows_default();
    command
        .add_option("--score", options->score, "Tokens scored for the NLL, at most; fed one by one")
        .range(3, 1 << 20)
        .shows_default();
    command
        .add_option("--text", options->text,
                    "File with the text to score; default: a built-in passage, or random ids for a "
                    "model without a tokenizer")
        .shown_as("FILE");
    command.add_option("--peer", options->peer, "Also transformers, eager and compiled: GPT-NeoX")
        .one_of({"torch"});
    add_machine_options(command, options->shared);
    add_outcome_options(command, options->outcome);
    command.footer(
        "A rung whose NLL is not the last one's to 4 digits is marked. docs/cuda-engine.md "
        "explains\nthe rungs.\n"
        "Examples:\n"
        "  millrace-lab fusion random:pythia-2.8b:f16\n"
        "  millrace-lab fusion random:pythia-2.8b --types f16 --peer torch --json\n"
        "The peer needs a python with PyTorch and transformers: name it in MILLRACE_PYTHON.");
    command.callback([options, command, &action] {
        options->given_types = command.given("--types");
        action = [options] { return fusion_bench(*options); };
    });
}

}  // namespace mr::cli
