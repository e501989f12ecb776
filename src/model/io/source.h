// An open model file whose weights are not read yet: its spec, and its tensors one at a time by
// role. Loading takes all of them; converting takes one after another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/progress.h"
#include "core/thread_pool.h"
#include "formats/tensor_file.h"
#include "model/model.h"
#include "model/names.h"

namespace mr::model {

// A tensor by role, in the shape of role_shape() and in the file's type.
struct RoleTensor {
    Tensor view;
    std::shared_ptr<void> owned;  // memory of the view, if it is not the file's
};

struct Source {
    ModelSpec spec;
    Dialect dialect = Dialect::gguf;
    std::string path;
    std::string format;
    std::shared_ptr<void> file;  // keeps the maps alive
    bool expanded = false;       // the matrices are in memory of `file`, not in the map
    std::span<const formats::FileTensor> tensors;
    std::span<const MappedFile> maps;  // files that the tensors point into
    std::function<const formats::FileTensor*(std::string_view)> find;
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::vector<std::string> notes;  // Model::notes
    Generation generation;

    // Where a tensor lies in the file. Throws Error if it is missing, has a shape other than the
    // spec's, or a type that weights cannot have.
    struct Place {
        const formats::FileTensor* tensor = nullptr;
        Role role = Role::embedding;  // role of the file's tensor: qkv if fused
        bool transposed = false;
        // The role's rows inside the file's tensor: runs of `run` rows, the first at `first`, one
        // every `stride` rows.
        std::int64_t first = 0, run = 0, stride = 0;
        // Whether the rows are consecutive rows of the file's tensor.
        bool contiguous() const { return !transposed && run == stride; }
    };
    Place place(RoleAt at) const;
    RoleTensor read(RoleAt at) const;
    // Throws Error for a tensor that no role of the spec claims: the file holds another model than
    // its configuration describes.
    void require_all_known() const;
    // Reads all tensors that have checksums; throws Error (input) that names a damaged one. `once`:
    // the maps are not read later (formats/tensor_sum.h).
    void check_sums(const Progress& progress, bool once = false) const;
    // If the spec has a tied head and the file has one that differs from the embedding: unties
    // them, as transformers does, and adds a note.
    void untie_other_head();
};

// Each checks its configuration (spec.validate) and opens the tokenizer if there is one.
Source open_huggingface(const std::string& folder, const LoadOptions& options);
Source open_gguf(const std::string& path, const LoadOptions& options);
Source open_llama2c(const std::string& path, const LoadOptions& options);
// Resolves the path of a training run to its newest checkpoint, RUN/checkpoints/step-000500. Other
// paths are returned as they are. Throws Error (input) if a run has no checkpoint yet.
inline constexpr const char* kCheckpoints = "checkpoints";
inline constexpr const char* kCheckpointPrefix = "step-";
std::string resolve_run(const std::string& path);
// The checkpoints of a run, RUN/checkpoints/step-000500, by step; empty if it is not a run.
std::vector<std::string> checkpoint_folders(const std::string& run);
// If `path` is a run whose newest checkpoint could not be opened but an older one can be: the error
// with that one named.
std::optional<Error> naming_older(const Error& error, const std::string& path,
                                  const std::function<void(const std::string&)>& open);
// Calls open(path) and improves its errors with naming_older().
template <typename Open>
auto open_of_run(const std::string& path, const Open& open) {
    try {
        return open(path);
    } catch (const Error& error) {
        const auto known =
            naming_older(error, path, [&](const std::string& older) { open(older); });
        if (known) throw Error(*known);
        throw;
    }
}
// The step in a checkpoint's name, "step-000500"; none for other names.
std::optional<std::int64_t> checkpoint_step(const std::string& name);
// RUN, if the path is spelled RUN/checkpoints/step-000500; else empty.
std::string run_of_checkpoint(const std::string& path);

// Opens any source by the kind of its path, except random:.
Source open_source(const std::string& path, const LoadOptions& options);

// A model to inspect: spec, tokenizer, the bytes that its weights would take, and tensors as in
// LoadOptions::planned. Needs no memory for weights. `source` as in load_model(), random: included.
Model planned_model(const std::string& source, const LoadOptions& options = {});

// The bytes that load_weights() will map and own, and its tensors: those that are used in place are
// views of the file, the others have no memory yet. Throws Error if a tensor is missing or
// unusable.
Weights planned_weights(const Source& source);
// All weights: straight from the map if the engine can use the bytes, else copied, K-quants
// expanded to q8_0.
Weights load_weights(const Source& source, const Weights& planned, const Progress& progress);

// Gives the sliding layers this window (0: none); slides: [layers]. Call it last: later changes of
// the spec's common values do not reach its layers.
void set_windows(ModelSpec& spec, int window, const std::vector<bool>& slides);

// A tokenizer by path: tokenizer.json (or its folder), a GGUF file, or llama2.c's .bin.
std::shared_ptr<const text::Tokenizer> open_tokenizer(const std::string& path, int vocab);
// Throws Error if the tokenizer has ids that the embedding lacks.
void require_vocab(const ModelSpec& spec, const text::Tokenizer* tokenizer,
                   const std::string& file);

}  // namespace mr::model
