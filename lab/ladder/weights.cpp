#include "lab/ladder/weights.h"

#include <cstring>
#include <vector>

#include "core/arena.h"
#include "model/names.h"
#include "ops/quant/quant.h"

namespace mr::ladder {
namespace {

DType type_of(const Tensor& tensor, model::Role role, DType type) {
    if (!model::is_matrix(role)) return DType::f32;
    return tensor.cols() % dtype_info(type).block == 0 ? type : DType::f16;
}

}  // namespace

std::uint64_t bytes_as(const model::Model& model, DType type) {
    std::uint64_t bytes = 0;
    for (const model::RoleAt at : model::roles_of(model.spec)) {
        const Tensor& from = model::role_slot(model.weights, at);
        bytes += Arena::tensor_bytes(type_of(from, at.role, type), from.shape);
    }
    return bytes;
}

ModelPtr as_type(const model::Model& model, DType type, ThreadPool& pool) {
    auto out = std::make_shared<model::Model>();
    out->spec = model.spec;
    out->source = model.source;
    out->format = model.format;
    out->weights.layers.resize(model.weights.layers.size());
    out->weights.owned_bytes = bytes_as(model, type);
    auto arena = std::make_shared<Arena>("weights", out->weights.owned_bytes);
    for (const model::RoleAt at : model::roles_of(model.spec)) {
        const Tensor& from = model::role_slot(model.weights, at);
        const Tensor to = arena->tensor(type_of(from, at.role, type), from.shape);
        pool.parallel_for(from.rows(), 64, [&](std::int64_t begin, std::int64_t end, int) {
            std::vector<float> row(static_cast<std::size_t>(from.cols()));
            for (std::int64_t r = begin; r < end; ++r) {
                ops::dequantize(from.dtype, from.row<std::byte>(r), row.data(), from.cols());
                ops::quantize(to.dtype, row.data(), to.row<std::byte>(r), from.cols());
            }
        });
        model::role_slot(out->weights, at) = to;
    }
    if (model.spec.tied_embeddings) out->weights.head = out->weights.embedding;
    out->weights.arenas.push_back(std::move(arena));
    return out;
}

bool same_weights(const model::Model& a, const model::Model& b) {
    for (const model::RoleAt at : model::roles_of(a.spec)) {
        const Tensor& x = model::role_slot(a.weights, at);
        const Tensor& y = model::role_slot(b.weights, at);
        if (x.dtype != y.dtype || std::memcmp(x.data, y.data, x.bytes()) != 0) return false;
    }
    return true;
}

}  // namespace mr::ladder
