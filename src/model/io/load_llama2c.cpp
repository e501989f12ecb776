#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "formats/llama2c.h"
#include "model/io/source.h"

namespace mr::model {
namespace {

namespace fs = std::filesystem;

// llama2.c's checkpoints have no tokenizer: look for the usual names beside the file.
std::string find_tokenizer(const std::string& path) {
    fs::path folder = fs::path(path).parent_path();
    if (folder.empty()) folder = ".";
    std::error_code code;
    if (fs::exists(folder / "tokenizer.bin", code)) return (folder / "tokenizer.bin").string();
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder, code)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with("tok") && name.ends_with(".bin")) {
            found.push_back(entry.path().string());
        }
    }
    if (found.size() == 1) return found.front();
    std::string problem = "a llama2.c checkpoint needs its tokenizer, and none lies beside it";
    if (!found.empty()) {
        std::sort(found.begin(), found.end());
        problem = fmt::format(
            "several tokenizers lie beside it ({}, {}{})", fs::path(found[0]).filename().string(),
            fs::path(found[1]).filename().string(), found.size() > 2 ? ", ..." : "");
    }
    throw Error::input(
        {.file = path, .problem = problem, .remedy = "give one with --tokenizer FILE"});
}

static_assert(formats::kMaxLlama2cLayers == kMaxLayers, "the reader refuses what a spec would");

int to_int(std::int64_t value) {
    return static_cast<int>(std::clamp<std::int64_t>(value, 0, 1 << 30));
}

}  // namespace

Source open_llama2c(const std::string& path, const LoadOptions& options) {
    auto file = std::make_shared<formats::Llama2cFile>(formats::Llama2cFile::open(path));
    const formats::Llama2cHeader& header = file->header();
    Source out;
    out.dialect = Dialect::llama2c;
    out.path = path;
    out.format = fmt::format("llama2.c v{}", header.version);

    ModelSpec& spec = out.spec;
    spec.family = "llama";
    spec.name = fs::path(path).stem().string();
    spec.vocab = to_int(header.vocab_size);
    spec.dim = to_int(header.dim);
    spec.layers = to_int(header.n_layers);
    spec.heads = to_int(header.n_heads);
    spec.kv_heads = to_int(header.n_kv_heads);
    spec.head_dim = to_int(header.head_dim());
    spec.hidden = to_int(header.hidden_dim);
    spec.context = to_int(header.seq_len);
    spec.norm_eps = 1e-5f;
    spec.tied_embeddings = header.shared_classifier;
    spec.rope.rotary = spec.head_dim;
    spec.rope.style = dialect_layout(Dialect::llama2c, spec.family).rope;
    spec.validate(path);

    out.tensors = file->tensors();
    out.maps = file->maps();
    out.find = [raw = file.get()](std::string_view name) { return raw->find_tensor(name); };
    out.file = file;
    out.expanded = header.version == 2;
    out.tokenizer = open_tokenizer(
        options.tokenizer.empty() ? find_tokenizer(path) : options.tokenizer, spec.vocab);
    require_vocab(spec, out.tokenizer.get(), path);
    return out;
}

}  // namespace mr::model
