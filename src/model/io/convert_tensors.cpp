#include "model/io/convert_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "core/cpu.h"
#include "core/error.h"
#include "formats/safetensors.h"
#include "model/io/convert_formats.h"
#include "model/io/random.h"
#include "model/row_order.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

constexpr std::size_t kChunkBytes = 4u << 20;  // written at a time

}  // namespace

ConvertInput open_input(const std::string& in, const ConvertOptions& options) {
    ConvertInput out;
    out.path = in;
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
    load.ignore_keys = options.ignore_keys;
    auto source = std::make_shared<Source>(open_source(in, load));
    source->require_all_known();
    out.spec = source->spec;
    out.tokenizer = source->tokenizer;
    out.generation = source->generation;
    out.read = [source](RoleAt at) { return source->read(at); };
    out.dtype = [source](RoleAt at) { return source->place(at).tensor->view.dtype; };
    out.check = [source](const Progress& progress) { source->check_sums(progress); };
    return out;
}

Converter::Converter(ConvertInput input, Dialect dialect, const ConvertOptions& options)
    : input_(std::move(input)),
      dialect_(dialect),
      layout_(dialect_layout(dialect, input_.spec.family)),
      options_(options),
      pool_(cpu_info().cores) {
    if (input_.check) input_.check(options_.progress);
    plan();
}

// Of the matrices whose type changed although none was asked for, one line for each change.
void Converter::note_changed_types(std::vector<std::string>& notes) const {
    if (options_.type) return;
    std::map<std::pair<DType, DType>, int> changed;
    for (const OutTensor& tensor : tensors_) {
        if (!is_matrix(tensor.parts.front().role) || tensor.shape.rank != 2) continue;
        const bool noted = std::ranges::find(fallbacks_, tensor.name) != fallbacks_.end();
        for (const RoleAt part : tensor.parts) {
            const DType from = source_dtype(part);
            if (from != tensor.dtype && !noted) ++changed[{from, tensor.dtype}];
        }
    }
    for (const auto& [types, count] : changed) {
        const auto& [from, to] = types;
        const bool lacks = is_quantised(from) && dialect_ != Dialect::gguf;
        notes.push_back(fmt::format(
            "{} of type {} became {}: {}",
            count == 1 ? "1 matrix" : fmt::format("{} matrices", count), dtype_name(from),
            dtype_name(to),
            lacks ? "safetensors holds no quantised weights (--type f32 or bf16 is another choice, "
                    "and "
                    "FILE.gguf keeps them)"
                  : "this format has it in one tensor with others (--type says which type)"));
    }
}

std::vector<std::string> Converter::notes() const {
    std::vector<std::string> out;
    note_changed_types(out);
    if (!fallbacks_.empty()) {
        out.push_back(
            fmt::format("{} matrices ({}, ...) have rows that are not a multiple of 32: f16",
                        fallbacks_.size(), fallbacks_.front()));
    }
    for (const std::string& name : kept_) {
        out.push_back(fmt::format("{} has numbers that the type asked for cannot hold", name));
    }
    return out;
}

DType Converter::main_type() const {
    for (const OutTensor& tensor : tensors_) {
        if (tensor.parts.front().role == Role::up) return tensor.dtype;
    }
    return DType::f32;
}

void Converter::run(const Write& write) {
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

void Converter::plan() {
    const ModelSpec& spec = input_.spec;
    std::vector<RoleAt> roles = roles_of(spec);
    // llama.cpp expects GPT-NeoX's head as a tensor of its own.
    if (spec.tied_embeddings && dialect_ == Dialect::gguf && spec.family == "gpt-neox") {
        roles.push_back({Role::head});
    }
    for (RoleAt at : roles) {
        if (layout_.qkv != DialectLayout::Qkv::separate) {
            // q stands for q, k and v.
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
    if (options_.keep_outliers) keep_outliers();
}

void Converter::require_held(const OutTensor& tensor, const float* row, std::int64_t count) const {
    float most = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (const float x = std::fabs(row[i]); x > most && std::isfinite(x)) most = x;
    }
    if (ops::can_hold(tensor.dtype, most)) return;
    const bool bf16 = ops::can_hold(DType::bf16, most);
    throw Error::input(
        {.file = input_.path,
         .field = fmt::format("tensor {} of the output", tensor.name),
         .value = fmt::format("{:g}", most),
         .problem = fmt::format("{} cannot hold a number of this size", dtype_name(tensor.dtype)),
         .remedy = fmt::format("give --keep-outliers to keep this tensor in {}, or "
                               "choose --type {}",
                               bf16 ? "bf16 or f32" : "f32", bf16 ? "bf16" : "f32")});
}

// Gives matrices whose numbers do not fit a type that holds them.
void Converter::keep_outliers() {
    for (OutTensor& tensor : tensors_) {
        if (tensor.shape.rank != 2) continue;
        const DType wanted = tensor.dtype;
        for (const RoleTensor& part : read(tensor)) {
            const Tensor& view = part.view;
            if (view.dtype == wanted || tensor.dtype != wanted) continue;
            try {
                pool_.parallel_for(view.rows(), 8, [&](std::int64_t first, std::int64_t last, int) {
                    std::vector<float> row(static_cast<std::size_t>(view.cols()));
                    for (std::int64_t i = first; i < last; ++i) {
                        ops::dequantize(view.dtype, view.row<const std::byte>(i), row.data(),
                                        view.cols());
                        require_held(tensor, row.data(), view.cols());
                    }
                });
            } catch (const Error&) {
                tensor.dtype = part_type(tensor) == DType::bf16 ? DType::bf16 : DType::f32;
                std::erase(fallbacks_, tensor.name);
            }
        }
        if (tensor.dtype == wanted) continue;
        const auto count = static_cast<std::size_t>(tensor.shape.count());
        total_ += dtype_bytes(tensor.dtype, count) - dtype_bytes(wanted, count);
        kept_.push_back(fmt::format("{} ({})", tensor.name, dtype_name(tensor.dtype)));
    }
}

void Converter::add(RoleAt at, std::vector<RoleAt> parts) {
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

DType Converter::choose_type(Role role, const OutTensor& out) {
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

// The common type of the parts in the input; f16 if they differ.
DType Converter::part_type(const OutTensor& out) const {
    const DType first = source_dtype(out.parts.front());
    for (RoleAt part : out.parts) {
        if (source_dtype(part) != first) return DType::f16;
    }
    return first;
}

std::vector<RoleTensor> Converter::read(const OutTensor& tensor) const {
    std::vector<RoleTensor> out;
    for (RoleAt part : tensor.parts) out.push_back(input_.read(stored(part)));
    return out;
}

// The source row of q or k for `row` of the output, where the output rotates other pairs.
std::int64_t Converter::rope_row(Role role, std::int64_t row) const {
    if (input_.spec.rope.style == layout_.rope) return row;
    const RowOrder rows = reordered_rows(input_.spec, role);
    return layout_.rope == ops::RopeStyle::interleaved ? rows.source(row) : rows.inverse(row);
}

std::vector<Converter::RowRef> Converter::row_order(const OutTensor& tensor) const {
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

void Converter::write_vector(const OutTensor& tensor, const Write& write) {
    std::vector<std::vector<float>> parts;
    for (const RoleTensor& part : read(tensor)) {
        auto& values = parts.emplace_back(static_cast<std::size_t>(part.view.shape.count()));
        ops::dequantize(part.view.dtype, part.view.data, values.data(), part.view.shape.count());
    }
    std::vector<float> out;
    for (RowRef ref : row_order(tensor)) {
        out.push_back(parts[static_cast<std::size_t>(ref.part)][static_cast<std::size_t>(ref.row)]);
    }
    write(out.data(), out.size() * sizeof(float));
}

// Writes rows of `cols` elements from fetch(row, f32 scratch), in the tensor's type, chunk by
// chunk.
void Converter::write_rows(std::int64_t rows, std::size_t row_bytes, const Fetch& fetch,
                           const Write& write) {
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

void Converter::write_matrix(const OutTensor& tensor, const Write& write) {
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
                require_held(tensor, scratch.data(), cols);
                ops::quantize(tensor.dtype, scratch.data(), out, cols);
            },
            write);
        return;
    }
    // A row of the output is a column of the parts, so all of them are needed at once.
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
            require_held(tensor, scratch.data(), rows);
            ops::quantize(tensor.dtype, scratch.data(), out, rows);
        },
        write);
}

void write_safetensors(const std::string& path, Converter& converter,
                       const std::function<void()>& progress, const std::function<void()>& ready) {
    formats::SafetensorsWriter writer(path);
    writer.set_metadata("format", "pt");
    for (const OutTensor& tensor : converter.tensors()) {
        writer.declare(tensor.name, tensor.dtype, tensor.shape);
    }
    converter.run([&](const void* data, std::size_t bytes) {
        writer.write(data, bytes);
        if (progress) progress();
    });
    writer.finish(ready);
    if (progress) progress();
}

}  // namespace mr::model
