#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/cpu.h"
#include "model/io/random.h"
#include "model/io/source.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

// The engine's type for a matrix that the file holds in `type`.
DType engine_type(DType type) {
    return is_float(type) || type == DType::q8_0 || type == DType::q4_0 ? type : DType::q8_0;
}

// Whether kernels can read a matrix in place. Blocks need no alignment; floats must be aligned to
// their size, which safetensors does not guarantee.
bool usable_in_place(const Source::Place& place) {
    const Tensor& view = place.tensor->view;
    if (!place.contiguous() || engine_type(view.dtype) != view.dtype) return false;
    return !is_float(view.dtype) ||
           reinterpret_cast<std::uintptr_t>(view.data) % dtype_bytes(view.dtype, 1) == 0;
}

// out[rows] in q8_0, from any type that can be expanded.
void requantise(ThreadPool& pool, const Tensor& out, const Tensor& in) {
    const std::int64_t cols = in.cols();
    std::vector<std::vector<float>> rows(static_cast<std::size_t>(pool.size()));
    pool.parallel_for(in.rows(), 16, [&](std::int64_t begin, std::int64_t end, int thread) {
        auto& row = rows[static_cast<std::size_t>(thread)];
        row.resize(static_cast<std::size_t>(cols));
        for (std::int64_t r = begin; r < end; ++r) {
            ops::dequantize(in.dtype, in.row<std::byte>(r), row.data(), cols);
            ops::quantize(out.dtype, row.data(), out.row<std::byte>(r), cols);
        }
    });
}

}  // namespace

std::uint64_t Weights::bytes_per_token() const {
    std::uint64_t total = embedding.row_bytes() + head.bytes() + head_bias.bytes();
    total += positions.row_bytes() + final_norm.bytes() + final_norm_bias.bytes();
    for (const LayerWeights& w : layers) {
        for (const Tensor* tensor :
             {&w.attn_norm, &w.attn_norm_bias, &w.q, &w.k, &w.v, &w.q_bias, &w.k_bias, &w.v_bias,
              &w.q_norm, &w.k_norm, &w.o, &w.o_bias, &w.mlp_norm, &w.mlp_norm_bias, &w.gate, &w.up,
              &w.up_bias, &w.down, &w.down_bias}) {
            total += tensor->bytes();
        }
    }
    return total;
}

Weights planned_weights(const Source& source) {
    source.require_all_known();
    Weights planned;
    planned.layers.resize(static_cast<std::size_t>(source.spec.layers));
    for (RoleAt at : roles_of(source.spec)) {
        const Source::Place place = source.place(at);
        const DType type = is_matrix(at.role) ? engine_type(place.tensor->view.dtype) : DType::f32;
        Tensor& slot = role_slot(planned, at);
        if (is_matrix(at.role) && usable_in_place(place)) {
            slot = source.read(at).view;
            planned.mapped_bytes += slot.bytes();
        } else {
            slot = Tensor(nullptr, type, role_shape(source.spec, at.role));
            planned.owned_bytes += Arena::tensor_bytes(type, slot.shape);
        }
    }
    if (source.spec.tied_embeddings) planned.head = planned.embedding;
    planned.keep.push_back(source.file);
    planned.files = source.maps;
    if (source.expanded) planned.owned_bytes += std::exchange(planned.mapped_bytes, 0);
    return planned;
}

Weights load_weights(const Source& source, const Weights& planned, const Progress& progress) {
    const std::vector<RoleAt> roles = roles_of(source.spec);
    std::uint64_t bytes = 0;  // of what is not used in place
    for (RoleAt at : roles) {
        const Tensor& slot = role_slot(planned, at);
        if (!slot) bytes += Arena::tensor_bytes(slot.dtype, slot.shape);
    }
    auto arena = std::make_shared<Arena>("weights", bytes);
    std::optional<ThreadPool> pool;  // only K-quants need one

    Weights out = planned;
    for (RoleAt at : roles) {
        Tensor& slot = role_slot(out, at);
        if (slot) continue;
        const RoleTensor read = source.read(at);
        slot = arena->tensor(slot.dtype, slot.shape);
        if (slot.dtype == read.view.dtype) {
            std::memcpy(slot.data, read.view.data, slot.bytes());
        } else if (slot.dtype == DType::f32) {
            ops::dequantize(read.view.dtype, read.view.data, slot.f32(), slot.shape.count());
        } else {
            if (!pool) pool.emplace(cpu_info().cores);
            requantise(*pool, slot, read.view);
        }
        if (progress) progress("preparing weights", arena->used(), bytes);
    }
    if (source.spec.tied_embeddings) out.head = out.embedding;
    out.arenas.push_back(std::move(arena));
    return out;
}

namespace {

// Everything but the weights.
Model described(const std::string& source, const Source& opened) {
    Model model;
    model.spec = opened.spec;
    model.tokenizer = opened.tokenizer;
    model.source = source;
    model.format = opened.format;
    model.notes = opened.notes;
    model.generation = opened.generation;
    return model;
}

struct Planned {
    Source source;
    Weights weights;
};
Planned open_and_plan(const std::string& path, const LoadOptions& options) {
    Source source = open_source(path, options);
    Weights weights = planned_weights(source);
    return {std::move(source), std::move(weights)};
}

Planned open_planned(const std::string& given, const LoadOptions& options) {
    const auto open = [&](const std::string& path) { return open_and_plan(path, options); };
    return open_of_run(given, open);
}

// Before any weight is used, however they are loaded: in place, copied, or sent to a device.
void check_all_sums(const Source& opened, const std::string& given, const LoadOptions& options) {
    try {
        // To a device, files are read past the maps (device_reader.h).
        opened.check_sums(options.progress, options.defer_random);
    } catch (const Error& error) {
        const auto known = naming_older(error, given, [&](const std::string& older) {
            open_and_plan(older, options).source.check_sums(options.progress, true);
        });
        if (known) throw Error(*known);
        throw;
    }
}

}  // namespace

Model planned_model(const std::string& source, const LoadOptions& options) {
    if (source.starts_with(kRandomPrefix)) return planned_random_model(source);
    Planned opened = open_planned(source, options);
    Model model = described(source, opened.source);
    model.weights = std::move(opened.weights);
    return model;
}

Model load_model(const std::string& source, const LoadOptions& options) {
    if (source.starts_with(kRandomPrefix)) {
        return options.defer_random ? deferred_random_model(source, options.planned)
                                    : random_model(source, options.planned, options.progress);
    }
    const Planned found = open_planned(source, options);
    MemoryPlan plan;
    plan.add("weights, copied or expanded", found.weights.owned_bytes);
    plan.require(cpu_info().memory_bytes,
                 "convert the model to a GGUF file with --type q8_0 or q4_0 on a larger machine: "
                 "that is used in place");
    Model model = described(source, found.source);
    if (options.planned) {
        model.weights = found.weights;
        options.planned(model);
    }
    check_all_sums(found.source, source, options);
    model.weights = load_weights(found.source, found.weights, options.progress);
    return model;
}

}  // namespace mr::model
