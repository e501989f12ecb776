#include "model/random.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "core/arena.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/half.h"
#include "core/thread_pool.h"
#include "model/names.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

// SplitMix64: a few cycles for 8 weights, and any row can be made alone.
struct SplitMix {
    std::uint64_t state;
    std::uint64_t next() {
        state += 0x9E3779B97F4A7C15u;
        std::uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
};

// Weights are odd whole numbers in [-127, 127] times a step. Their standard deviation in steps:
constexpr double kByteDeviation = 73.9;
constexpr double kNibbleDeviation = 4.61;  // of 0..15 around their mean
constexpr std::uint64_t kOddBytes = 0x0101010101010101u;

// What a row of one type is filled with: blocks as they lie, or one of 256 values a weight.
class RowFiller {
  public:
    RowFiller(DType dtype, std::int64_t cols) : dtype_(dtype), cols_(cols) {
        const double deviation = 1.0 / std::sqrt(static_cast<double>(cols));
        scale_ = f32_to_f16(static_cast<float>(
            deviation / (dtype == DType::q4_0 ? kNibbleDeviation : kByteDeviation)));
        for (std::size_t i = 0; i < 256; ++i) {
            const auto step = static_cast<std::int8_t>(static_cast<std::uint8_t>(i | 1));
            values_[i] = static_cast<float>(step * deviation / kByteDeviation);
            const float value = values_[i];
            halves_[i] = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
        }
    }

    void fill(std::byte* row, SplitMix random) const {
        const DTypeInfo info = dtype_info(dtype_);
        if (is_quantised(dtype_)) {
            for (std::int64_t block = 0; block < cols_ / info.block; ++block) {
                std::memcpy(row, &scale_, 2);
                for (int at = 2; at < info.block_bytes; at += 8) {
                    const std::uint64_t word =
                        dtype_ == DType::q8_0 ? random.next() | kOddBytes : random.next();
                    std::memcpy(row + at, &word, 8);
                }
                row += info.block_bytes;
            }
            return;
        }
        for (std::int64_t col = 0; col < cols_; col += 8) {
            const std::uint64_t word = random.next();
            const auto count = static_cast<int>(std::min<std::int64_t>(8, cols_ - col));
            for (int i = 0; i < count; ++i) {
                const auto index = static_cast<std::size_t>(word >> (8 * i) & 0xff);
                if (dtype_ == DType::f32) {
                    std::memcpy(row, &values_[index], 4);
                } else {
                    std::memcpy(row, &halves_[index], 2);
                }
                row += info.block_bytes;
            }
        }
    }

  private:
    DType dtype_;
    std::int64_t cols_;
    std::uint16_t scale_ = 0;  // f16
    std::array<float, 256> values_{};
    std::array<std::uint16_t, 256> halves_{};
};

ModelSpec llama_shape(int dim, int layers, int heads, int kv_heads, int hidden, int context,
                      bool tied) {
    ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 32000;
    spec.dim = dim;
    spec.layers = layers;
    spec.heads = heads;
    spec.kv_heads = kv_heads;
    spec.head_dim = dim / heads;
    spec.hidden = hidden;
    spec.context = context;
    spec.tied_embeddings = tied;
    spec.rope.rotary = spec.head_dim;
    spec.rope.style = ops::RopeStyle::interleaved;
    return spec;
}

ModelSpec gpt_shape(const char* family, int vocab, int dim, int layers, int heads, int context) {
    ModelSpec spec;
    spec.family = family;
    spec.vocab = vocab;
    spec.dim = dim;
    spec.layers = layers;
    spec.heads = spec.kv_heads = heads;
    spec.head_dim = dim / heads;
    spec.hidden = 4 * dim;
    spec.context = context;
    spec.norm = NormKind::layer;
    spec.gated = false;
    spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
    return spec;
}

ModelSpec pythia_2_8b() {
    ModelSpec spec = gpt_shape("gpt-neox", 50304, 2560, 32, 32, 2048);
    spec.activation = ops::Activation::gelu;
    spec.residual = Residual::parallel;
    spec.rope.rotary = 20;  // a quarter of the head
    return spec;
}

ModelSpec gpt2_124m() {
    ModelSpec spec = gpt_shape("gpt2", 50257, 768, 12, 12, 1024);
    spec.activation = ops::Activation::gelu_tanh;
    spec.learned_positions = true;
    spec.tied_embeddings = true;
    return spec;
}

struct NamedShape {
    const char* name;
    ModelSpec spec;
};
std::array<NamedShape, 6> known_shapes() {
    return {{
        {"llama-2-7b", llama_shape(4096, 32, 32, 32, 11008, 4096, false)},
        {"tinyllama-1.1b", llama_shape(2048, 22, 32, 4, 5632, 2048, false)},
        {"stories-110m", llama_shape(768, 12, 12, 12, 2048, 1024, true)},
        {"stories-42m", llama_shape(512, 8, 8, 8, 1376, 1024, true)},
        {"pythia-2.8b", pythia_2_8b()},
        {"gpt2", gpt2_124m()},
    }};
}

DType matrix_type(DType dtype, std::int64_t cols) {
    return cols % dtype_info(dtype).block == 0 ? dtype : DType::f16;
}

}  // namespace

Model random_model(const ModelSpec& spec, DType dtype, std::uint64_t seed,
                   const std::function<void(const Model&)>& planned) {
    MR_CHECK(ops::can_quantize(dtype), "random weights are f32, f16, bf16, q8_0 or q4_0");
    spec.validate("random");
    Model model;
    model.spec = spec;
    model.format = "random";
    model.source = fmt::format("random:{}", spec.name);
    model.tokenizer = text::Tokenizer::bytes(spec.vocab);

    const std::vector<RoleAt> roles = roles_of(spec);
    Weights& weights = model.weights;
    for (RoleAt at : roles) {
        const Shape shape = role_shape(spec, at.role);
        const DType type =
            is_matrix(at.role) ? matrix_type(dtype, shape[shape.rank - 1]) : DType::f32;
        weights.owned_bytes += Arena::tensor_bytes(type, shape);
    }
    MemoryPlan plan;
    plan.add("random weights", weights.owned_bytes);
    plan.require(cpu_info().memory_bytes, "use a smaller shape or a smaller type, as in :q4_0");
    if (planned) planned(model);
    auto arena = std::make_shared<Arena>("weights", weights.owned_bytes);
    ThreadPool pool(cpu_info().cores);
    weights.layers.resize(static_cast<std::size_t>(spec.layers));
    std::uint64_t stream = seed;
    for (RoleAt at : roles) {
        const Shape shape = role_shape(spec, at.role);
        const std::uint64_t key = SplitMix{++stream}.next();
        Tensor& slot = role_slot(weights, at);
        if (is_matrix(at.role)) {
            slot = arena->tensor(matrix_type(dtype, shape[1]), shape);
            const RowFiller filler(slot.dtype, shape[1]);
            pool.parallel_for(shape[0], 64, [&](std::int64_t begin, std::int64_t end, int) {
                for (std::int64_t row = begin; row < end; ++row) {
                    filler.fill(slot.row<std::byte>(row),
                                {SplitMix{key + static_cast<std::uint64_t>(row)}.next()});
                }
            });
        } else {
            slot = arena->tensor(DType::f32, shape);
            const bool is_norm = at.role == Role::attn_norm || at.role == Role::mlp_norm ||
                                 at.role == Role::final_norm || at.role == Role::q_norm ||
                                 at.role == Role::k_norm;
            SplitMix random{key};
            for (std::int64_t i = 0; i < shape[0]; ++i) {
                const double unit = static_cast<double>(random.next() >> 40) * 0x1p-24 - 0.5;
                slot.f32()[i] = static_cast<float>((is_norm ? 1.0 : 0.0) + 0.1 * unit);
            }
        }
    }
    if (spec.tied_embeddings) weights.head = weights.embedding;
    weights.arenas.push_back(std::move(arena));
    return model;
}

std::pair<ModelSpec, DType> random_shape(const std::string& source) {
    std::string shape = source.substr(kRandomPrefix.size());
    DType dtype = DType::bf16;
    if (const auto colon = shape.find(':'); colon != std::string::npos) {
        const std::string name = shape.substr(colon + 1);
        const auto type = dtype_from_name(name);
        if (!type || !ops::can_quantize(*type)) {
            throw Error::usage({.field = source,
                                .value = name,
                                .problem = "not a type for random weights",
                                .remedy = "f32, f16, bf16, q8_0 and q4_0 are"});
        }
        dtype = *type;
        shape.resize(colon);
    }
    std::string names;
    for (NamedShape& known : known_shapes()) {
        if (shape == known.name) {
            known.spec.name = shape;
            return {known.spec, dtype};
        }
        names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
    }
    throw Error::usage({.field = source,
                        .value = shape,
                        .problem = "not a known shape",
                        .remedy = fmt::format("use one of {}", names)});
}

Model random_model(const std::string& source, const std::function<void(const Model&)>& planned) {
    const auto [spec, dtype] = random_shape(source);
    Model model = random_model(spec, dtype, 1, planned);
    model.source = source;
    return model;
}

}  // namespace mr::model
