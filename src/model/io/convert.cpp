#include "model/io/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <span>

#include "core/error.h"
#include "core/output_file.h"
#include "core/printable.h"
#include "formats/gguf_writer.h"
#include "model/io/convert_formats.h"
#include "model/io/convert_tensors.h"
#include "model/io/generation.h"
#include "model/io/model_folder.h"
#include "model/io/tokenizer_companions.h"
#include "ops/quant/quant.h"
#include "text/tokenizer_json_writer.h"

namespace mr::model {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kListed = 5;  // files that a note names

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

// A file beside the weights.
struct Companion {
    fs::path path;
    std::string text;
};

// Where the output goes: a folder, or one file and its folder.
struct OutputPlace {
    explicit OutputPlace(const std::string& out)
        : one_file(fs::path(out).extension() == ".safetensors"),
          folder(one_file ? folder_of(out) : fs::path(out)),
          weights(one_file ? fs::path(out) : folder / "model.safetensors") {}

    bool one_file;
    fs::path folder, weights;
};

void require_safetensors_can_hold(const OutputPlace& place, const ConvertOptions& options) {
    std::error_code code;
    if (place.one_file && fs::exists(place.folder / "model.safetensors.index.json", code)) {
        throw Error::usage({.file = place.folder.string(),
                            .problem = "the folder holds a model in several shards",
                            .remedy = "give another folder for the output"});
    }
    if (fs::exists(place.folder / "state.json", code) &&
        fs::exists(place.folder / "optimizer.safetensors", code)) {
        throw Error::usage({.file = place.folder.string(),
                            .problem = "the folder is a checkpoint of a training run",
                            .remedy = "give another folder for the output"});
    }
    if (options.type && is_quantised(*options.type)) {
        throw Error::usage({.field = "--type",
                            .value = dtype_name(*options.type),
                            .problem = "safetensors supports f32, f16 and bf16",
                            .remedy = "choose one of these, or an output that ends in .gguf"});
    }
}

// The tokenizer.json that the tokenizer was read from; empty if it came from another format.
fs::path source_tokenizer(const std::string& in, const ConvertOptions& options) {
    if (!options.tokenizer.empty()) {
        const fs::path given = options.tokenizer;
        return given.extension() == ".json" ? given : fs::path();
    }
    return is_huggingface(in) ? folder_of(in) / "tokenizer.json" : fs::path();
}

// Appends the files of the tokenizer: copied as they are, or made from another format's.
void add_tokenizer(std::vector<Companion>& to, const ConvertInput& input, const std::string& in,
                   const fs::path& folder, const ConvertOptions& options) {
    std::error_code code;
    const std::size_t before = to.size();
    if (const fs::path source = source_tokenizer(in, options); !source.empty()) {
        if (fs::exists(source, code)) {
            to.push_back({folder / "tokenizer.json", read_text_file(source.string())});
        }
        for (const fs::path& path : tokenizer_companions(source.parent_path())) {
            to.push_back({folder / path.filename(), read_text_file(path.string())});
        }
    }
    if (to.size() > before || !input.tokenizer) return;
    if (auto made = text::huggingface_tokenizer(input.tokenizer->data(), input.spec.family)) {
        to.push_back({folder / "tokenizer.json", std::move(made->tokenizer)});
        to.push_back({folder / "tokenizer_config.json", std::move(made->config)});
    }
}

// The text of generation_config.json; empty: none is written.
std::string advice_of(const ConvertInput& input, const std::string& in) {
    std::error_code code;
    if (const fs::path from = folder_of(in) / "generation_config.json";
        is_huggingface(in) && fs::exists(from, code)) {
        return read_text_file(from.string(), 1u << 24);
    }
    std::vector<std::int32_t> ends;
    if (input.tokenizer && input.tokenizer->eos()) ends.push_back(*input.tokenizer->eos());
    const bool turns = input.tokenizer && input.tokenizer->data().end_of_turn;
    if (turns) ends.push_back(*input.tokenizer->data().end_of_turn);
    if (!turns && input.generation == Generation{}) return {};
    return generation_config(input.generation, ends);
}

// All files but the weights. The first one is config.json; its text is still missing, because it
// depends on the types that the weights get.
std::vector<Companion> companions_of(const ConvertInput& input, const std::string& in,
                                     const fs::path& folder, const ConvertOptions& options) {
    std::vector<Companion> out = {{folder / "config.json", {}}};
    if (std::string advice = advice_of(input, in); !advice.empty()) {
        out.push_back({folder / "generation_config.json", std::move(advice)});
    }
    add_tokenizer(out, input, in, folder, options);
    return out;
}

// The files of an older model that a conversion to `place` would leave: readers would take them for
// the new one's.
std::vector<fs::path> stale_files(const OutputPlace& place,
                                  const std::vector<Companion>& companions) {
    std::vector<fs::path> out;
    for (const std::string& name : folder_files(place.folder).model) {
        const fs::path path = place.folder / name;
        const bool written = path == place.weights ||
                             std::ranges::any_of(companions, [&](const Companion& companion) {
                                 return companion.path == path;
                             });
        // Beside a single file only what is read with it: the folder may hold other models.
        if (!written && (!place.one_file || is_read_beside_weights(name))) out.push_back(path);
    }
    return out;
}

// Throws if a file of the input or, without --force, one of a folder would be replaced. Returns why
// a single file's companions are left alone; empty if they are not.
std::string require_free(const std::string& in, const OutputPlace& place,
                         const std::vector<Companion>& companions, const ConvertOptions& options) {
    std::vector<fs::path> outputs = {place.weights};
    for (const Companion& companion : companions) outputs.push_back(companion.path);
    for (const fs::path& stale : stale_files(place, companions)) outputs.push_back(stale);
    refuse_own_input(in, options, outputs);
    if (options.force) return {};
    const std::span<const fs::path> beside = std::span(outputs).subspan(place.one_file ? 1 : 0);
    const auto there = std::ranges::find_if(beside, [](const fs::path& path) {
        std::error_code code;
        return fs::symlink_status(path, code).type() != fs::file_type::not_found;
    });
    if (there == beside.end()) return {};
    if (!place.one_file) {
        throw Error::usage({.file = there->string(),
                            .problem = "this file already exists",
                            .remedy = "give another folder, or --force to replace it"});
    }
    return fmt::format(
        "{} already exists and is kept: only the weights were written, and a reader takes "
        "their configuration and tokenizer from that folder (--force replaces them)",
        there->string());
}

// Writes the companions and the weights, all under temporary names until all are on the disk.
// `stale`: what goes with the older model.
void write_files(const OutputPlace& place, const std::vector<Companion>& companions,
                 Converter& converter, Cleanup& cleanup, const std::vector<fs::path>& stale) {
    std::vector<std::unique_ptr<OutputFile>> files;
    for (const auto& [path, text] : companions) {
        auto& file = files.emplace_back(std::make_unique<OutputFile>(path.string()));
        file->write(text);
        file->sync();
        cleanup.add(path);
    }
    cleanup.add(place.weights);
    // A folder without config.json is no model for any program: the old one's goes first, and the
    // new one's comes last. A process that is killed between leaves no mix of two that loads.
    write_safetensors(place.weights.string(), converter, {}, [&] {
        if (companions.empty()) return;
        std::error_code code;
        fs::remove(companions.front().path, code);
        for (const fs::path& path : stale) fs::remove(path, code);
        sync_path(place.folder.string());
    });
    for (std::size_t i = files.size(); i-- > 0;) files[i]->commit();  // config.json is the first
    sync_path(place.folder.string());
    cleanup.keep();
}

// Where it can be, a folder is replaced as one; else its files one by one. A failed conversion
// leaves an older model in the folder as it was. Returns the names, the weights first.
std::vector<std::string> write_all(const OutputPlace& place,
                                   const std::vector<Companion>& companions, Converter& converter) {
    std::vector<std::string> names = {place.weights.string()};
    for (const Companion& companion : companions) names.push_back(companion.path.string());
    Cleanup cleanup;
    std::error_code code;
    const bool there = fs::is_directory(place.folder, code);
    const std::vector<fs::path> stale = stale_files(place, companions);
    if (!place.one_file) {
        if (!there)
            cleanup.add_folders(fs::absolute(place.folder).lexically_normal().parent_path());
        // A folder without a model may be any folder.
        const bool has_model = there && !folder_files(place.folder).model.empty();
        if (auto swap = !there || has_model ? FolderSwap::make(place.folder) : nullptr) {
            OutputPlace staged = place;
            staged.folder = swap->folder();
            staged.weights = staged.folder / place.weights.filename();
            std::vector<Companion> beside = companions;
            for (Companion& companion : beside) {
                companion.path = staged.folder / companion.path.filename();
            }
            Cleanup none;  // the folder goes as a whole
            write_files(staged, beside, converter, none, {});
            swap->commit();
            cleanup.keep();
            return names;
        }
    }
    if (!there) {
        cleanup.add_folders(place.folder);
        if (!fs::create_directories(place.folder, code) || code) {
            throw Error::input(
                {.file = place.folder.string(),
                 .problem = fmt::format("cannot make the folder: {}", code.message())});
        }
    }
    write_files(place, companions, converter, cleanup, stale);
    return names;
}

// What a replaced folder lost besides what was written anew, and what it kept.
void note_replaced(const OutputPlace& place, const std::vector<Companion>& companions,
                   std::vector<std::string>& notes) {
    std::vector<std::string> removed;
    for (const fs::path& path : stale_files(place, companions)) {
        removed.push_back(path.filename().string());
    }
    if (!removed.empty()) {
        notes.push_back(fmt::format("removed with the older model: {}", listed(removed, kListed)));
    }
    const FolderFiles files = folder_files(place.folder);
    if (place.one_file || files.model.empty() || files.others.empty()) return;
    notes.push_back(
        fmt::format("kept, being no files of a model: {}", listed(files.others, kListed)));
}

ConvertResult to_safetensors(ConvertInput input, const std::string& in, const std::string& out,
                             const ConvertOptions& options) {
    const OutputPlace place(out);
    require_safetensors_can_hold(place, options);
    std::vector<Companion> companions = companions_of(input, in, place.folder, options);
    const std::string left = require_free(in, place, companions, options);
    const bool lacks_tokenizer =
        input.tokenizer && std::ranges::none_of(companions, [](const Companion& companion) {
            return companion.path.filename() == "tokenizer.json";
        });

    const ModelSpec spec = input.spec;
    const auto tokenizer = input.tokenizer;
    Converter converter(std::move(input), huggingface_dialect(spec.family), options);
    companions.front().text = huggingface_config(spec, tokenizer.get(), converter.main_type(), in);
    if (!left.empty()) companions.clear();
    ConvertResult result;
    if (left.empty()) note_replaced(place, companions, result.notes);
    result.files = write_all(place, companions, converter);
    result.bytes = converter.bytes();
    result.tensors = converter.tensors().size();
    for (std::string& said : converter.notes()) result.notes.push_back(std::move(said));
    if (!left.empty()) result.notes.push_back(left);
    if (lacks_tokenizer) {
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
