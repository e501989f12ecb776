#include "model/train/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/error.h"
#include "core/philox.h"
#include "model/row_order.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

std::int64_t aligned(std::int64_t elements) {
    return (elements + kParamAlign - 1) / kParamAlign * kParamAlign;
}

// Whether the tensor follows the one before it directly, as a part of one matrix or bias.
bool continues(const ModelSpec& spec, Role role) {
    return role == Role::k || role == Role::v || role == Role::k_bias || role == Role::v_bias ||
           (role == Role::up && spec.gated);
}

// Four draws from N(0, 1), by Box-Muller.
std::array<float, 4> normals(std::uint64_t seed, std::uint64_t index, std::uint64_t stream) {
    const auto words = philox(seed, index, stream);
    std::array<float, 4> out{};
    for (std::size_t i = 0; i < 4; i += 2) {
        const double radius = std::sqrt(-2 * std::log((words[i] + 0.5) * 0x1p-32));
        const double angle = 2 * std::numbers::pi * (words[i + 1] * 0x1p-32);
        out[i] = static_cast<float>(radius * std::cos(angle));
        out[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
    return out;
}

void init_matrix(float* out, std::int64_t count, float deviation, std::uint64_t seed,
                 std::uint64_t stream, ThreadPool& pool) {
    pool.parallel_for((count + 3) / 4, 4096, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
            const auto drawn = normals(seed, static_cast<std::uint64_t>(i), stream);
            const std::int64_t part = std::min<std::int64_t>(4, count - 4 * i);
            for (std::int64_t j = 0; j < part; ++j) {
                out[4 * i + j] = deviation * drawn[static_cast<std::size_t>(j)];
            }
        }
    });
}

// Rows of tokens that the model does not know yet: the mean of the known ones.
void add_tokens(float* table, std::int64_t known, std::int64_t all, std::int64_t cols) {
    for (std::int64_t col = 0; col < cols; ++col) {
        double sum = 0;
        for (std::int64_t row = 0; row < known; ++row) sum += double{table[row * cols + col]};
        for (std::int64_t row = known; row < all; ++row) {
            table[row * cols + col] = static_cast<float>(sum / static_cast<double>(known));
        }
    }
}

}  // namespace

ParamLayout param_layout(const ModelSpec& spec, const StageSpan& stage) {
    ParamLayout layout;
    layout.spec = spec;
    layout.all = stage.all(spec);
    const std::vector<RoleAt> roles = roles_of(spec);
    const auto has = [&](Role role, int layer) {
        if (layer >= 0) return layer >= stage.begin && layer < stage.end_of(spec);
        if (role == Role::positions) return stage.first();
        if (role != Role::embedding) return stage.last(spec);
        return stage.first() || (spec.tied_embeddings && stage.last(spec));
    };
    std::int64_t offset = 0, whole = 0;  // in the stage's layout, in the whole
    const auto add = [&](Role role, int layer) {
        const Shape shape = role_shape(spec, role);
        std::int64_t size = shape.count();
        if (role == Role::head || (role == Role::embedding && spec.tied_embeddings)) {
            size += (head_rows(spec) - spec.vocab) * spec.dim;
        }
        if (!continues(spec, role)) {
            offset = aligned(offset);
            whole = aligned(whole);
        }
        if (has(role, layer)) {
            layout.entries.push_back({{role, layer}, shape, offset, whole});
            offset += size;
        }
        whole += size;
    };
    // roles_of() has biases between q, k and v: here the three are adjacent.
    for (const bool matrices : {true, false}) {
        for (RoleAt at : roles) {
            if (is_matrix(at.role) != matrices || continues(spec, at.role)) continue;
            add(at.role, at.layer);
            if (at.role == Role::q) {
                add(Role::k, at.layer);
                add(Role::v, at.layer);
            } else if (at.role == Role::q_bias) {
                add(Role::k_bias, at.layer);
                add(Role::v_bias, at.layer);
            } else if (at.role == Role::gate) {
                add(Role::up, at.layer);
            }
        }
        offset = aligned(offset);
        whole = aligned(whole);
        if (matrices) layout.decayed = offset;
    }
    layout.count = offset;
    return layout;
}

std::vector<ParamRange> param_ranges(const ParamLayout& layout) {
    std::vector<ParamRange> out;
    for (const ParamLayout::Entry& entry : layout.entries) {
        const bool table = entry.at.role == Role::embedding || entry.at.role == Role::positions;
        const int unit = table                ? 0
                         : entry.at.layer < 0 ? unit_count(layout.spec) - 1
                                              : entry.at.layer + 1;
        if (!out.empty()) out.back().end = entry.offset;
        // Matrices are separate from norms and biases.
        const bool first = out.empty() || out.back().unit != unit ||
                           (out.back().begin < layout.decayed) != (entry.offset < layout.decayed);
        if (first) out.push_back({entry.offset, 0, unit, entry.whole, 0});
    }
    out.back().end = layout.count;
    for (ParamRange& range : out) range.whole_size = range.end - range.begin;
    const bool table_alone =
        layout.entries.front().at.role == Role::embedding &&
        (layout.entries.size() == 1 || layout.entries[1].at.role != Role::positions);
    if (table_alone && layout.spec.learned_positions) {
        out.front().whole_size += aligned(role_shape(layout.spec, Role::positions).count());
    }
    return out;
}

std::vector<std::int64_t> block_cuts(const std::vector<ParamRange>& ranges) {
    std::vector<std::int64_t> out;
    for (const ParamRange& range : ranges) {
        for (std::int64_t at = range.begin; at < range.end; at += kParamBlock) out.push_back(at);
    }
    out.push_back(ranges.back().end);
    return out;
}

Weights param_views(const ParamLayout& layout, void* base, DType dtype) {
    Weights out;
    out.layers.resize(static_cast<std::size_t>(layout.spec.layers));
    for (const ParamLayout::Entry& entry : layout.entries) {
        const std::size_t bytes = dtype_bytes(dtype, static_cast<std::size_t>(entry.offset));
        role_slot(out, entry.at) =
            Tensor(static_cast<std::byte*>(base) + bytes, dtype, entry.shape);
    }
    if (layout.spec.tied_embeddings) out.head = out.embedding;
    return out;
}

Weights param_views(const ParamLayout& layout, void* matrices, DType dtype, float* rest,
                    std::int64_t first) {
    Weights out = param_views(layout, matrices, dtype);
    for (const ParamLayout::Entry& entry : layout.entries) {
        if (is_matrix(entry.at.role)) continue;
        MR_CHECK(entry.offset >= first, "what is no matrix lies behind them");
        role_slot(out, entry.at) = Tensor(rest + (entry.offset - first), DType::f32, entry.shape);
    }
    return out;
}

Tensor qkv_matrix(const ModelSpec& spec, const LayerWeights& w) {
    return {w.q.data, w.q.dtype, role_shape(spec, Role::qkv)};
}

Tensor qkv_bias(const ModelSpec& spec, const LayerWeights& w) {
    return w.q_bias ? Tensor(w.q_bias.data, w.q_bias.dtype, role_shape(spec, Role::qkv_bias))
                    : Tensor();
}

Tensor gate_up_matrix(const ModelSpec& spec, const LayerWeights& w) {
    if (!spec.gated) return w.up;
    return {w.gate.data, w.gate.dtype, {std::int64_t{2} * spec.hidden, spec.dim}};
}

std::int64_t head_rows(const ModelSpec& spec) {
    return (spec.vocab + kHeadAlign - 1) / kHeadAlign * kHeadAlign;
}

Tensor head_matrix(const ModelSpec& spec, const Weights& w) {
    return {w.head.data, w.head.dtype, {head_rows(spec), std::int64_t{spec.dim}}};
}

std::int64_t widest_matrix(const ModelSpec& spec) {
    return std::max<std::int64_t>({head_rows(spec), spec.q_dim() + 2 * spec.kv_dim(),
                                   std::int64_t{2} * spec.hidden, spec.dim});
}

void init_param(const ParamLayout& layout, const ParamLayout::Entry& entry, float* out,
                std::uint64_t seed, ThreadPool& pool) {
    const Role role = entry.at.role;
    if (is_norm_weight(role)) {
        std::fill_n(out, entry.shape.count(), 1.0f);
    } else if (is_matrix(role)) {
        const bool residual = role == Role::o || role == Role::down;
        const double deviation = 0.02 / (residual ? std::sqrt(2.0 * layout.spec.layers) : 1.0);
        const std::uint64_t stream = (static_cast<std::uint64_t>(role) << 32) +
                                     static_cast<std::uint64_t>(entry.at.layer + 1);
        init_matrix(out, entry.shape.count(), static_cast<float>(deviation), seed, stream, pool);
    }
}

void copy_param(const ParamLayout::Entry& entry, float* out, const ModelSpec& spec,
                const Tensor& from, ThreadPool& pool) {
    const bool of_tokens = entry.at.role == Role::embedding || entry.at.role == Role::head;
    MR_CHECK(from && (from.shape == entry.shape ||
                      (of_tokens && from.dim(0) < entry.shape[0] && from.dim(1) == entry.shape[1])),
             "the layout is that of the model, or has more tokens");
    const bool reorder = spec.rope.style == ops::RopeStyle::interleaved;
    const RowOrder rows = reordered_rows(spec, entry.at.role);
    const auto source_row = [&](std::int64_t row) { return reorder ? rows.inverse(row) : row; };
    if (entry.shape.rank == 1) {
        std::vector<float> values(static_cast<std::size_t>(entry.shape[0]));
        ops::dequantize(from.dtype, from.data, values.data(), entry.shape[0]);
        for (std::int64_t i = 0; i < entry.shape[0]; ++i) {
            out[i] = values[static_cast<std::size_t>(source_row(i))];
        }
        return;
    }
    const std::int64_t cols = entry.shape[1];
    pool.parallel_for(from.dim(0), 16, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t row = begin; row < end; ++row) {
            ops::dequantize(from.dtype, from.row<std::byte>(source_row(row)), out + row * cols,
                            cols);
        }
    });
    if (from.dim(0) < entry.shape[0]) add_tokens(out, from.dim(0), entry.shape[0], cols);
}

ModelSpec trainable_spec(ModelSpec spec) {
    spec.rope.style = ops::RopeStyle::half;
    for (LayerSpec& layer : spec.own) layer.rope.style = ops::RopeStyle::half;
    return spec;
}

ModelSpec diffusion_spec(ModelSpec spec, std::int32_t mask, int block) {
    MR_CHECK(mask >= 0 && block >= 1, "a mask and a block");
    const auto refuse = [](const std::string& value, const char* problem) {
        throw Error::usage({.field = "--objective",
                            .value = "diffusion",
                            .problem = value + " " + problem,
                            .remedy = "take a model of the shape of Llama or Qwen3"});
    };
    const std::string family = fmt::format("the family {}", spec.family);
    if (spec.learned_positions)
        refuse(family, "has learned positions, which files of such models lack");
    if (spec.family != "llama" && spec.family != "qwen3" && spec.family != "sdar") {
        refuse(family, "cannot be written as a model that fills in blocks");
    }
    for (const LayerSpec& layer : spec.layer_specs()) {
        if (layer.mask.window > 0) refuse("a sliding window", "beside blocks is not supported");
    }
    spec.family = "sdar";
    spec.vocab = std::max(spec.vocab, mask + 1);
    set_diffusion(spec, {.mask = mask, .block = block});
    return spec;
}

}  // namespace mr::model
