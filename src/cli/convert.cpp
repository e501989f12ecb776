// millrace convert: any readable model to GGUF or safetensors.
#include "model/io/convert.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/existing_file.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/arena.h"
#include "core/dtype.h"

namespace mr::cli {
namespace {

struct ConvertOptions {
    SharedOptions shared;  // the input is `model`; --tokenizer, --json
    std::string output;
    std::string type;
    bool force = false;
    bool keep_outliers = false;
};

int convert(const ConvertOptions& options) {
    if (options.output == "-") {
        throw Error::usage({.field = "OUT",
                            .value = "-",
                            .problem = "a model is not written to standard output",
                            .remedy = "name a file or a folder"});
    }
    const std::string in = named_model(options.shared.model);
    // The converter has better answers for other names, and for an output that is its own input.
    const std::filesystem::path target = options.output;
    std::error_code code;
    if ((target.extension() == ".gguf" || target.extension() == ".safetensors") &&
        !std::filesystem::equivalent(in, target, code)) {
        refuse_existing_file(options.output, options.force);
    }
    const InterruptGuard guard;  // Ctrl-C throws from the progress line, and nothing is left behind
    ProgressLine line;
    line.begin("opening the model");
    const auto start = std::chrono::steady_clock::now();
    model::ConvertOptions wanted;
    if (!options.type.empty()) wanted.type = dtype_from_name(options.type);
    wanted.tokenizer = tokenizer_source(options.shared.tokenizer);
    wanted.ignore_keys = options.shared.ignore_keys;
    wanted.force = options.force;
    wanted.keep_outliers = options.keep_outliers;
    wanted.progress = line.callback();
    const model::ConvertResult result = model::convert_model(in, options.output, wanted);
    line.remove();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (options.shared.json) {
        const Json json = {{"in", options.shared.model}, {"files", result.files},
                           {"tensors", result.tensors},  {"bytes", result.bytes},
                           {"notes", result.notes},      {"seconds", seconds}};
        out(json_text(json));
        return 0;
    }
    for (const std::string& file : result.files) out(one_line(file) + "\n");
    note(fmt::format("{} tensors, {} in {:.2f} s", result.tensors, format_bytes(result.bytes),
                     seconds));
    for (const std::string& said : result.notes) remark(one_line(said));
    return 0;
}

}  // namespace

void add_convert(const Command& app, Action& action) {
    auto options = std::make_shared<ConvertOptions>();
    const Command command = app.add_subcommand("convert", "Write a model as GGUF or safetensors");
    command
        .add_option(
            "in", options->shared.model,
            "A GGUF file, a Hugging Face folder, the folder of a training run, a llama2.c .bin, "
            "random:SHAPE[:TYPE] or a bundled model's name")
        .required();
    command
        .add_option("out", options->output,
                    "FILE.gguf, FILE.safetensors, or a folder for a Hugging Face model")
        .required();
    command
        .add_option(
            "--type", options->type,
            "Type of the weights: f32, f16, bf16, q8_0 or q4_0; default: unchanged, and f16 for "
            "quantised ones in safetensors, which holds none")
        .one_of({"f32", "f16", "bf16", "q8_0", "q4_0"});
    command
        .add_option("--tokenizer", options->shared.tokenizer,
                    "tokenizer.json, tokenizer.bin, a GGUF file or a bundled model's name, for a "
                    "model without a tokenizer")
        .shown_as("FILE");
    add_ignore_key_option(command, options->shared);
    command.add_flag("--force", options->force, "Replace existing output files");
    command.add_flag("--keep-outliers", options->keep_outliers,
                     "Keep a matrix in bf16 or f32 where its numbers do not fit into the type");
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace convert hf-folder model.gguf --type q8_0\n"
        "  millrace convert stories260K.bin stories.gguf --tokenizer tok512.bin --type f16");
    command.callback([options, &action] { action = [options] { return convert(*options); }; });
}

}  // namespace mr::cli
