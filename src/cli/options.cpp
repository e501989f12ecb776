#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/error.h"

namespace mr::cli {

namespace {

// The group of options for device and memory.
constexpr const char* kMachine = "Machine";

struct Switch {
    const char* word;
    bool Disabled::*off;
};
constexpr Switch kSwitches[] = {
    {"fuse", &Disabled::fuse},
    {"add-in-product", &Disabled::add_in_product},
    {"add-in-norm", &Disabled::add_in_norm},
    {"norms-together", &Disabled::norms_together},
    {"graph", &Disabled::graph},
    {"dependent-launch", &Disabled::dependent_launch},
    {"batch-products", &Disabled::batch_products},
    {"resident-attention", &Disabled::resident_attention},
    {"persistent", &Disabled::persistent},
    {"loop", &Disabled::loop},
    {"head-records", &Disabled::head_records},
    {"repack", &Disabled::repack},
};

std::string known_switches() {
    std::vector<const char*> words;
    for (const Switch& known : kSwitches) words.push_back(known.word);
    return fmt::format("{}", fmt::join(words, ", "));
}

// Adds the names in a list; `where`: its source, for errors.
void add_disabled(Disabled& to, const char* where, std::string_view list) {
    while (!list.empty()) {
        const std::string_view word = list.substr(0, list.find(','));
        const auto named = std::find_if(std::begin(kSwitches), std::end(kSwitches),
                                        [&](const Switch& known) { return word == known.word; });
        if (named == std::end(kSwitches)) {
            throw Error::usage({.field = where,
                                .value = std::string(word),
                                .problem = "is not a known switch",
                                .remedy = "use one or more of " + known_switches()});
        }
        to.*named->off = true;
        list.remove_prefix(std::min(word.size() + 1, list.size()));
    }
}

}  // namespace

void add_model_options(const Command& command, SharedOptions& options) {
    command
        .add_option(
            "-m,--model,model", options.model,
            "A GGUF file, a Hugging Face folder, the folder of a training run, a llama2.c .bin, "
            "random:SHAPE[:TYPE], OWNER/NAME of a model that 'millrace pull' downloaded, or a "
            "bundled model's name (storyteller, storyteller-diffusion); default: storyteller")
        .shown_as("MODEL");
    command.group("Model");
    command
        .add_option("--tokenizer", options.tokenizer,
                    "tokenizer.json, tokenizer.bin, a GGUF file or a bundled model's name, for a "
                    "model without a tokenizer")
        .shown_as("FILE")
        .rare();
    add_ignore_key_option(command, options);
    command.group(kOptions);
}

void add_ignore_key_option(const Command& command, SharedOptions& options) {
    command
        .add_option("--ignore-key", options.ignore_keys,
                    "Ignore this key of the model's configuration, which the engine does not know; "
                    "may be repeated")
        .repeatable()
        .shown_as("KEY")
        .rare();
}

void add_machine_options(const Command& command, SharedOptions& options) {
    command.group(kMachine);
    command
        .add_option("--device", options.device,
                    "Where to compute; auto: the GPU if one can be used")
        .from_environment("MILLRACE_DEVICE")
        .one_of({"auto", "cpu", "cuda"})
        .shows_default();
    add_threads_option(command, options);
    command.group(kOptions);
}

void add_threads_option(const Command& command, SharedOptions& options) {
    command.group(kMachine);
    command.add_option("-t,--threads", options.threads, "CPU threads; 0: one per core")
        .range(0, 1024)
        .shows_default();
    command.group(kOptions);
}

void add_engine_options(const Command& command, SharedOptions& options) {
    add_machine_options(command, options);
    command.group(kMachine);
    command
        .add_option("-c,--ctx", options.ctx,
                    "Context length per sequence, in tokens; 0: the model's")
        .range(std::int64_t{0}, (std::int64_t{1} << 30) - 1)
        .shows_default();
    command
        .add_option("--pool", options.pool,
                    "Size of the KV cache in tokens, over all sequences; 0: as many as fit, at "
                    "most the full context of every sequence")
        .range(std::int64_t{0}, std::int64_t{1} << 40)
        .shows_default()
        .rare();
    command.add_option("--kv-type", options.kv_type, "Type of the KV cache; bf16 only on a GPU")
        .one_of({"auto", "f32", "f16", "bf16"})
        .shows_default()
        .rare();
    command
        .add_flag("--check-nan", options.check_nan,
                  "Stop at the first NaN or infinity and name the layer where it appeared: to find "
                  "damaged weights and overflow; slower")
        .rare();
    command.group(kOptions);
}

void add_disable_option(const Command& command, SharedOptions& options) {
    command.group(kMachine);
    command
        .add_option("--disable", options.disable,
                    fmt::format("Turn optimizations off, to measure what each is worth: a list of "
                                "{}, as in fuse,graph (docs/cuda-engine.md)",
                                known_switches()))
        .shown_as("LIST")
        .rare();
    command.group(kOptions);
}

void add_json_option(const Command& command, SharedOptions& options) {
    command.add_flag("--json", options.json, "Print one JSON object instead of text");
}

bool use_cuda(const SharedOptions& options) {
    if (options.device == "cpu") return false;
    if (options.device == "cuda") cuda::require_device();
    return cuda::device().has_value();
}

void require_gpu(const char* command) {
    if (cuda::device()) return;
    throw Error::device({.field = command,
                         .problem = "measures a GPU, and there is none that this build can use",
                         .remedy = "'millrace info' says why"});
}

int thread_count(const SharedOptions& options) {
    return options.threads > 0 ? options.threads : cpu_info().cores;
}

Disabled disabled(const SharedOptions& options) {
    Disabled out;
    if (const char* list = std::getenv("MILLRACE_DISABLE")) {
        add_disabled(out, "MILLRACE_DISABLE", list);
    }
    add_disabled(out, "--disable", options.disable);
    return out;
}

}  // namespace mr::cli
