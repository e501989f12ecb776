#include "model/cuda/device_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "core/cuda/device.h"
#include "core/error.h"
#include "ops/linear/tile_layout.h"

namespace mr::model {
namespace {

// Hands out addresses as an arena would.
class Cursor {
  public:
    explicit Cursor(std::uintptr_t base) : base_(base) {}
    std::uintptr_t take(std::uint64_t bytes) {
        const std::uintptr_t at = base_ + used_;
        used_ += cuda::DeviceArena::padded(bytes);
        return at;
    }
    std::uint64_t used() const { return used_; }

  private:
    std::uintptr_t base_;
    std::uint64_t used_ = 0;
};

Tensor at_address(std::uintptr_t address, DType type, const Shape& shape) {
    return {reinterpret_cast<void*>(address), type, shape};
}

// Kernels load 16 bytes at a time, and tiles have 8 rows: a part must start at a multiple of both.
bool may_follow(DType type, const Shape& before) {
    if (ops::is_tiled(type)) return before[0] % ops::kTileRows == 0;
    return device_matrix_bytes(type, before[0], before[1]) % 16 == 0;
}

class Placer {
  public:
    Placer(const ModelSpec& spec, const DTypeOf& types, std::uintptr_t base)
        : spec_(spec), types_(types), cursor_(base) {
        out_.weights.layers.resize(static_cast<std::size_t>(spec.layers));
        out_.layers.resize(static_cast<std::size_t>(spec.layers));
        const std::vector<RoleAt> roles = roles_of(spec);
        for (RoleAt at : roles) {
            if (!is_matrix(at.role)) place_vector(at);
        }
        out_.vector_bytes = cursor_.used();
        for (RoleAt at : roles) {
            if (is_matrix(at.role)) place_matrix(at);
        }
        if (spec.tied_embeddings) out_.weights.head = out_.weights.embedding;
        out_.bytes = out_.weights.owned_bytes = cursor_.used();
    }
    DeviceViews result() { return std::move(out_); }

  private:
    Tensor& slot(Role role, int layer) { return role_slot(out_.weights, {role, layer}); }
    DeviceLayer& layer(RoleAt at) { return out_.layers[static_cast<std::size_t>(at.layer)]; }
    Shape shape(Role role) const { return role_shape(spec_, role); }
    DType type(Role role, int layer) const { return device_type(types_({role, layer})); }

    // One allocation for several vectors.
    Tensor join_vectors(std::span<const Role> roles, int layer) {
        std::int64_t count = 0;
        for (Role role : roles) count += shape(role)[0];
        const std::uintptr_t address = cursor_.take(static_cast<std::uint64_t>(count) * 4);
        std::uintptr_t at = address;
        for (Role role : roles) {
            slot(role, layer) = at_address(at, DType::f32, shape(role));
            at += slot(role, layer).bytes();
        }
        return at_address(address, DType::f32, {count});
    }

    void place_vector(RoleAt at) {
        if (at.role == Role::q_bias) {
            const std::array parts = {Role::q_bias, Role::k_bias, Role::v_bias};
            layer(at).qkv_bias = join_vectors(parts, at.layer);
        } else if (at.role != Role::k_bias && at.role != Role::v_bias) {
            join_vectors(std::array{at.role}, at.layer);
        }
    }

    // The parts as one matrix; none, and nothing allocated, if they cannot be joined.
    Tensor join_matrices(std::span<const Role> roles, int layer) {
        const DType joined = type(roles.front(), layer);
        std::int64_t rows = 0;
        for (std::size_t i = 0; i < roles.size(); ++i) {
            if (type(roles[i], layer) != joined) return {};
            if (i + 1 < roles.size() && !may_follow(joined, shape(roles[i]))) return {};
            rows += shape(roles[i])[0];
        }
        const std::int64_t cols = shape(roles.front())[1];
        const std::uintptr_t address = cursor_.take(device_matrix_bytes(joined, rows, cols));
        std::uintptr_t at = address;
        for (Role role : roles) {
            slot(role, layer) = at_address(at, joined, shape(role));
            at += device_matrix_bytes(joined, shape(role)[0], cols);
        }
        return at_address(address, joined, {rows, cols});
    }

    void place_matrix(RoleAt at) {
        const bool in_qkv = at.role == Role::q || at.role == Role::k || at.role == Role::v;
        const bool in_gate_up = at.role == Role::gate || (at.role == Role::up && spec_.gated);
        if (at.role == Role::q) {
            layer(at).qkv = join_matrices(std::array{Role::q, Role::k, Role::v}, at.layer);
        } else if (at.role == Role::gate) {
            layer(at).gate_up = join_matrices(std::array{Role::gate, Role::up}, at.layer);
        }
        if (in_qkv && layer(at).qkv.shape.rank) return;
        if (in_gate_up && layer(at).gate_up.shape.rank) return;
        join_matrices(std::array{at.role}, at.layer);
    }

    const ModelSpec& spec_;
    const DTypeOf& types_;
    Cursor cursor_;
    DeviceViews out_;
};

}  // namespace

DTypeOf types_of(const Model& model) {
    return [&model](RoleAt at) { return role_slot(model.weights, at).dtype; };
}

DType device_type(DType host) {
    MR_CHECK(is_float(host) || host == DType::q8_0 || host == DType::q4_0,
             "device weights are made of weights as loaded, before repack_weights()");
    return host == DType::q8_0 ? DType::q8_0x8 : host == DType::q4_0 ? DType::q4_0x8 : host;
}

std::uint64_t device_matrix_bytes(DType type, std::int64_t rows, std::int64_t cols) {
    if (ops::is_tiled(type)) return ops::tile_bytes(type, rows, cols);
    return dtype_bytes(type, static_cast<std::size_t>(rows * cols));
}

DeviceViews device_views(const ModelSpec& spec, const DTypeOf& types, std::uintptr_t base) {
    return Placer(spec, types, base).result();
}

std::uint64_t device_weight_bytes(const ModelSpec& spec, const DTypeOf& types) {
    return device_views(spec, types, 0).bytes;
}

std::uint64_t device_weight_bytes(const Model& model) {
    return device_weight_bytes(model.spec, types_of(model));
}

std::uint64_t device_weight_bytes(const ModelSpec& spec, DType type) {
    return device_weight_bytes(spec, [&](RoleAt at) {
        if (!is_matrix(at.role)) return DType::f32;
        return role_shape(spec, at.role)[1] % dtype_info(type).block == 0 ? type : DType::f16;
    });
}

std::string device_remedy(const DeviceNeeds& needs, const ModelSpec& spec,
                          std::uint64_t available) {
    std::string out;
    if (needs.fitting > 0) out = fmt::format("use {} {}", needs.option, needs.fitting);
    // Smaller weight types, with everything else as asked for.
    const std::uint64_t rest = needs.plan.total() - std::min(needs.plan.total(), needs.weights);
    std::string types;
    for (DType type : {DType::bf16, DType::q8_0, DType::q4_0}) {
        const std::uint64_t bytes = device_weight_bytes(spec, type);
        if (bytes >= needs.weights || bytes + rest > available) continue;
        types += fmt::format("{}{} ({})", types.empty() ? "" : " or ", dtype_name(type),
                             format_bytes(bytes));
    }
    if (!types.empty()) {
        out += fmt::format("{}weights of {}: millrace convert --type",
                           out.empty() ? "use " : ", or ", types);
    }
    if (out.empty()) out = "use a smaller model";
    return out + ", or --device cpu";
}

void require_device_memory(const DeviceNeeds& needs, const ModelSpec& spec,
                           std::uint64_t available) {
    if (needs.plan.total() <= available) return;
    needs.plan.require(available, device_remedy(needs, spec, available));
}

RowOrder row_order(const ModelSpec& spec, Role role) {
    return spec.rope.style == ops::RopeStyle::half ? reordered_rows(spec, role) : RowOrder{};
}

}  // namespace mr::model
