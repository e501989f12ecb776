#include "model/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>

#include "core/cpu.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/thread_pool.h"
#include "formats/gguf_writer.h"
#include "formats/safetensors.h"
#include "model/convert_formats.h"
#include "model/random.h"
#include "model/source.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = 4u << 20;  // written at a time

// The model to convert: a file that was opened, or random weights.
struct Input {
    ModelSpec spec;
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::function<RoleTensor(RoleAt)> read;
    std::function<DType(RoleAt)> dtype;
};

Input open_input(const std::string& in, const ConvertOptions& options) {
    Input out;
    if (in.starts_with(kRandomPrefix)) {
        auto model = std::make_shared<Model>(random_model(in));
        out.spec = model->spec;
        out.tokenizer = options.tokenizer.empty()
                            ? model->tokenizer
                            : open_tokenizer(options.tokenizer, out.spec.vocab);
        require_vocab(out.spec, out.tokenizer.get(), in);
        out.read = [model](RoleAt at) { return RoleTensor{role_slot(model->weights, at), model}; };
        out.dtype = [model](RoleAt at) { return role_slot(model->weights, at).dtype; };
        return out;
    }
    LoadOptions load;
    load.tokenizer = options.tokenizer;
    auto source = std::make_shared<Source>(open_source(in, load));
    source->require_all_known();
    out.spec = source->spec;
    out.tokenizer = source->tokenizer;
    out.read = [source](RoleAt at) { return source->read(at); };
    out.dtype = [source](RoleAt at) { return source->place(at).tensor->view.dtype; };
    return out;
}

// One tensor of the output: one role, or q, k and v in one.
struct OutTensor {
    std::string name;
    std::vector<RoleAt> parts;
    DType dtype = DType::f32;
    Shape shape;  // in the file
    bool transposed = false;
};

// Row `row` of the output is row `row` of part `part`.
struct RowRef {
    int part;
    std::int64_t row;
};

class Converter {
  public:
    Converter(Input input, Dialect dialect, const ConvertOptions& options)
        : input_(std::move(input)),
          dialect_(dialect),
          layout_(dialect_layout(dialect, input_.spec.family)),
          options_(options),
          pool_(cpu_info().cores) {
        // GGUF's llama turns neighbours; all others turn halves.
        const bool interleaved =
            dialect == Dialect::gguf && gguf_architecture(input_.spec) == "llama";
        style_ = interleaved ? ops::RopeStyle::interleaved : ops::RopeStyle::half;
        plan();
    }

    const std::vector<OutTensor>& tensors() const { return tensors_; }
    std::vector<std::string> notes() const {
        if (fallbacks_.empty()) return {};
        return {fmt::format("{} matrices ({}, ...) have rows that are not a multiple of 32: f16",
                            fallbacks_.size(), fallbacks_.front())};
    }
    std::uint64_t bytes() const { return total_; }

    // The type of most matrices: what the file is said to be of.
    DType main_type() const {
        for (const OutTensor& tensor : tensors_) {
            if (tensor.parts.front().role == Role::up) return tensor.dtype;
        }
        return DType::f32;
    }

    // Calls write(data, bytes) with the data of every tensor in order.
    template <typename Write>
    void run(Write&& write) {
        std::uint64_t done = 0;
        for (const OutTensor& tensor : tensors_) {
            const auto counted = [&](const void* data, std::size_t bytes) {
                write(data, bytes);
                done += bytes;
                if (options_.progress) options_.progress("converting", done, total_);
            };
            if (tensor.parts.front().role == Role::rope_freqs) {
                const std::vector<float> factors = gguf_frequency_factors(input_.spec.rope);
                counted(factors.data(), factors.size() * sizeof(float));
            } else if (tensor.shape.rank == 1) {
                write_vector(tensor, counted);
            } else {
                write_matrix(tensor, counted);
            }
        }
    }

  private:
    void plan() {
        const ModelSpec& spec = input_.spec;
        std::vector<RoleAt> roles = roles_of(spec);
        // llama.cpp wants GPT-NeoX's head written out.
        if (spec.tied_embeddings && dialect_ == Dialect::gguf && spec.family == "gpt-neox") {
            roles.push_back({Role::head});
        }
        for (RoleAt at : roles) {
            if (layout_.qkv != DialectLayout::Qkv::separate) {
                // q stands for all three.
                if (at.role == Role::q) {
                    add({Role::qkv, at.layer}, {at, {Role::k, at.layer}, {Role::v, at.layer}});
                    continue;
                }
                if (at.role == Role::q_bias) {
                    add({Role::qkv_bias, at.layer},
                        {at, {Role::k_bias, at.layer}, {Role::v_bias, at.layer}});
                    continue;
                }
                if (at.role == Role::k || at.role == Role::v || at.role == Role::k_bias ||
                    at.role == Role::v_bias) {
                    continue;
                }
            }
            add(at, {at});
        }
        if (dialect_ == Dialect::gguf && !gguf_frequency_factors(spec.rope).empty()) {
            OutTensor freqs;
            freqs.name = tensor_names(dialect_, {Role::rope_freqs}).front();
            freqs.parts = {{Role::rope_freqs}};
            freqs.shape = role_shape(spec, Role::rope_freqs);
            total_ += dtype_bytes(DType::f32, static_cast<std::size_t>(freqs.shape.count()));
            tensors_.push_back(std::move(freqs));
        }
    }

    void add(RoleAt at, std::vector<RoleAt> parts) {
        OutTensor out;
        const auto names = tensor_names(dialect_, at);
        if (names.empty()) {
            throw Error::input({.field = fmt::format("role {}", static_cast<int>(at.role)),
                                .problem = "the output format has no name for this tensor"});
        }
        out.name = names.front();
        out.shape = role_shape(input_.spec, at.role);
        out.transposed = layout_.transposed && is_matrix(at.role) && is_per_layer(at.role);
        if (out.transposed) out.shape = Shape{out.shape[1], out.shape[0]};
        out.parts = std::move(parts);
        out.dtype = is_matrix(at.role) ? choose_type(at.role, out) : DType::f32;
        total_ += dtype_bytes(out.dtype, static_cast<std::size_t>(out.shape.count()));
        tensors_.push_back(std::move(out));
    }

    DType choose_type(Role role, const OutTensor& out) {
        DType type = options_.type.value_or(part_type(out));
        if (dialect_ != Dialect::gguf) return is_quantised(type) ? DType::f16 : type;
        const bool is_head =
            role == Role::head || (role == Role::embedding && input_.spec.tied_embeddings);
        if (options_.type == DType::q4_0 && is_head) type = DType::q8_0;
        if (options_.type && is_quantised(type) && role == Role::positions) return DType::f32;
        if (out.shape[1] % dtype_info(type).block != 0) {
            fallbacks_.push_back(out.name);
            return DType::f16;
        }
        return type;
    }

    // The type that the parts have in the input; f16 where they differ.
    DType part_type(const OutTensor& out) const {
        const DType first = source_dtype(out.parts.front());
        for (RoleAt part : out.parts) {
            if (source_dtype(part) != first) return DType::f16;
        }
        return first;
    }

    // A tied head is the embedding.
    RoleAt stored(RoleAt at) const {
        return at.role == Role::head && input_.spec.tied_embeddings ? RoleAt{Role::embedding} : at;
    }
    DType source_dtype(RoleAt at) const { return input_.dtype(stored(at)); }
    std::vector<RoleTensor> read(const OutTensor& tensor) const {
        std::vector<RoleTensor> out;
        for (RoleAt part : tensor.parts) out.push_back(input_.read(stored(part)));
        return out;
    }

    // Which row of a q or k in memory belongs at `row`, where the output turns other pairs.
    std::int64_t rope_row(Role role, std::int64_t row) const {
        const RopeSpec& rope = input_.spec.rope;
        const bool turns =
            role == Role::q || role == Role::k || role == Role::q_bias || role == Role::k_bias;
        if (!turns || rope.style == style_ || rope.rotary == 0) return row;
        const std::int64_t half = rope.rotary / 2;
        const std::int64_t at = row % input_.spec.head_dim;
        if (at >= rope.rotary) return row;
        const std::int64_t from = style_ == ops::RopeStyle::interleaved
                                      ? at / 2 + (at % 2) * half
                                      : (at % half) * 2 + at / half;
        return row - at + from;
    }

    std::vector<RowRef> row_order(const OutTensor& tensor) const {
        std::vector<RowRef> out;
        const auto append = [&](int part, std::int64_t first, std::int64_t count) {
            const Role role = tensor.parts[static_cast<std::size_t>(part)].role;
            for (std::int64_t row = first; row < first + count; ++row) {
                out.push_back({part, rope_row(role, row)});
            }
        };
        const auto rows = [&](int part) {
            return role_shape(input_.spec, tensor.parts[static_cast<std::size_t>(part)].role)[0];
        };
        const auto parts = static_cast<int>(tensor.parts.size());
        if (parts == 3 && layout_.qkv == DialectLayout::Qkv::by_head) {
            const std::int64_t size = input_.spec.head_dim;
            for (std::int64_t head = 0; head < input_.spec.heads; ++head) {
                for (int part = 0; part < parts; ++part) append(part, head * size, size);
            }
        } else {
            for (int part = 0; part < parts; ++part) append(part, 0, rows(part));
        }
        return out;
    }

    template <typename Write>
    void write_vector(const OutTensor& tensor, Write&& write) {
        std::vector<std::vector<float>> parts;
        for (const RoleTensor& part : read(tensor)) {
            auto& values = parts.emplace_back(static_cast<std::size_t>(part.view.shape.count()));
            ops::dequantize(part.view.dtype, part.view.data, values.data(),
                            part.view.shape.count());
        }
        std::vector<float> out;
        for (RowRef ref : row_order(tensor)) {
            out.push_back(
                parts[static_cast<std::size_t>(ref.part)][static_cast<std::size_t>(ref.row)]);
        }
        write(out.data(), out.size() * sizeof(float));
    }

    // Rows of `cols` elements from fetch(row, f32 scratch), in the tensor's type, chunk by chunk.
    template <typename Fetch, typename Write>
    void write_rows(std::int64_t rows, std::size_t row_bytes, Fetch&& fetch, Write&& write) {
        const auto chunk =
            std::max<std::int64_t>(1, static_cast<std::int64_t>(kChunkBytes / row_bytes));
        buffer_.resize(static_cast<std::size_t>(std::min(chunk, rows)) * row_bytes);
        scratch_.resize(static_cast<std::size_t>(pool_.size()));
        for (std::int64_t first = 0; first < rows; first += chunk) {
            const std::int64_t count = std::min(chunk, rows - first);
            pool_.parallel_for(count, 8, [&](std::int64_t begin, std::int64_t end, int thread) {
                for (std::int64_t i = begin; i < end; ++i) {
                    fetch(first + i, scratch_[static_cast<std::size_t>(thread)],
                          buffer_.data() + static_cast<std::size_t>(i) * row_bytes);
                }
            });
            write(buffer_.data(), static_cast<std::size_t>(count) * row_bytes);
        }
    }

    template <typename Write>
    void write_matrix(const OutTensor& tensor, Write&& write) {
        const std::vector<RoleTensor> parts = read(tensor);
        const std::vector<RowRef> order = row_order(tensor);
        const std::int64_t cols = parts.front().view.cols();
        const std::size_t row_bytes =
            dtype_bytes(tensor.dtype, static_cast<std::size_t>(tensor.shape[1]));
        const auto source_row = [&](std::int64_t row) -> std::pair<const std::byte*, DType> {
            const RowRef ref = order[static_cast<std::size_t>(row)];
            const Tensor& view = parts[static_cast<std::size_t>(ref.part)].view;
            return {view.row<const std::byte>(ref.row), view.dtype};
        };
        if (!tensor.transposed) {
            write_rows(
                tensor.shape[0], row_bytes,
                [&](std::int64_t row, std::vector<float>& scratch, std::byte* out) {
                    const auto [data, dtype] = source_row(row);
                    if (dtype == tensor.dtype) {
                        std::memcpy(out, data, row_bytes);
                        return;
                    }
                    scratch.resize(static_cast<std::size_t>(cols));
                    ops::dequantize(dtype, data, scratch.data(), cols);
                    ops::quantize(tensor.dtype, scratch.data(), out, cols);
                },
                write);
            return;
        }
        // A row of the output is a column of the parts: all of them are needed at once.
        const std::int64_t rows = tensor.shape[1];
        std::vector<float> all(static_cast<std::size_t>(rows * cols));
        pool_.parallel_for(rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t row = begin; row < end; ++row) {
                const auto [data, dtype] = source_row(row);
                ops::dequantize(dtype, data, all.data() + row * cols, cols);
            }
        });
        write_rows(
            cols, row_bytes,
            [&](std::int64_t col, std::vector<float>& scratch, std::byte* out) {
                scratch.resize(static_cast<std::size_t>(rows));
                for (std::int64_t row = 0; row < rows; ++row) {
                    scratch[static_cast<std::size_t>(row)] =
                        all[static_cast<std::size_t>(row * cols + col)];
                }
                ops::quantize(tensor.dtype, scratch.data(), out, rows);
            },
            write);
    }

    Input input_;
    Dialect dialect_;
    DialectLayout layout_;
    const ConvertOptions& options_;
    ops::RopeStyle style_;
    ThreadPool pool_;
    std::vector<OutTensor> tensors_;
    std::vector<std::string> fallbacks_;
    std::uint64_t total_ = 0;
    std::vector<std::byte> buffer_;
    std::vector<std::vector<float>> scratch_;  // by thread
};

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

// Throws where one of `outputs` is a file of the input: it is mapped while they are written.
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

ConvertResult to_gguf(Input input, const std::string& in, const std::string& out,
                      const ConvertOptions& options) {
    refuse_own_input(in, options, {out});
    require_gguf_can_hold(input.spec, in);
    const ModelSpec spec = input.spec;
    const auto tokenizer = input.tokenizer;
    Converter converter(std::move(input), Dialect::gguf, options);
    formats::GgufWriter writer(out);
    write_gguf_metadata(writer, spec, tokenizer.get(), converter.main_type());
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
    if (!tokenizer) {
        result.notes.push_back("the source has no tokenizer, and so the GGUF has no vocabulary");
    }
    return result;
}

// Removes what was made, unless it is told that all went well. What was there before stays.
class Cleanup {
  public:
    ~Cleanup() {
        std::error_code code;
        for (const fs::path& path : paths_) fs::remove(path, code);  // a folder only if empty
    }
    // Before `path` is made.
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

ConvertResult to_safetensors(Input input, const std::string& in, const std::string& out,
                             const ConvertOptions& options) {
    std::error_code code;
    const bool one_file = fs::path(out).extension() == ".safetensors";
    const fs::path folder = one_file ? folder_of(out) : fs::path(out);
    const fs::path weights = one_file ? fs::path(out) : folder / "model.safetensors";

    // What a tokenizer is made of is carried over as it is.
    const fs::path tokenizer_folder =
        !options.tokenizer.empty() ? folder_of(options.tokenizer) : folder_of(in);
    std::vector<std::pair<fs::path, fs::path>> copies;
    if (fs::path(options.tokenizer.empty() && is_huggingface(in) ? "tokenizer.json"
                                                                 : options.tokenizer)
            .extension() == ".json") {
        for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                 "special_tokens_map.json", "generation_config.json"}) {
            if (fs::exists(tokenizer_folder / name, code)) {
                copies.emplace_back(tokenizer_folder / name, folder / name);
            }
        }
    }
    // From other formats they are made.
    std::optional<TokenizerFiles> made;
    if (copies.empty() && input.tokenizer) made = huggingface_tokenizer(input.tokenizer->data());
    std::vector<fs::path> outputs = {weights, folder / "config.json"};
    for (const auto& [from, to] : copies) outputs.push_back(to);
    if (made) {
        outputs.push_back(folder / "tokenizer.json");
        outputs.push_back(folder / "tokenizer_config.json");
    }
    refuse_own_input(in, options, outputs);
    if (fs::exists(folder / "model.safetensors.index.json", code)) {
        throw Error::usage({.file = folder.string(),
                            .problem = "a model in several shards lies here",
                            .remedy = "give another folder for the output"});
    }
    if (options.type && is_quantised(*options.type)) {
        throw Error::usage({.field = "--type",
                            .value = dtype_name(*options.type),
                            .problem = "safetensors hold f32, f16 and bf16",
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
    // All of them are written beside their targets, and only then put in place: a conversion that
    // fails leaves an older model in the folder as it was.
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
    add_text(folder / "config.json", config);
    for (const auto& [from, to] : copies) add_text(to, read_text_file(from.string()));
    if (made) {
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
    if (copies.empty() && !made && tokenizer) {
        result.notes.push_back(
            "the tokenizer has no tokenizer.json form and is not part of the output: "
            "give the source to --tokenizer");
    }
    return result;
}

}  // namespace

ConvertResult convert_model(const std::string& in, const std::string& out,
                            const ConvertOptions& options) {
    if (options.type && !ops::can_quantize(*options.type)) {
        throw Error::usage({.field = "--type",
                            .value = dtype_name(*options.type),
                            .problem = "cannot be written",
                            .remedy = "f32, f16, bf16, q8_0 and q4_0 can"});
    }
    const std::string extension = fs::path(out).extension().string();
    std::error_code code;
    const bool is_folder = fs::is_directory(out, code);
    // A folder's name may have a point in it; these are names of files.
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
    Input input = open_input(in, options);
    return extension == ".gguf" ? to_gguf(std::move(input), in, out, options)
                                : to_safetensors(std::move(input), in, out, options);
}

}  // namespace mr::model
