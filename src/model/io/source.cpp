#include "model/io/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/fnv.h"
#include "core/mapped_file.h"
#include "formats/bytes.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "formats/tensor_sum.h"

namespace mr::model {
namespace {

namespace fs = std::filesystem;
using formats::FileTensor;

// The fused tensor's role that may hold `role`, and which third of it that is.
struct Fused {
    Role role;
    int part;
};
std::optional<Fused> fused_role(Role role) {
    switch (role) {
        case Role::q:
            return Fused{Role::qkv, 0};
        case Role::k:
            return Fused{Role::qkv, 1};
        case Role::v:
            return Fused{Role::qkv, 2};
        case Role::q_bias:
            return Fused{Role::qkv_bias, 0};
        case Role::k_bias:
            return Fused{Role::qkv_bias, 1};
        case Role::v_bias:
            return Fused{Role::qkv_bias, 2};
        default:
            return std::nullopt;
    }
}

const FileTensor* find_any(const Source& source, RoleAt at) {
    for (const std::string& name : tensor_names(source.dialect, at)) {
        if (const FileTensor* tensor = source.find(name)) return tensor;
    }
    return nullptr;
}

Shape reversed(const Shape& shape) { return {shape[1], shape[0]}; }

void check_tensor(const FileTensor& tensor, const Shape& expected) {
    const DType dtype = tensor.view.dtype;
    const std::string field = fmt::format("tensor {}", formats::printable(tensor.name));
    if (tensor.view.shape != expected) {
        throw Error::input(
            {.file = tensor.file,
             .field = field,
             .value = tensor.view.shape.str(),
             .problem = fmt::format("the model's configuration asks for {}", expected.str()),
             .remedy = "file and configuration belong to different models"});
    }
    if (!is_float(dtype) && (expected.rank == 1 || !is_quantised(dtype))) {
        throw Error::input(
            {.file = tensor.file,
             .field = field,
             .value = dtype_name(dtype),
             .problem = fmt::format("{} of this type are not supported",
                                    expected.rank == 1 ? "norms and biases" : "weights"),
             .remedy = "convert the model to f32, f16 or bf16 first"});
    }
}

std::shared_ptr<std::byte[]> allocate(std::size_t bytes) {
    return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
}

// Transposes elements of any unquantised type: out[c, r] = in[r, c].
void transpose(std::byte* out, const std::byte* in, std::int64_t rows, std::int64_t cols,
               std::int64_t in_stride, std::int64_t width) {
    constexpr std::int64_t kTile = 32;  // both sides of a tile stay in L1
    for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
        for (std::int64_t c0 = 0; c0 < cols; c0 += kTile) {
            const std::int64_t r1 = std::min(rows, r0 + kTile), c1 = std::min(cols, c0 + kTile);
            for (std::int64_t c = c0; c < c1; ++c) {
                for (std::int64_t r = r0; r < r1; ++r) {
                    std::memcpy(out + (c * rows + r) * width, in + (r * in_stride + c) * width,
                                static_cast<std::size_t>(width));
                }
            }
        }
    }
}

}  // namespace

Source::Place Source::place(RoleAt at) const {
    const DialectLayout layout = dialect_layout(dialect, spec.family);
    const Shape shape = role_shape(spec, at.role);
    Place out;
    out.role = at.role;
    out.tensor = find_any(*this, at);
    const auto fused = fused_role(at.role);
    if (!out.tensor && fused) {
        out.role = fused->role;
        out.tensor = find_any(*this, {fused->role, at.layer});
    }
    if (!out.tensor) {
        auto names = tensor_names(dialect, at);
        if (names.empty()) names = tensor_names(dialect, {out.role, at.layer});
        throw Error::input({.file = path,
                            .field = fmt::format("tensor {}", names.empty() ? "?" : names.front()),
                            .problem = "the file has no such tensor, and the model needs it",
                            .remedy = "is a shard missing, or is the file of another model?"});
    }
    const bool is_fused = out.role != at.role;
    out.transposed = layout.transposed && is_matrix(out.role) && is_per_layer(out.role);
    const Shape whole = role_shape(spec, out.role);
    check_tensor(*out.tensor, out.transposed ? reversed(whole) : whole);
    if (out.transposed && is_quantised(out.tensor->view.dtype)) {
        throw Error::input({.file = out.tensor->file,
                            .field = fmt::format("tensor {}", out.tensor->name),
                            .value = dtype_name(out.tensor->view.dtype),
                            .problem = "a quantised tensor cannot be transposed"});
    }
    const std::int64_t rows = shape[0];
    out.run = out.stride = rows;
    if (!is_fused) return out;
    if (layout.qkv == DialectLayout::Qkv::by_head) {
        // Each head's q, k and v are adjacent: heads == kv_heads in this layout.
        out.first = fused->part * spec.head_dim;
        out.run = spec.head_dim;
        out.stride = 3 * spec.head_dim;
    } else {
        out.first = fused->part == 0   ? 0
                    : fused->part == 1 ? spec.q_dim()
                                       : spec.q_dim() + spec.kv_dim();
    }
    return out;
}

RoleTensor Source::read(RoleAt at) const {
    const Place from = place(at);
    const Tensor& in = from.tensor->view;
    const Shape shape = role_shape(spec, at.role);
    RoleTensor out;
    out.view = Tensor(in.data, in.dtype, shape);
    // A vector's "rows" are its elements.
    const std::int64_t cols = shape.rank == 1 ? 1 : shape[1];
    const auto row_bytes = shape.rank == 1 ? dtype_bytes(in.dtype, 1)
                                           : dtype_bytes(in.dtype, static_cast<std::size_t>(cols));
    const auto* bytes = static_cast<const std::byte*>(in.data);
    if (from.contiguous()) {
        out.view.data =
            const_cast<std::byte*>(bytes + static_cast<std::size_t>(from.first) * row_bytes);
        return out;
    }
    auto memory = allocate(out.view.bytes());
    if (from.transposed) {
        const auto width = static_cast<std::int64_t>(dtype_bytes(in.dtype, 1));
        transpose(memory.get(), bytes + from.first * width, in.dim(0), shape[0], in.dim(1), width);
    } else {
        const auto run_bytes = static_cast<std::size_t>(from.run) * row_bytes;
        for (std::int64_t run = 0; run * from.run < shape[0]; ++run) {
            std::memcpy(
                memory.get() + static_cast<std::size_t>(run) * run_bytes,
                bytes + static_cast<std::size_t>(from.first + run * from.stride) * row_bytes,
                run_bytes);
        }
    }
    out.view.data = memory.get();
    out.owned = std::shared_ptr<void>(memory, memory.get());
    return out;
}

void Source::require_all_known() const {
    std::set<const FileTensor*> used;
    for (RoleAt at : roles_of(spec)) used.insert(place(at).tensor);
    // A tied model's file may also have the head: untie_other_head() has compared it.
    used.insert(find_any(*this, {Role::head}));
    if (const FileTensor* freqs = find_any(*this, {Role::rope_freqs})) used.insert(freqs);
    for (const FileTensor& tensor : tensors) {
        if (used.count(&tensor) || is_known_buffer(tensor.name)) continue;
        throw Error::input({.file = tensor.file,
                            .field = fmt::format("tensor {}", formats::printable(tensor.name)),
                            .value = tensor.view.shape.str(),
                            .problem = fmt::format("a {} model of {} layers has no such tensor",
                                                   spec.family, spec.layers),
                            .remedy = "file and configuration belong to different models"});
    }
}

void Source::check_sums(const Progress& progress, bool once) const {
    formats::check_sums(tensors, once ? maps : std::span<const MappedFile>(), progress);
}

void Source::untie_other_head() {
    if (!spec.tied_embeddings) return;
    const FileTensor* head = find_any(*this, {Role::head});
    const FileTensor* embedding = find_any(*this, {Role::embedding});
    if (!head || !embedding || head == embedding) return;
    const Tensor &a = head->view, &b = embedding->view;
    if (a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes()) == 0) {
        return;
    }
    spec.tied_embeddings = false;
    notes.push_back(fmt::format(
        "{} ties the head to the embedding, but there is a separate head, {}: using that", path,
        formats::printable(head->name)));
}

std::optional<std::int64_t> checkpoint_step(const std::string& name) {
    const std::string prefix = kCheckpointPrefix;
    if (!name.starts_with(prefix)) return std::nullopt;
    std::int64_t step = 0;
    const char* begin = name.data() + prefix.size();
    const char* end = name.data() + name.size();
    const auto [last, problem] = std::from_chars(begin, end, step);
    if (begin == end || last != end || problem != std::errc() || step < 0) return std::nullopt;
    return step;
}

std::string run_of_checkpoint(const std::string& path) {
    const fs::path whole = fs::absolute(path).lexically_normal();
    const fs::path at = whole.has_filename() ? whole : whole.parent_path();
    const bool checkpoint = at.parent_path().filename() == kCheckpoints &&
                            checkpoint_step(at.filename().string()).has_value();
    return checkpoint ? at.parent_path().parent_path().string() : std::string();
}

std::vector<std::string> checkpoint_folders(const std::string& run) {
    std::vector<std::pair<std::int64_t, std::string>> found;
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(fs::path(run) / kCheckpoints, code)) {
        const auto step = checkpoint_step(entry.path().filename().string());
        if (step) found.emplace_back(*step, entry.path().string());
    }
    std::sort(found.begin(), found.end());
    std::vector<std::string> out;
    out.reserve(found.size());
    for (auto& [step, path] : found) out.push_back(std::move(path));
    return out;
}

std::string resolve_run(const std::string& path) {
    std::error_code code;
    const fs::path folder = fs::path(path) / kCheckpoints;
    if (fs::exists(fs::path(path) / "config.json", code) || !fs::is_directory(folder, code)) {
        return path;
    }
    const std::vector<std::string> checkpoints = checkpoint_folders(path);
    if (checkpoints.empty()) {
        throw Error::input({.file = path,
                            .problem = "the training run has no checkpoint yet",
                            .remedy = "wait for the first one (--save-every)"});
    }
    return checkpoints.back();
}

std::optional<Error> naming_older(const Error& error, const std::string& path,
                                  const std::function<void(const std::string&)>& open) {
    std::vector<std::string> all = checkpoint_folders(path);
    if (error.kind() != ErrorKind::input || all.empty() || resolve_run(path) != all.back()) {
        return std::nullopt;
    }
    for (all.pop_back(); !all.empty(); all.pop_back()) {
        try {
            open(all.back());
        } catch (const Error&) {
            continue;
        }
        ErrorInfo info = error.info();
        info.remedy += fmt::format("{}take {}, an older checkpoint",
                                   info.remedy.empty() ? "" : "; or ", all.back());
        return Error::input(std::move(info));
    }
    return std::nullopt;
}

namespace {

// In a checkpoint of a run, state.json has the hashes of the files that were written beside it: a
// flipped bit in a number of config.json gives another model, which loads.
void check_hash(const fs::path& folder, const char* file, const char* hash) {
    const fs::path at = folder / file, beside = folder / "state.json";
    std::error_code code;
    if (!fs::exists(beside, code) || !fs::exists(at, code)) return;
    formats::JsonDocument state;
    try {
        state = formats::JsonDocument::parse(read_text_file(beside.string(), 1u << 24), "");
    } catch (const Error&) {
        return;  // it is no part of the model: --resume says what is wrong with it
    }
    const auto wanted = state.root().find_set(hash);  // in hex; older checkpoints have none
    if (!wanted) return;
    const std::string text = read_text_file(at.string());
    if (*wanted == fmt::format("{:016x}", fnv1a(std::as_bytes(std::span(text))))) return;
    throw Error::input({.file = at.string(),
                        .problem = "was changed after the checkpoint was written: state.json has "
                                   "another hash of it",
                        .remedy = "take another checkpoint; or, if you changed it on purpose, "
                                  "remove state.json"});
}

Source open_folder(const std::string& path, const LoadOptions& options) {
    std::error_code code;
    const fs::path folder =
        fs::is_directory(path, code) ? fs::path(path) : fs::path(path).parent_path();
    check_hash(folder, "config.json", "config_hash");
    if (options.tokenizer.empty()) check_hash(folder, "tokenizer.json", "tokenizer_hash");
    return open_huggingface(path, options);
}

}  // namespace

Source open_source(const std::string& given, const LoadOptions& options) {
    const std::string path = resolve_run(given);
    std::error_code code;
    if (fs::is_directory(path, code)) return open_folder(path, options);
    const std::string extension = fs::path(path).extension().string();
    if (extension == ".safetensors" || fs::path(path).filename() == "config.json") {
        return open_folder(path, options);
    }
    const MappedFile map(path);  // throws for unreadable files
    const auto bytes = map.bytes();
    if (bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0) {
        return open_gguf(path, options);
    }
    if (extension == ".bin") return open_llama2c(path, options);
    if (extension == ".gguf") return open_gguf(path, options);  // throws the exact error
    throw Error::input({.file = path,
                        .problem = "not a model that can be read",
                        .remedy = "give a GGUF file, a Hugging Face folder, a llama2.c .bin or the "
                                  "folder of a training run"});
}

namespace {

std::shared_ptr<const text::Tokenizer> tokenizer_at(const std::string& path, int vocab) {
    std::error_code code;
    fs::path file = resolve_run(path);
    if (fs::is_directory(file, code)) file /= "tokenizer.json";
    const std::string extension = file.extension().string();
    if (extension == ".json") return text::Tokenizer::from_json_file(file.string());
    if (extension == ".gguf") {
        return text::Tokenizer::from_gguf(formats::GgufFile::open(file.string()));
    }
    if (extension == ".bin") return text::Tokenizer::from_llama2c(file.string(), vocab);
    throw Error::input(
        {.file = path,
         .problem = "not a tokenizer that can be read",
         .remedy = "give a tokenizer.json, a GGUF file or llama2.c's tokenizer.bin"});
}

}  // namespace

std::shared_ptr<const text::Tokenizer> open_tokenizer(const std::string& path, int vocab) {
    return open_of_run(path, [&](const std::string& at) { return tokenizer_at(at, vocab); });
}

void require_vocab(const ModelSpec& spec, const text::Tokenizer* tokenizer,
                   const std::string& file) {
    // Embeddings are often padded to a round number of rows; ids without a row are an error.
    if (!tokenizer || tokenizer->vocab_size() <= spec.vocab) return;
    throw Error::input({.file = file,
                        .field = "vocabulary",
                        .value = fmt::format("{}", spec.vocab),
                        .problem = fmt::format("the tokenizer has {} tokens, more than the model",
                                               tokenizer->vocab_size()),
                        .remedy = "tokenizer and model do not belong together"});
}

void set_windows(ModelSpec& spec, int window, const std::vector<bool>& slides) {
    MR_CHECK(spec.own.empty() && slides.size() == static_cast<std::size_t>(spec.layers),
             "every layer slides or does not");
    const auto sliding = static_cast<std::size_t>(std::count(slides.begin(), slides.end(), true));
    if (window == 0 || sliding == 0) return;
    if (sliding == slides.size()) {
        spec.mask.window = window;
        return;
    }
    spec.own.assign(slides.size(), spec);
    for (std::size_t i = 0; i < slides.size(); ++i) {
        if (slides[i]) spec.own[i].mask.window = window;
    }
}

}  // namespace mr::model
