#include "model/io/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <span>

#include "core/error.h"
#include "core/output_file.h"
#include "formats/gguf_writer.h"
#include "formats/safetensors.h"
#include "model/io/convert_formats.h"
#include "model/io/convert_tensors.h"
#include "model/io/generation.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

namespace fs = std::filesystem;

bool is_huggingface(const std::string& path) {
    std::error_code code;
    return fs::is_directory(path, code) || fs::path(path).extension() == ".safetensors" ||
           fs::path(path).filename() == "config.json";
}

fs::path folder_of(const std::string& path) {
    std::error_code code;
    if (fs::is_directory(path, code)) return path;
    const fs::path parent = fs::path(path).parent_path();
    return parent.empty() ? fs::path(".") : parent;
}

// Throws if one of `outputs` is a file of the input, which stays mapped while they are written.
void refuse_own_input(const std::string& in, const ConvertOptions& options,
                      const std::vector<fs::path>& outputs) {
    std::vector<fs::path> inputs = {in};
    if (!options.tokenizer.empty()) inputs.emplace_back(options.tokenizer);
    std::error_code code;
    if (is_huggingface(in)) {
        for (const auto& entry : fs::directory_iterator(folder_of(in), code)) {
            inputs.push_back(entry.path());
        }
    }
    for (const fs::path& out : outputs) {
        for (const fs::path& input : inputs) {
            if (!fs::equivalent(out, input, code) || code) continue;
            throw Error::usage({.file = out.string(),
                                .problem = "this is the model being read",
                                .remedy = "give another name for the output"});
        }
    }
}

ConvertResult to_gguf(ConvertInput input, const std::string& in, const std::string& out,
                      const ConvertOptions& options) {
    refuse_own_input(in, options, {out});
    require_gguf_can_hold(input.spec, in);
    const ModelSpec spec = input.spec;
    const auto tokenizer = input.tokenizer;
    const Generation generation = input.generation;
    Converter converter(std::move(input), Dialect::gguf, options);
    formats::GgufWriter writer(out);
    write_gguf_metadata(writer, spec, tokenizer.get(), converter.main_type());
    write_generation(writer, generation);
    for (const OutTensor& tensor : converter.tensors()) {
        writer.declare(tensor.name, tensor.dtype, tensor.shape);
    }
    converter.run([&](const void* data, std::size_t bytes) { writer.write(data, bytes); });
    writer.finish();
    ConvertResult result;
    result.files = {out};
    result.bytes = converter.bytes();
    result.tensors = converter.tensors().size();
    result.notes = converter.notes();
    for (std::string& note : llama_cpp_differences(spec)) result.notes.push_back(std::move(note));
    if (!tokenizer) {
        result.notes.push_back("the source has no tokenizer, and so the GGUF has no vocabulary");
    }
    return result;
}

// Removes the files it made unless told that all went well. Files that were there before stay.
class Cleanup {
  public:
    ~Cleanup() {
        std::error_code code;
        for (const fs::path& path : paths_) fs::remove(path, code);  // a folder only if empty
    }
    // Call before `path` is made.
    void add(const fs::path& path) {
        std::error_code code;
        if (fs::symlink_status(path, code).type() == fs::file_type::not_found) {
            paths_.insert(paths_.begin(), path);
        }
    }
    void add_folders(const fs::path& folder) {
        if (folder.has_parent_path() && folder != folder.parent_path()) {
            add_folders(folder.parent_path());
        }
        add(folder);
    }
    void keep() { paths_.clear(); }

  private:
    std::vector<fs::path> paths_;  // the latest first
};

ConvertResult to_safetensors(ConvertInput input, const std::string& in, const std::string& out,
                             const ConvertOptions& options) {
    std::error_code code;
    const bool one_file = fs::path(out).extension() == ".safetensors";
    const fs::path folder = one_file ? folder_of(out) : fs::path(out);
    const fs::path weights = one_file ? fs::path(out) : folder / "model.safetensors";

    // The files of a tokenizer are copied as they are.
    const fs::path tokenizer_folder =
        !options.tokenizer.empty() ? folder_of(options.tokenizer) : folder_of(in);
    std::vector<std::pair<fs::path, fs::path>> copies;
    if (fs::path(options.tokenizer.empty() && is_huggingface(in) ? "tokenizer.json"
                                                                 : options.tokenizer)
            .extension() == ".json") {
        for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                 "special_tokens_map.json"}) {
            if (fs::exists(tokenizer_folder / name, code)) {
                copies.emplace_back(tokenizer_folder / name, folder / name);
            }
        }
    }
    // From other formats, tokenizer files are made.
    std::optional<TokenizerFiles> made;
    if (copies.empty() && input.tokenizer)
        made = huggingface_tokenizer(input.tokenizer->data(), input.spec.family);
    std::string advice;  // generation_config.json
    if (const fs::path from = folder_of(in) / "generation_config.json";
        is_huggingface(in) && fs::exists(from, code)) {
        advice = read_text_file(from.string(), 1u << 24);
    } else {
        std::vector<std::int32_t> ends;
        if (input.tokenizer && input.tokenizer->eos()) ends.push_back(*input.tokenizer->eos());
        const bool turns = input.tokenizer && input.tokenizer->data().end_of_turn;
        if (turns) ends.push_back(*input.tokenizer->data().end_of_turn);
        if (turns || input.generation != Generation{}) {
            advice = generation_config(input.generation, ends);
        }
    }
    std::vector<fs::path> outputs = {weights, folder / "config.json"};
    if (!advice.empty()) outputs.push_back(folder / "generation_config.json");
    for (const auto& [from, to] : copies) outputs.push_back(to);
    if (made) {
        outputs.push_back(folder / "tokenizer.json");
        outputs.push_back(folder / "tokenizer_config.json");
    }
    refuse_own_input(in, options, outputs);
    std::string left;  // why a single file's companions are left alone
    if (!options.force) {
        const std::span<const fs::path> beside = std::span(outputs).subspan(one_file ? 1 : 0);
        const auto there = std::ranges::find_if(beside, [&](const fs::path& path) {
            return fs::symlink_status(path, code).type() != fs::file_type::not_found;
        });
        if (there != beside.end() && !one_file) {
            throw Error::usage({.file = there->string(),
                                .problem = "this file already exists",
                                .remedy = "give another folder, or --force to replace it"});
        }
        if (there != beside.end()) {
            left = fmt::format(
                "{} already exists and is kept: only the weights were written, and a reader takes "
                "their configuration and tokenizer from that folder (--force replaces them)",
                there->string());
        }
    }
    if (fs::exists(folder / "model.safetensors.index.json", code)) {
        throw Error::usage({.file = folder.string(),
                            .problem = "the folder holds a model in several shards",
                            .remedy = "give another folder for the output"});
    }
    if (options.type && is_quantised(*options.type)) {
        throw Error::usage({.field = "--type",
                            .value = dtype_name(*options.type),
                            .problem = "safetensors supports f32, f16 and bf16",
                            .remedy = "choose one of these, or an output that ends in .gguf"});
    }

    const ModelSpec spec = input.spec;
    const auto tokenizer = input.tokenizer;
    Converter converter(std::move(input), huggingface_dialect(spec.family), options);
    const std::string config = huggingface_config(spec, tokenizer.get(), converter.main_type(), in);
    Cleanup cleanup;
    if (!fs::is_directory(folder, code)) {
        cleanup.add_folders(folder);
        if (!fs::create_directories(folder, code) || code) {
            throw Error::input(
                {.file = folder.string(),
                 .problem = fmt::format("cannot make the folder: {}", code.message())});
        }
    }
    // All files are written beside their targets and then renamed: a failed conversion leaves an
    // older model in the folder as it was.
    ConvertResult result;
    result.files = {weights.string()};
    std::vector<std::unique_ptr<OutputFile>> texts;
    const auto add_text = [&](const fs::path& to, std::string_view text) {
        auto& file = texts.emplace_back(std::make_unique<OutputFile>(to.string()));
        file->write(text);
        file->sync();
        cleanup.add(to);
        result.files.push_back(to.string());
    };
    if (left.empty()) add_text(folder / "config.json", config);
    if (left.empty() && !advice.empty()) add_text(folder / "generation_config.json", advice);
    for (const auto& [from, to] : copies) {
        if (left.empty()) add_text(to, read_text_file(from.string()));
    }
    if (made && left.empty()) {
        add_text(folder / "tokenizer.json", made->tokenizer);
        add_text(folder / "tokenizer_config.json", made->config);
    }
    formats::SafetensorsWriter writer(weights.string());
    writer.set_metadata("format", "pt");
    for (const OutTensor& tensor : converter.tensors()) {
        writer.declare(tensor.name, tensor.dtype, tensor.shape);
    }
    converter.run([&](const void* data, std::size_t bytes) { writer.write(data, bytes); });
    cleanup.add(weights);
    writer.finish();
    for (const auto& file : texts) file->commit();
    cleanup.keep();
    result.bytes = converter.bytes();
    result.tensors = converter.tensors().size();
    if (!left.empty()) result.notes.push_back(left);
    if (copies.empty() && !made && tokenizer) {
        result.notes.push_back(
            "the tokenizer cannot be written as tokenizer.json and is not part of the output: pass "
            "the source to --tokenizer");
    }
    return result;
}

}  // namespace

ConvertResult convert_model(const std::string& given, const std::string& out,
                            const ConvertOptions& options) {
    const std::string in = resolve_run(given);
    if (options.type && !ops::can_quantize(*options.type)) {
        throw Error::usage({.field = "--type",
                            .value = dtype_name(*options.type),
                            .problem = "cannot be written",
                            .remedy = "f32, f16, bf16, q8_0 and q4_0 can"});
    }
    const std::string extension = fs::path(out).extension().string();
    std::error_code code;
    const bool is_folder = fs::is_directory(out, code);
    // A folder's name may contain a dot; these suffixes are names of files.
    static const std::set<std::string> kOther = {".bin", ".pt",   ".pth",  ".ggml",
                                                 ".txt", ".json", ".onnx", ".npz"};
    if (out.empty() || (!is_folder && kOther.count(extension))) {
        throw Error::usage({.file = out,
                            .field = out.empty() ? "output" : "",
                            .problem = "the name does not say which format is wanted",
                            .remedy = "end it in .gguf or .safetensors, or give a folder"});
    }
    if (is_folder && extension == ".gguf") {
        throw Error::input({.file = out, .problem = "this is a folder, not a file to write"});
    }
    ConvertInput input =
        open_of_run(given, [&](const std::string& path) { return open_input(path, options); });
    return extension == ".gguf" ? to_gguf(std::move(input), in, out, options)
                                : to_safetensors(std::move(input), in, out, options);
}

}  // namespace mr::model
