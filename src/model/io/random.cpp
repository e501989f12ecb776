#include "model/io/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/arena.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/half.h"
#include "core/thread_pool.h"
#include "model/names.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

// Weights are odd integers in [-127, 127] times a step. Their standard deviation in steps:
constexpr double kByteDeviation = 73.9;
constexpr double kNibbleDeviation = 4.61;  // of 0..15 around their mean

// The key of the tensor at `index` of roles_of().
std::uint64_t tensor_key(std::uint64_t seed, std::size_t index) {
    return splitmix(seed + 1 + index);
}

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

ModelSpec llama_3_shape(int dim, int layers, int heads, int hidden) {
    ModelSpec spec = llama_shape(dim, layers, heads, 8, hidden, 8192, false);
    spec.vocab = 128256;
    spec.rope.theta = 500000;
    return spec;
}

ModelSpec qwen2_5_shape(int dim, int layers, int heads, int hidden) {
    ModelSpec spec = llama_shape(dim, layers, heads, 2, hidden, 32768, true);
    spec.family = "qwen2";
    spec.vocab = 151936;
    spec.norm_eps = 1e-6f;
    spec.qkv_bias = true;
    spec.rope.theta = 1000000;
    spec.rope.style = ops::RopeStyle::half;
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

ModelSpec gpt2_shape(int vocab, int dim, int layers, int heads, int context) {
    ModelSpec spec = gpt_shape("gpt2", vocab, dim, layers, heads, context);
    spec.activation = ops::Activation::gelu_tanh;
    spec.learned_positions = true;
    spec.tied_embeddings = true;
    return spec;
}

ModelSpec qwen3_shape(int dim, int layers, int heads, int hidden) {
    ModelSpec spec = llama_shape(dim, layers, heads, 8, hidden, 32768, false);
    spec.family = "qwen3";
    spec.vocab = 151936;
    spec.head_dim = spec.rope.rotary = 128;
    spec.norm_eps = 1e-6f;
    spec.qk_norm = true;
    spec.rope.theta = 1000000;
    spec.rope.style = ops::RopeStyle::half;
    return spec;
}

// SDAR has Qwen3's layers; the published models of all sizes have untied heads and blocks of 4.
ModelSpec sdar_shape(int dim, int layers, int heads, int hidden) {
    ModelSpec spec = qwen3_shape(dim, layers, heads, hidden);
    spec.family = "sdar";
    set_diffusion(spec, {.mask = 151669, .block = 4});
    return spec;
}

ModelSpec llada_8b() {
    ModelSpec spec = llama_shape(4096, 32, 32, 32, 12288, 4096, false);
    spec.family = "llada";
    spec.vocab = 126464;
    spec.rope.theta = 500000;
    set_diffusion(spec, {.mask = 126336});
    return spec;
}

ModelSpec dream_7b() {
    ModelSpec spec = llama_shape(3584, 28, 28, 4, 18944, 131072, false);
    spec.family = "dream";
    spec.vocab = 152064;
    spec.norm_eps = 1e-6f;
    spec.qkv_bias = true;
    spec.rope.theta = 1000000;
    spec.rope.style = ops::RopeStyle::half;
    set_diffusion(spec, {.mask = 151666, .shifted = true});
    return spec;
}

struct NamedShape {
    const char* name;
    ModelSpec spec;
};
std::array<NamedShape, 20> known_shapes() {
    return {{
        {"llama-2-7b", llama_shape(4096, 32, 32, 32, 11008, 4096, false)},
        {"llama-2-13b", llama_shape(5120, 40, 40, 40, 13824, 4096, false)},
        {"llama-3-8b", llama_3_shape(4096, 32, 32, 14336)},
        {"llama-3-70b", llama_3_shape(8192, 80, 64, 28672)},
        {"tinyllama-1.1b", llama_shape(2048, 22, 32, 4, 5632, 2048, false)},
        {"stories-110m", llama_shape(768, 12, 12, 12, 2048, 1024, true)},
        {"stories-42m", llama_shape(512, 8, 8, 8, 1376, 1024, true)},
        {"pythia-2.8b", pythia_2_8b()},
        {"gpt2", gpt2_shape(50257, 768, 12, 12, 1024)},
        {"gpt2-xl", gpt2_shape(50257, 1600, 48, 25, 1024)},
        // Vocabulary and context of Megatron's published runs.
        {"gpt3-175b", gpt2_shape(131072, 12288, 96, 96, 4096)},
        {"qwen2.5-0.5b", qwen2_5_shape(896, 24, 14, 4864)},
        {"qwen2.5-1.5b", qwen2_5_shape(1536, 28, 12, 8960)},
        // SDAR's shape, autoregressive; the published 4B ties the head.
        {"qwen3-4b", qwen3_shape(2560, 36, 32, 9728)},
        {"qwen3-14b", qwen3_shape(5120, 40, 40, 17408)},
        {"qwen3-32b", qwen3_shape(5120, 64, 64, 25600)},
        {"sdar-4b", sdar_shape(2560, 36, 32, 9728)},
        {"sdar-1.7b", sdar_shape(2048, 28, 16, 6144)},
        {"llada-8b", llada_8b()},
        {"dream-7b", dream_7b()},
    }};
}

DType matrix_type(DType dtype, std::int64_t cols) {
    return cols % dtype_info(dtype).block == 0 ? dtype : DType::f16;
}

Model planned_of(const ModelSpec& spec, DType dtype) {
    MR_CHECK(ops::can_quantize(dtype), "random weights are f32, f16, bf16, q8_0 or q4_0");
    spec.validate("random");
    Model model;
    model.spec = spec;
    model.format = "random";
    model.source = fmt::format("random:{}", spec.name);
    model.tokenizer = text::Tokenizer::bytes(spec.vocab);
    Weights& weights = model.weights;
    weights.layers.resize(static_cast<std::size_t>(spec.layers));
    for (RoleAt at : roles_of(spec)) {
        const Shape shape = role_shape(spec, at.role);
        const DType type = is_matrix(at.role) ? matrix_type(dtype, shape[1]) : DType::f32;
        role_slot(weights, at) = Tensor(nullptr, type, shape);
        weights.owned_bytes += Arena::tensor_bytes(type, shape);
    }
    if (spec.tied_embeddings) weights.head = weights.embedding;
    return model;
}

// Makes both kinds of random model.
Model make_model(const ModelSpec& spec, DType dtype, std::uint64_t seed, bool defer,
                 const std::function<void(const Model&)>& planned, const Progress& progress) {
    Model model = planned_of(spec, dtype);
    const std::vector<RoleAt> roles = roles_of(spec);
    Weights& weights = model.weights;
    if (defer) {
        model.deferred = seed;
        for (RoleAt at : roles) {
            const Tensor& slot = role_slot(weights, at);
            if (!is_matrix(at.role)) continue;
            weights.owned_bytes -= Arena::tensor_bytes(slot.dtype, slot.shape);
        }
    }
    MemoryPlan plan;
    plan.add("random weights", weights.owned_bytes);
    plan.require(cpu_info().memory_bytes, "use a smaller shape or a smaller type, as in :q4_0");
    if (planned) planned(model);

    auto arena = std::make_shared<Arena>("weights", weights.owned_bytes);
    std::optional<ThreadPool> pool;
    if (!defer) pool.emplace(cpu_info().cores);
    for (std::size_t i = 0; i < roles.size(); ++i) {
        Tensor& slot = role_slot(weights, roles[i]);
        if (is_matrix(roles[i].role)) {
            if (defer) continue;
            slot = arena->tensor(slot.dtype, slot.shape);
            const RandomRows rows(slot.dtype, slot.cols(), seed, i);
            pool->parallel_for(slot.rows(), 64, [&](std::int64_t begin, std::int64_t end, int) {
                for (std::int64_t row = begin; row < end; ++row) {
                    rows.fill(slot.row<std::byte>(row), row);
                }
            });
            if (progress) progress("making weights", arena->used(), weights.owned_bytes);
        } else {
            slot = arena->tensor(DType::f32, slot.shape);
            const std::uint64_t key = tensor_key(seed, i);
            const double mean = is_norm_weight(roles[i].role) ? 1.0 : 0.0;
            for (std::int64_t j = 0; j < slot.dim(0); ++j) {
                const std::uint64_t word = splitmix(key, static_cast<std::uint64_t>(j));
                const double unit = static_cast<double>(word >> 40) * 0x1p-24 - 0.5;
                slot.f32()[j] = static_cast<float>(mean + 0.1 * unit);
            }
        }
    }
    if (spec.tied_embeddings) weights.head = weights.embedding;
    weights.arenas.push_back(std::move(arena));
    return model;
}

}  // namespace

RandomRows::RandomRows(DType dtype_, std::int64_t cols_, std::uint64_t seed, std::size_t index)
    : dtype(dtype_), cols(cols_), key(tensor_key(seed, index)) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(cols));
    scale = f32_to_f16(
        static_cast<float>(deviation / (dtype == DType::q4_0 ? kNibbleDeviation : kByteDeviation)));
    for (std::size_t i = 0; i < 256; ++i) {
        const auto step = static_cast<std::int8_t>(static_cast<std::uint8_t>(i | 1));
        const auto value = static_cast<float>(step * deviation / kByteDeviation);
        values[i] = dtype == DType::f32    ? std::bit_cast<std::uint32_t>(value)
                    : dtype == DType::bf16 ? f32_to_bf16(value)
                                           : f32_to_f16(value);
    }
}

void RandomRows::fill(std::byte* row, std::int64_t r) const {
    const DTypeInfo info = dtype_info(dtype);
    const std::uint64_t state = splitmix(key + static_cast<std::uint64_t>(r));
    std::uint64_t n = 0;
    if (is_quantised(dtype)) {
        const std::uint64_t odd = dtype == DType::q8_0 ? kOddBytes : 0;
        for (std::int64_t block = 0; block < cols / info.block; ++block) {
            std::memcpy(row, &scale, 2);
            for (int at = 2; at < info.block_bytes; at += 8) {
                const std::uint64_t word = splitmix(state, n++) | odd;
                std::memcpy(row + at, &word, 8);
            }
            row += info.block_bytes;
        }
        return;
    }
    for (std::int64_t col = 0; col < cols; col += 8) {
        const std::uint64_t word = splitmix(state, n++);
        const auto count = static_cast<int>(std::min<std::int64_t>(8, cols - col));
        for (int i = 0; i < count; ++i) {
            const std::uint32_t value = values[static_cast<std::size_t>(word >> (8 * i) & 0xff)];
            if (dtype == DType::f32) {
                std::memcpy(row, &value, 4);
            } else {
                const auto half = static_cast<std::uint16_t>(value);
                std::memcpy(row, &half, 2);
            }
            row += info.block_bytes;
        }
    }
}

Model random_model(const ModelSpec& spec, DType dtype, std::uint64_t seed,
                   const std::function<void(const Model&)>& planned, const Progress& progress) {
    return make_model(spec, dtype, seed, false, planned, progress);
}

Model deferred_random_model(const ModelSpec& spec, DType dtype, std::uint64_t seed,
                            const std::function<void(const Model&)>& planned) {
    return make_model(spec, dtype, seed, true, planned, {});
}

std::pair<ModelSpec, DType> random_shape(const std::string& source) {
    std::string shape = source.substr(kRandomPrefix.size());
    DType dtype = DType::bf16;
    if (const auto colon = shape.find(':'); colon != std::string::npos) {
        const std::string name = shape.substr(colon + 1);
        std::string lower = name;  // GGUF file names spell it Q8_0
        for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        const auto type = dtype_from_name(lower);
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
                        .problem = "not a known shape",
                        .remedy = fmt::format("use one of {}", names)});
}

Model planned_random_model(const std::string& source) {
    const auto [spec, dtype] = random_shape(source);
    Model model = planned_of(spec, dtype);
    model.source = source;
    return model;
}

Model random_model(const std::string& source, const std::function<void(const Model&)>& planned,
                   const Progress& progress) {
    const auto [spec, dtype] = random_shape(source);
    Model model = random_model(spec, dtype, 1, planned, progress);
    model.source = source;
    return model;
}

Model deferred_random_model(const std::string& source,
                            const std::function<void(const Model&)>& planned) {
    const auto [spec, dtype] = random_shape(source);
    Model model = deferred_random_model(spec, dtype, 1, planned);
    model.source = source;
    return model;
}

}  // namespace mr::model
