#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "formats/bytes.h"
#include "formats/gguf.h"
#include "model/io/generation.h"
#include "model/io/known_keys.h"
#include "model/io/load_diffusion.h"
#include "model/io/source.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

using formats::GgufFile;

// Metadata under "{architecture}.", with errors that name the key.
class Metadata {
  public:
    Metadata(const GgufFile& file, std::string arch) : file_(file), arch_(std::move(arch)) {}

    std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }

    std::optional<int> find_int(std::string_view name) const {
        const auto value = file_.get_uint(key(name));
        if (!value) return std::nullopt;
        if (*value > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
            fail(name, fmt::format("{}", *value), "is out of range");
        }
        return static_cast<int>(*value);
    }
    int need_int(std::string_view name) const {
        const auto value = find_int(name);
        if (!value) fail(name, {}, "the key is missing");
        return *value;
    }
    std::optional<double> find_float(std::string_view name) const {
        return file_.get_float(key(name));
    }
    double need_float(std::string_view name) const {
        const auto value = find_float(name);
        if (!value) fail(name, {}, "the key is missing");
        return *value;
    }
    [[noreturn]] void fail(std::string_view name, std::string value, std::string problem) const {
        throw Error::input({.file = file_.path(),
                            .field = key(name),
                            .value = std::move(value),
                            .problem = std::move(problem),
                            .remedy = "the file is not one this engine can run"});
    }
    const GgufFile& file() const { return file_; }

  private:
    const GgufFile& file_;
    std::string arch_;
};

bool has_tensor(const GgufFile& file, RoleAt at) {
    for (const std::string& name : tensor_names(Dialect::gguf, at)) {
        if (file.find_tensor(name)) return true;
    }
    return false;
}

void read_rope_scaling(const Metadata& meta, ModelSpec& spec) {
    using Scaling = RopeSpec::Scaling;
    RopeSpec& rope = spec.rope;
    // A factor without a type is linear, as in old files; 0 means none.
    auto factor = meta.find_float("rope.scaling.factor");
    if (!factor) factor = meta.find_float("rope.scale_linear");
    const std::string kind =
        meta.file().get_string(meta.key("rope.scaling.type")).value_or("linear");
    if (kind == "none" || (kind == "linear" && (!factor || *factor == 0))) return;
    if (kind == "linear") {
        rope.scaling = Scaling::linear;
        rope.factor = *factor;
        if (rope.factor == 1) rope.scaling = Scaling::none;
        return;
    }
    if (kind != "yarn") {
        meta.fail("rope.scaling.type", formats::printable(kind),
                  "is not supported (none, linear and yarn are)");
    }
    rope.scaling = Scaling::yarn;
    rope.factor = factor.value_or(1.0);
    rope.original_context = meta.find_float("rope.scaling.original_context_length")
                                .value_or(static_cast<double>(spec.context));
    rope.beta_fast = meta.find_float("rope.scaling.yarn_beta_fast").value_or(32.0);
    rope.beta_slow = meta.find_float("rope.scaling.yarn_beta_slow").value_or(1.0);
    // The file's factor multiplies YaRN's own.
    if (const auto extra = meta.find_float("rope.scaling.attn_factor"); extra && *extra != 1) {
        const double own = rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1.0;
        rope.attention_factor = own * *extra;
    }
}

void read_rope(const Metadata& meta, ModelSpec& spec, const formats::FileTensor* factors) {
    RopeSpec& rope = spec.rope;
    rope.rotary = meta.find_int("rope.dimension_count").value_or(spec.head_dim);
    rope.theta = meta.find_float("rope.freq_base").value_or(10000.0);
    rope.style = dialect_layout(Dialect::gguf, spec.family).rope;
    read_rope_scaling(meta, spec);
    if (!factors) return;
    const Tensor& view = factors->view;
    if (view.dtype != DType::f32 || view.shape != role_shape(spec, Role::rope_freqs)) {
        throw Error::input({.file = factors->file,
                            .field = fmt::format("tensor {}", factors->name),
                            .value = fmt::format("{} {}", dtype_name(view.dtype), view.shape.str()),
                            .problem = fmt::format("the model's configuration asks for f32 {}",
                                                   role_shape(spec, Role::rope_freqs).str())});
    }
    rope.freq_factors.resize(static_cast<std::size_t>(view.shape.count()));
    ops::dequantize(view.dtype, view.data, rope.freq_factors.data(), view.shape.count());
}

// Which layers slide: all, unless the file has llama.cpp's pattern: one flag per layer, or a period
// whose last layer does not slide (0: all slide).
std::vector<bool> read_sliding_layers(const Metadata& meta, int layers) {
    constexpr const char* kPattern = "attention.sliding_window_pattern";
    std::vector<bool> slides(static_cast<std::size_t>(layers), true);
    const auto type = meta.file().type_of(meta.key(kPattern));
    if (!type) return slides;
    if (*type != formats::GgufType::array) {
        const auto period = static_cast<std::size_t>(meta.need_int(kPattern));
        for (std::size_t i = 0; i < slides.size() && period > 0; ++i) {
            slides[i] = i % period + 1 < period;
        }
        return slides;
    }
    const std::vector<std::int64_t> flags = *meta.file().get_ints(meta.key(kPattern));
    if (flags.size() != slides.size()) {
        meta.fail(kPattern, fmt::format("{} values", flags.size()),
                  fmt::format("must have one for each of the {} layers", layers));
    }
    for (std::size_t i = 0; i < slides.size(); ++i) slides[i] = flags[i] != 0;
    return slides;
}

std::string read_architecture(const GgufFile& file, ModelSpec& spec) {
    const auto arch = file.get_string("general.architecture");
    if (!arch) {
        throw Error::input({.file = file.path(),
                            .field = "general.architecture",
                            .problem = "the key is missing"});
    }
    for (const FamilyNames& known : family_names()) {
        if (*arch == known.gguf) {
            spec.family = known.family;
            return *arch;
        }
    }
    throw Error::input({.file = file.path(),
                        .field = "general.architecture",
                        .value = formats::printable(*arch),
                        .problem = "this architecture is not supported",
                        .remedy = listed_families(&FamilyNames::gguf) + " are"});
}

ModelSpec read_spec(const GgufFile& file, std::span<const std::string> ignored,
                    std::vector<std::string>& notes) {
    ModelSpec spec;
    const std::string arch = read_architecture(file, spec);
    const Metadata meta(file, arch);
    if (const auto experts = meta.find_int("expert_count"); experts.value_or(0) > 0) {
        meta.fail("expert_count", fmt::format("{}", *experts),
                  "mixtures of experts are not supported");
    }
    spec.name = file.get_string("general.name").value_or("");
    spec.dim = meta.need_int("embedding_length");
    spec.layers = meta.need_int("block_count");
    if (spec.layers < 1 || spec.layers > kMaxLayers) {
        meta.fail("block_count", fmt::format("{}", spec.layers),
                  fmt::format("must be between 1 and {}", kMaxLayers));
    }
    spec.heads = meta.need_int("attention.head_count");
    spec.kv_heads = meta.find_int("attention.head_count_kv").value_or(spec.heads);
    spec.hidden = meta.need_int("feed_forward_length");
    spec.context = meta.need_int("context_length");
    if (spec.heads < 1) meta.fail("attention.head_count", "0", "must be at least 1");
    spec.head_dim = meta.find_int("attention.key_length").value_or(spec.dim / spec.heads);
    if (const auto value = meta.find_int("attention.value_length");
        value && *value != spec.head_dim) {
        meta.fail("attention.value_length", fmt::format("{}", *value),
                  fmt::format("differs from the keys' {}", spec.head_dim));
    }
    require_known_keys(file, arch, spec, ignored, notes);
    const formats::FileTensor* embedding =
        file.find_tensor(tensor_names(Dialect::gguf, {Role::embedding}).front());
    if (!embedding || embedding->view.shape.rank != 2) {
        throw Error::input({.file = file.path(),
                            .field = "tensor token_embd.weight",
                            .problem = embedding ? "must have two dimensions"
                                                 : "the file has no such tensor: it holds no model",
                            .remedy = "a vocabulary-only file can only be used to tokenize"});
    }
    spec.vocab = static_cast<int>(std::min<std::int64_t>(embedding->view.dim(0), 1 << 30));

    const std::string like = layers_like(spec.family);
    const bool rms = like == "llama" || like.starts_with("qwen");
    spec.norm = rms ? NormKind::rms : NormKind::layer;
    spec.norm_eps = static_cast<float>(
        meta.need_float(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"));
    spec.gated = rms;
    spec.qk_norm = like == "qwen3";
    if (spec.family == "sdar") {
        spec.qk_norm = file.get_bool(meta.key("attention.qk_norm")).value_or(true);
    }
    spec.qkv_bias = has_tensor(file, {Role::q_bias, 0}) || has_tensor(file, {Role::qkv_bias, 0});
    spec.out_bias = has_tensor(file, {Role::o_bias, 0});
    spec.mlp_bias = has_tensor(file, {Role::up_bias, 0});
    spec.tied_embeddings = !has_tensor(file, {Role::head});
    if (spec.family == "gpt2") {
        spec.activation = ops::Activation::gelu_tanh;
        spec.learned_positions = true;
        return spec;
    }
    if (spec.family == "gpt-neox") {
        // Exact, as the models were trained; llama.cpp takes the tanh approximation here.
        spec.activation = ops::Activation::gelu;
        const bool parallel = file.get_bool(meta.key("use_parallel_residual")).value_or(true);
        spec.residual = parallel ? Residual::parallel : Residual::sequential;
    }
    read_rope(meta, spec, file.find_tensor("rope_freqs.weight"));
    read_diffusion(file, arch, spec);
    const int window = meta.find_int("attention.sliding_window").value_or(0);
    if (spec.family == "llama" && window > 0) spec.family = "mistral";
    // Last: per-layer specs are copies of the common one with their differences.
    set_windows(spec, window, read_sliding_layers(meta, spec.layers));
    return spec;
}

}  // namespace

Source open_gguf(const std::string& path, const LoadOptions& options) {
    auto file = std::make_shared<GgufFile>(GgufFile::open(path));
    Source out;
    out.spec = read_spec(*file, options.ignore_keys, out.notes);
    out.spec.validate(path);
    out.dialect = Dialect::gguf;
    out.path = path;
    out.format = fmt::format("GGUF v{}", file->version());
    out.tensors = file->tensors();
    out.maps = file->maps();
    out.find = [raw = file.get()](std::string_view name) { return raw->find_tensor(name); };
    out.file = file;
    if (!options.tokenizer.empty()) {
        out.tokenizer = open_tokenizer(options.tokenizer, out.spec.vocab);
    } else if (file->get_string("tokenizer.ggml.model").value_or("no_vocab") != "no_vocab") {
        out.tokenizer = text::Tokenizer::from_gguf(*file);
    }
    require_vocab(out.spec, out.tokenizer.get(), path);
    out.generation = gguf_generation(*file, out.spec.vocab);
    return out;
}

}  // namespace mr::model
